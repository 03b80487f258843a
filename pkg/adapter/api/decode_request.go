package api

import (
	"math"
	"strconv"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The members of a request. In a bulk call it has its key as well.
const (
	fieldDelay = iota
	fieldDueAt
	fieldBackoff
	fieldCron
	fieldTimeZone
	fieldPolicy
	fieldJitter
	fieldEvent
	fieldMaxInterval
	fieldSlack
	fieldExpiresAt
	fieldUID
	fieldReason
	fieldPriority
	fieldKey
)

var (
	itemFields = names{
		fieldDelay: "delay", fieldDueAt: "dueAt", fieldBackoff: "backoff",
		fieldCron: "cron", fieldTimeZone: "timeZone", fieldPolicy: "policy", fieldJitter: "jitter",
		fieldEvent: "event", fieldMaxInterval: "maxInterval", fieldSlack: "slack", fieldExpiresAt: "expiresAt", fieldUID: "uid",
		fieldReason: "reason", fieldPriority: "priority", fieldKey: "key",
	}
	requestFields = itemFields[:fieldKey]
	backoffFields = names{"base", "factor", "cap", "maxAttempts"}
	backoffPaths  = backoffFields.below("backoff.")
)

// put reads the body of a PUT; nothing but blanks is {}.
func (d *decoder) put(r *schedule.Request) error {
	if blank(d.buf.Bytes()) {
		return nil
	}
	d.start()
	if d.dec.PeekKind() == 'n' { // only a field may be null
		d.refuse(schedule.Invalid("body", "is not an object"))
	}
	if err := d.request("body", requestFields, r, nil); err != nil {
		return err
	}
	if err := d.end(); err != nil {
		return err
	}
	if d.fault != nil {
		return d.fault
	}
	return nil
}

func blank(b []byte) bool {
	for _, c := range b {
		if c != ' ' && c != '\t' && c != '\n' && c != '\r' {
			return false
		}
	}
	return true
}

// request reads one request with the given fields.
func (d *decoder) request(field string, fields names, r *schedule.Request, key *string) error {
	inside, err := d.enter(field)
	if !inside {
		return err
	}
	var seen uint32
	for {
		name, more, err := d.member()
		if err != nil {
			return err
		}
		if !more {
			d.oneTime(r)
			d.calendar(r, seen)
			return nil
		}
		i := fields.lookup(name)
		if i < 0 {
			if err := d.unknown("", name, fields); err != nil {
				return err
			}
			continue
		}
		d.once(&seen, i, fields[i])
		switch i {
		case fieldBackoff:
			err = d.backoff(r)
		case fieldEvent:
			err = d.event(r)
		default:
			var v jsontext.Value
			if v, err = d.value(); v != nil {
				d.field(i, v, r, key)
			}
		}
		if err != nil {
			return err
		}
	}
}

// calendar completes a calendar that was read, and refuses what is none, also with another time.
func (d *decoder) calendar(r *schedule.Request, seen uint32) {
	c := r.Calendar
	switch {
	case c == nil:
	case seen&(1<<fieldCron) == 0:
		d.refuse(schedule.Invalid(itemFields[fieldTimeZone], "is given without cron"))
	case r.Delay != nil || !r.DueAt.IsZero() || r.Backoff != nil:
		d.refuse(schedule.Invalid(itemFields[fieldCron], "cannot be given together with delay, dueAt or backoff"))
	default:
		var err error
		r.Calendar, err = schedule.NewCalendar(c.Cron, c.TimeZone, itemFields[fieldCron], itemFields[fieldTimeZone])
		d.refuse(err)
	}
}

// oneTime refuses a request that names its time more than once.
func (d *decoder) oneTime(r *schedule.Request) {
	switch {
	case r.Delay != nil && !r.DueAt.IsZero():
		d.refuse(schedule.Invalid("dueAt", "cannot be given together with delay"))
	case r.Backoff != nil && (r.Delay != nil || !r.DueAt.IsZero()):
		d.refuse(schedule.Invalid("backoff", "cannot be given together with delay or dueAt"))
	}
}

// field reads one of the fields that are not objects.
func (d *decoder) field(i int, v jsontext.Value, r *schedule.Request, key *string) {
	name := itemFields[i]
	if i == fieldJitter {
		if f, ok := d.number(name, v); ok {
			if f < 0 || f > 1 {
				d.refuse(schedule.Invalid(name, "%s is not from 0 to 1", clip(v)))
			}
			r.Jitter = f
		}
		return
	}
	if i == fieldDelay && v.Kind() == '0' {
		delay, err := schedule.ParseSeconds(name, string(v))
		d.refuse(err)
		r.Delay = &delay
		return
	}
	s, ok := d.text(name, v)
	if !ok {
		return
	}
	var err error
	switch i {
	case fieldDelay:
		r.Delay, err = duration(name, s)
	case fieldDueAt:
		r.DueAt, err = schedule.ParseInstant(name, s, d.now)
	case fieldCron, fieldTimeZone:
		if r.Calendar == nil {
			r.Calendar = &schedule.Calendar{}
		}
		if i == fieldCron {
			r.Calendar.Cron = s
		} else {
			r.Calendar.TimeZone = s
		}
	case fieldPolicy:
		r.Policy, err = schedule.ParsePolicy(name, s)
	case fieldMaxInterval:
		r.MaxInterval, err = duration(name, s)
	case fieldSlack:
		r.Slack, err = duration(name, s)
	case fieldExpiresAt:
		r.ExpiresAt, err = schedule.ParseInstant(name, s, d.now)
	case fieldUID:
		r.UID, err = s, schedule.ValidateText(name, s, maxUID)
	case fieldReason:
		r.Reason, err = s, schedule.ValidateText(name, s, maxReason)
	case fieldPriority:
		r.Priority, err = schedule.ParsePriority(name, s)
	case fieldKey:
		*key, err = s, schedule.ValidateKey(s)
	}
	d.refuse(err)
}

func duration(field, s string) (*time.Duration, error) {
	v, err := schedule.ParseDuration(field, s)
	return &v, err
}

// number takes a JSON number that a float64 can hold.
func (d *decoder) number(field string, v jsontext.Value) (float64, bool) {
	if v.Kind() != '0' {
		d.refuse(schedule.Invalid(field, "is not a number"))
		return 0, false
	}
	f, err := strconv.ParseFloat(string(v), 64)
	if err != nil {
		d.refuse(schedule.Invalid(field, "%s is too large", clip(v)))
	}
	return f, err == nil
}

// clip is a value as an error shows it.
func clip(v jsontext.Value) string { return shown(string(v[:min(len(v), 100)])) }

// backoff reads the object of that name.
func (d *decoder) backoff(r *schedule.Request) error {
	inside, err := d.enter("backoff")
	if !inside {
		return err
	}
	b := &schedule.Backoff{Base: schedule.DefaultBase, Factor: schedule.DefaultFactor, Cap: schedule.DefaultCap}
	r.Backoff = b
	var seen uint32
	for {
		name, more, err := d.member()
		if err != nil || !more {
			return err
		}
		i := backoffFields.lookup(name)
		if i < 0 {
			if err := d.unknown("backoff.", name, backoffFields); err != nil {
				return err
			}
			continue
		}
		d.once(&seen, i, backoffPaths[i])
		v, err := d.value()
		if err != nil {
			return err
		}
		if v != nil {
			d.backoffField(i, v, b)
		}
	}
}

func (d *decoder) backoffField(i int, v jsontext.Value, b *schedule.Backoff) {
	field := backoffPaths[i]
	switch backoffFields[i] {
	case "base", "cap":
		s, ok := d.text(field, v)
		if !ok {
			return
		}
		wait, err := schedule.ParseDuration(field, s)
		d.refuse(err)
		if backoffFields[i] == "base" {
			b.Base = wait
		} else {
			b.Cap = wait
		}
	case "factor":
		if f, ok := d.number(field, v); ok {
			if f < 1 {
				d.refuse(schedule.Invalid(field, "%s is less than 1", clip(v)))
			}
			b.Factor = f
		}
	case "maxAttempts":
		if f, ok := d.number(field, v); ok {
			if f < 0 || f > math.MaxUint32 || f != math.Trunc(f) {
				d.refuse(schedule.Invalid(field, "%s is not a whole number from 0 to %d", clip(v), uint32(math.MaxUint32)))
				return
			}
			b.MaxAttempts = uint32(f)
		}
	}
}
