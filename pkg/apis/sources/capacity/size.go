package capacity

import (
	"reflect"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const (
	// wordSize rounds the text of a string up, about as the allocator does.
	wordSize = 16
	// mapSize is a map without entries; an entry may take twice its size, and a byte.
	mapSize = 48
)

var timeType = reflect.TypeFor[time.Time]()

// sizeOf is about how many bytes the object takes in memory, and not much less.
func sizeOf(o *v1alpha1.RescheduleSource) int64 { return indirectSize(reflect.ValueOf(o)) }

// indirectSize is what a value takes beside itself.
func indirectSize(v reflect.Value) int64 {
	switch v.Kind() {
	case reflect.String:
		return (int64(v.Len()) + wordSize - 1) / wordSize * wordSize
	case reflect.Pointer:
		if v.IsNil() {
			return 0
		}
		return int64(v.Type().Elem().Size()) + indirectSize(v.Elem())
	case reflect.Interface:
		if v.IsNil() {
			return 0
		}
		return int64(v.Elem().Type().Size()) + indirectSize(v.Elem())
	case reflect.Struct:
		if v.Type() == timeType { // its zone is one for all
			return 0
		}
		var sum int64
		for i := range v.NumField() { //nolint:modernize // Fields would describe each field, which allocates
			sum += indirectSize(v.Field(i))
		}
		return sum
	case reflect.Slice:
		sum := int64(v.Cap()) * int64(v.Type().Elem().Size())
		if isFlat(v.Type().Elem().Kind()) {
			return sum
		}
		for i := range v.Len() {
			sum += indirectSize(v.Index(i))
		}
		return sum
	case reflect.Map:
		if v.IsNil() {
			return 0
		}
		entry := 2 * (int64(v.Type().Key().Size()) + int64(v.Type().Elem().Size()) + 1)
		sum := mapSize + int64(v.Len())*entry
		for all := v.MapRange(); all.Next(); {
			sum += indirectSize(all.Key()) + indirectSize(all.Value())
		}
		return sum
	}
	return 0
}

// isFlat reports whether a value of this kind takes nothing beside itself.
func isFlat(k reflect.Kind) bool { return k >= reflect.Bool && k <= reflect.Complex128 }
