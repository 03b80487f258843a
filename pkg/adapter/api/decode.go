package api

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// decodeOptions: duplicate names are found by the decoder itself, as a fault
// of the field, so that in a bulk call they fail their item alone.
var decodeOptions = []jsontext.Options{jsontext.AllowDuplicateNames(true)}

// decoder reads requests from JSON in one pass. It has two kinds of
// failure: broken JSON is returned as an error and ends the decoding; a fault
// of a field is noted in fault, the first one stays, and decoding goes on
// behind it.
type decoder struct {
	buf     bytes.Buffer // the body
	dec     jsontext.Decoder
	scratch []byte
	// now is the time of the request, for instants relative to it.
	now   time.Time
	fault *schedule.Error
	batch batch // a bulk call's, kept for its capacity
	// pass is called after each part of a long body.
	pass func() error
}

var decoders = sync.Pool{New: func() any { return new(decoder) }}

func (c *call) newDecoder() *decoder {
	d := decoders.Get().(*decoder)
	d.now = c.cfg.Now()
	return d
}

func (d *decoder) free() {
	d.clear()
	decoders.Put(d)
}

// clear drops everything that the next call must not see, and large memory.
func (d *decoder) clear() {
	d.forget()
	d.buf.Reset()
	d.fault, d.pass = nil, nil
	d.batch.reset()
}

// forget drops a large body once it is decoded: the requests have copies.
func (d *decoder) forget() {
	if d.buf.Cap() > pooledBytes {
		d.buf = bytes.Buffer{}
		d.dec.Reset(&d.buf)
	}
	if cap(d.scratch) > pooledBytes {
		d.scratch = nil
	}
}

// start begins to read what is in buf.
func (d *decoder) start() {
	d.fault = nil
	d.dec.Reset(&d.buf, decodeOptions...)
}

// end makes sure that nothing follows the value.
func (d *decoder) end() error {
	switch _, err := d.dec.ReadToken(); {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return d.broken(err)
	}
	return schedule.Invalid("body", "has more than one JSON value, at byte %d", d.dec.InputOffset())
}

// broken is the refusal of a body that is not JSON.
func (d *decoder) broken(err error) error {
	if err == nil {
		return nil
	}
	at, why := d.dec.InputOffset(), err
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		at, why = syntax.ByteOffset, syntax.Err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return schedule.Invalid("body", "is not complete JSON, it ends at byte %d", at)
	}
	return schedule.Invalid("body", "is not valid JSON at byte %d: %v", at, why)
}

// refuse notes the fault of a field.
func (d *decoder) refuse(err error) {
	if d.fault != nil || err == nil {
		return
	}
	var e *schedule.Error
	if !errors.As(err, &e) {
		e = schedule.Refuse(schedule.CodeInvalid, "%v", err)
	}
	d.fault = e
}

// enter goes into an object. Any other value is passed over: null is an absent
// field, the rest a fault.
func (d *decoder) enter(field string) (inside bool, err error) {
	if d.dec.PeekKind() == '{' {
		_, err := d.dec.ReadToken()
		return err == nil, d.broken(err)
	}
	v, err := d.dec.ReadValue()
	if err != nil {
		return false, d.broken(err)
	}
	if v.Kind() != 'n' {
		d.refuse(schedule.Invalid(field, "is not an object"))
	}
	return false, nil
}

// member reads the name of the object's next member, false at its end. The
// name is valid until the next read.
func (d *decoder) member() (name []byte, more bool, err error) {
	if d.dec.PeekKind() == '}' {
		_, err := d.dec.ReadToken()
		return nil, false, d.broken(err)
	}
	v, err := d.dec.ReadValue()
	if err != nil {
		return nil, false, d.broken(err)
	}
	return d.unquote(v), true, nil
}

// unquote returns the content of a JSON string, valid until the next read.
func (d *decoder) unquote(v jsontext.Value) []byte {
	inner := v[1 : len(v)-1]
	if bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	d.scratch, _ = jsontext.AppendUnquote(d.scratch[:0], v) // the decoder has found it valid
	return d.scratch
}

// value reads the member's value; nil for null, which is an absent field.
func (d *decoder) value() (jsontext.Value, error) {
	v, err := d.dec.ReadValue()
	if err != nil {
		return nil, d.broken(err)
	}
	if v.Kind() == 'n' {
		return nil, nil
	}
	return v, nil
}

// text takes a string, refusing the field when it is another value.
func (d *decoder) text(field string, v jsontext.Value) (string, bool) {
	if v.Kind() != '"' {
		d.refuse(schedule.Invalid(field, "is not a string"))
		return "", false
	}
	return string(d.unquote(v)), true
}

// names are the members of an object, by index.
type names []string

// lookup finds a name; -1 for one that is not among them. The lists are short
// and their lengths differ, so that a map would be slower.
func (n names) lookup(name []byte) int {
	for i := range n {
		if string(name) == n[i] {
			return i
		}
	}
	return -1
}

// below are the names of an object's members, as errors show them.
func (n names) below(prefix string) names {
	paths := make(names, len(n))
	for i := range n {
		paths[i] = prefix + n[i]
	}
	return paths
}

// once notes that a member was seen and refuses it the second time.
func (d *decoder) once(seen *uint32, i int, field string) {
	bit := uint32(1) << i
	if *seen&bit != 0 {
		d.refuse(schedule.Invalid(field, "is given twice"))
	}
	*seen |= bit
}

// unknown refuses a member that is none of the object's, and passes over it.
func (d *decoder) unknown(prefix string, name []byte, known names) error {
	field := prefix + shown(string(name))
	err := schedule.Invalid(field, "is not a field here")
	for _, k := range known {
		if bytes.EqualFold(name, []byte(k)) {
			err = schedule.Invalid(field, "is not a field here, %s is", prefix+k)
		}
	}
	d.refuse(err)
	return d.broken(d.dec.SkipValue())
}
