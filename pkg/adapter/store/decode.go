package store

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

var (
	errShort    = errors.New("it ends too soon")
	errTrailing = errors.New("something follows it")
	errRange    = errors.New("a number is out of range")
	errField    = errors.New("it has a field that this version does not know")
)

// decodeRecord reads what appendRecord wrote and refuses anything else. It
// keeps nothing of b. An event whose body is apart is omitted.
func decodeRecord(b []byte) (*schedule.Entry, error) {
	if len(b) == 0 {
		return nil, errShort
	}
	if b[0] != recordVersion {
		return nil, fmt.Errorf("its version is %d, this program reads %d", b[0], recordVersion)
	}
	d := newDecoder(b)
	d.at = 1
	e := &schedule.Entry{}
	fields := d.uvarint()
	e.MayWait, e.OnSchedule = fields&mayWait != 0, fields&onSchedule != 0
	if fields&^knownFields != 0 {
		d.fail(errField)
	}
	e.Revision = d.uvarint()
	e.Occurrence = e.Revision
	if fields&hasOccurrence != 0 {
		e.Occurrence = d.uvarint()
	}
	for i, t := range [...]*time.Time{&e.ScheduledAt, &e.DueAt, &e.RetryAt, &e.ExpiresAt, &e.UnfinishedAt} {
		if fields&(hasScheduledAt<<i) != 0 {
			*t = d.instant()
		}
	}
	for i, n := range [...]*uint32{&e.Attempt, &e.Tries} {
		if fields&(hasAttempt<<i) != 0 {
			*n = d.uint32()
		}
	}
	if fields&hasMaxInterval != 0 {
		m := time.Duration(d.varint())
		e.MaxInterval = &m
	}
	for i, s := range [...]*string{&e.UID, &e.Reason, &e.TraceParent, &e.TraceState} {
		if fields&(hasUID<<i) != 0 {
			*s = d.string()
		}
	}
	if fields&hasEvent != 0 {
		e.Event = &schedule.Event{Omitted: true, BodySize: d.size(), OmittedEnds: fields&endsKey != 0}
	} else if fields&endsKey != 0 {
		d.fail(errField)
	}
	if fields&hasEventID != 0 {
		if id := d.string(); e.Event == nil || id == "" {
			d.fail(errField)
		} else {
			e.Event.ID = id
		}
	}
	if fields&hasDeadLetter != 0 {
		e.DeadLetter = d.deadLetter()
	}
	if fields&hasLastFailure != 0 {
		e.LastFailure = &schedule.LastFailure{At: d.instant(), Code: int(d.varint()), Data: d.bytes()}
	}
	if fields&hasPreviousDueAt != 0 {
		e.PreviousDueAt = d.instant()
	}
	if fields&hasSlack != 0 {
		slack := time.Duration(d.varint())
		if e.Slack = &slack; slack < 0 {
			d.fail(errRange)
		}
	}
	if fields&hasPriority != 0 {
		e.Priority = d.priority()
	}
	if fields&hasCalendar != 0 {
		e.Calendar = d.calendar()
	}
	if e.Event != nil && apart(e) == nil {
		d.body(e)
	}
	if err := d.end(); err != nil {
		return nil, err
	}
	return e, nil
}

// body reads the event of the entry, which was omitted before.
func (d *decoder) body(e *schedule.Entry) {
	event := d.event()
	if d.err == nil && event.Body() != e.Event.BodySize {
		d.fail(fmt.Errorf("its event has %d bytes, the record says %d", event.Body(), e.Event.BodySize))
	}
	event.ID = e.Event.ID
	e.Event = event
}

func (d *decoder) priority() schedule.Priority {
	b := d.fixed(1)
	if b == nil {
		return schedule.NormalPriority
	}
	p, err := parseBand(b[0])
	if err != nil || p == schedule.NormalPriority {
		d.fail(errRange)
	}
	return p
}

// decodeEvent reads what appendEvent wrote and puts it in the place of the entry's omitted
// event. It keeps nothing of b.
func decodeEvent(b []byte, e *schedule.Entry) error {
	d := newDecoder(b)
	d.body(e)
	return d.end()
}

// maxShared bounds the records whose strings all share one copy: of a larger
// one they would keep a second copy of the data for as long as the entry.
const maxShared = 4 << 10

// decoder reads from the front; after the first error it returns zeros.
type decoder struct {
	record []byte
	shared string // the same, "" when strings get copies of their own
	at     int
	err    error
}

func newDecoder(b []byte) decoder {
	d := decoder{record: b}
	if len(b) <= maxShared {
		d.shared = string(b)
	}
	return d
}

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.at = len(d.record)
}

// end is the error of the whole: also of what follows it.
func (d *decoder) end() error {
	if d.err == nil && d.at != len(d.record) {
		d.err = errTrailing
	}
	return d.err
}

// fixed is the next n bytes, nil when there is an error.
func (d *decoder) fixed(n int) []byte {
	if len(d.record)-d.at < n {
		d.fail(errShort)
		return nil
	}
	d.at += n
	return d.record[d.at-n : d.at]
}

