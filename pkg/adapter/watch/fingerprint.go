package watch

import (
	"encoding/binary"
	"hash"
	"hash/fnv"
	"maps"
	"math"
	"slices"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// fingerprint is a hash of what counts of an object. An object without a generation,
// such as a ConfigMap, has only its version to show that its content changed.
func fingerprint(o *objects.Object, counts schedule.Changes) uint64 {
	p := print{h: fnv.New64a()}
	switch {
	case counts == schedule.ChangesAny, o.Generation == 0, o.Metadata == nil:
		p.text(o.UID)
		p.text(o.Version)
	case counts == schedule.ChangesSpec:
		p.text(o.UID)
		p.number(uint64(o.Generation))
		p.text(o.Deleted)
	default:
		for _, name := range slices.Sorted(maps.Keys(o.Metadata)) {
			if name != "resourceVersion" && name != "managedFields" {
				p.text(name)
				p.value(o.Metadata[name])
			}
		}
	}
	return p.h.Sum64()
}

// identity is the watch of a resource in the store: what its marks mean depends on
// these settings. Namespaces and selector are not among them, so a resource that is
// narrowed or widened keeps its marks.
func identity(r *schedule.WatchResource) uint64 {
	p := print{h: fnv.New64a()}
	for _, s := range [...]string{r.Group, r.Kind, r.OwnerGroup, r.OwnerKind, r.Key, string(r.Changes)} {
		p.text(s)
	}
	return p.h.Sum64()
}

// print hashes values so that no two sequences of them look alike.
type print struct{ h hash.Hash64 }

func (p print) number(n uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n)
	_, _ = p.h.Write(b[:]) // a hash never fails
}

func (p print) text(s string) {
	p.number(uint64(len(s)))
	_, _ = p.h.Write([]byte(s))
}

func (p print) value(v any) {
	switch v := v.(type) {
	case map[string]any:
		p.number(uint64(len(v)))
		for _, name := range slices.Sorted(maps.Keys(v)) {
			p.text(name)
			p.value(v[name])
		}
	case []any:
		p.number(uint64(len(v)))
		for _, e := range v {
			p.value(e)
		}
	case string:
		p.text(v)
	case int64:
		p.number(uint64(v))
	case float64:
		p.number(math.Float64bits(v))
	case bool:
		if v {
			p.text("true")
		} else {
			p.text("false")
		}
	default:
		p.text("null")
	}
}

// share is the part of the key's turn, in [0,1), when something is spread over time.
func share(key string) float64 {
	return float64(bits(hashOf(key))>>11) / (1 << 53)
}

// bits spreads every bit of n over the whole.
func bits(n uint64) uint64 {
	n ^= n >> 33
	n *= 0xff51afd7ed558ccd
	n ^= n >> 33
	n *= 0xc4ceb9fe1a85ec53
	return n ^ n>>33
}

func hashOf(s string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(s))
	return h.Sum64()
}