func (d *decoder) uvarint() uint64 {
	var x uint64
	for shift := 0; shift < 64; shift += 7 {
		if d.at >= len(d.record) {
			d.fail(errShort)
			return 0
		}
		c := d.record[d.at]
		d.at++
		if shift == 63 && c > 1 {
			break
		}
		x |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return x
		}
	}
	d.fail(errRange)
	return 0
}

func (d *decoder) varint() int64 {
	u := d.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

func (d *decoder) uint32() uint32 {
	n := d.uvarint()
	if n > math.MaxUint32 {
		d.fail(errRange)
		return 0
	}
	return uint32(n)
}

// size reads how many bytes something has.
func (d *decoder) size() int64 {
	n := d.uvarint()
	if n > math.MaxInt32 {
		d.fail(errRange)
		return 0
	}
	return int64(n)
}

func (d *decoder) string() string {
	n := d.uvarint()
	if n > uint64(len(d.record)-d.at) {
		d.fail(errShort)
		return ""
	}
	from := d.at
	d.at += int(n)
	if d.shared != "" {
		return d.shared[from:d.at]
	}
	return string(d.record[from:d.at])
}

// data is a copy, which keeps nothing else alive; nil when there is an error.
func (d *decoder) data() []byte {
	n := d.uvarint()
	if n > uint64(len(d.record)-d.at) {
		d.fail(errShort)
		return nil
	}
	d.at += int(n)
	return append([]byte{}, d.record[d.at-int(n):d.at]...)
}

// bytes is a copy of a short text; nil when it is empty.
func (d *decoder) bytes() []byte {
	if s := d.string(); s != "" {
		return []byte(s)
	}
	return nil
}

func (d *decoder) byte() byte {
	if d.at >= len(d.record) {
		d.fail(errShort)
		return 0
	}
	d.at++
	return d.record[d.at-1]
}

func (d *decoder) instant() time.Time {
	if len(d.record)-d.at < 8 {
		d.fail(errShort)
		return time.Time{}
	}
	var b [8]byte
	copy(b[:], d.record[d.at:])
	d.at += 8
	return instant(b[:])
}

// anyTime reads an instant with its offset. It takes any offset, since the
// encoder writes any: what may come in is for others to say.
func (d *decoder) anyTime() time.Time {
	sec, nsec, offset := d.varint(), d.uvarint(), d.varint()
	if nsec >= 1e9 || offset < math.MinInt32 || offset > math.MaxInt32 {
		d.fail(errRange)
	}
	if d.err != nil {
		return time.Time{}
	}
	t := time.Unix(sec, int64(nsec)).UTC()
	if offset != 0 {
		t = t.In(time.FixedZone("", int(offset)))
	}
	return t
}

func (d *decoder) event() *schedule.Event {
	e := &schedule.Event{}
	fields := d.uvarint()
	if fields&^knownEvent != 0 {
		d.fail(errField)
	}
	text := func(s *string, field uint64) {
		if fields&field != 0 {
			*s = d.string()
		}
	}
	text(&e.Source, hasEventSource)
	if fields&hasEventTime != 0 {
		e.Time = d.anyTime()
	}
	text(&e.Type, hasEventType)
	text(&e.Subject, hasEventSubject)
	text(&e.DataContentType, hasContentType)
	text(&e.DataSchema, hasSchema)
	if fields&hasExtensions != 0 {
		e.Extensions = d.extensions()
	}
	if fields&hasData != 0 {
		e.Data = d.data()
	}
	e.DataBase64 = fields&isBase64 != 0
	return e
}

func (d *decoder) extensions() map[string]any {
	n := d.uvarint()
	if n > uint64(len(d.record)-d.at)/2 { // each takes two bytes or more
		d.fail(errShort)
		return nil
	}
	m := make(map[string]any, n)
	for range n {
		name := d.string()
		switch kind := d.byte(); kind {
		case extensionString:
			m[name] = d.string()
		case extensionTrue, extensionFalse:
			m[name] = kind == extensionTrue
		case extensionInt:
			v := d.varint()
			if v < math.MinInt32 || v > math.MaxInt32 {
				d.fail(errRange)
			}
			m[name] = int32(v)
		default:
			d.fail(errField)
		}
		if d.err != nil {
			return nil
		}
	}
	return m
}

func (d *decoder) calendar() *schedule.Calendar {
	c := &schedule.Calendar{Cron: d.string(), TimeZone: d.string(), Jitter: math.Float64frombits(d.uvarint()), Until: d.instant()}
	if c.Until.Equal(earliest) {
		c.Until = time.Time{}
	}
	if !(c.Jitter >= 0 && c.Jitter <= 1) { // also NaN
		d.fail(errRange)
	}
	return c
}

func (d *decoder) deadLetter() *schedule.DeadLetter {
	l := &schedule.DeadLetter{Key: d.string(), Due: d.anyTime(), ID: d.string(), Attempt: d.uint32(), Tries: d.uint32(), Revision: d.uvarint()}
	l.Failure.Dest = d.string()
	l.Failure.Code = int(d.varint())
	if data := d.data(); len(data) > 0 {
		l.Failure.Data = data
	}
	return l
}
