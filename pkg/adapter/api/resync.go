package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The members of the body of a resync.
const (
	resyncOver = iota
	resyncPrefix
)

var resyncFields = names{resyncOver: "over", resyncPrefix: "prefix"}

// resyncTime is how long a resync may take: millions of objects are read.
const resyncTime = 10 * time.Minute

// resync is POST {address}/resync.
func resync(c *call) error {
	if err := c.noModifiers(); err != nil {
		return err
	}
	d := c.newDecoder()
	defer d.free()
	if err := c.jsonBody(&d.buf); err != nil {
		return err
	}
	over, prefix, err := d.resync()
	if err != nil {
		return err
	}
	d.forget()
	if c.cfg.Resync == nil {
		return schedule.Refuse(schedule.CodePrecondition, "no source of this adapter watches: a resync needs a cluster and spec.watch")
	}
	until, deadline := time.Now().Add(resyncTime), http.NewResponseController(c.w)
	_, _ = deadline.SetWriteDeadline(until), deadline.SetReadDeadline(until) // HTTP always can
	n, err := c.cfg.Resync(c.r.Context(), c.src.Spec().UID, prefix, over)
	if err = c.audited(auditResync, prefix, err, "scheduled "+strconv.Itoa(n)); err != nil {
		return err
	}
	c.send(http.StatusOK, typeJSON, []byte(`{"scheduled":`+strconv.Itoa(n)+"}\n"))
	return nil
}

// resync reads the body of a resync; nothing but blanks is {}.
func (d *decoder) resync() (over *time.Duration, prefix string, err error) {
	if blank(d.buf.Bytes()) {
		return nil, "", nil
	}
	d.start()
	if d.dec.PeekKind() == 'n' { // only a field may be null
		d.refuse(schedule.Invalid("body", "is not an object"))
	}
	inside, err := d.enter("body")
	var seen uint32
	for more := inside; more && err == nil; {
		var name []byte
		if name, more, err = d.member(); err != nil || !more {
			break
		}
		i := resyncFields.lookup(name)
		if i < 0 {
			err = d.unknown("", name, resyncFields)
			continue
		}
		d.once(&seen, i, resyncFields[i])
		v, failed := d.value()
		if err = failed; err != nil || v == nil {
			continue
		}
		s, ok := d.text(resyncFields[i], v)
		switch {
		case !ok:
		case i == resyncOver:
			var fault error
			over, fault = duration(resyncFields[i], s)
			d.refuse(fault)
		default:
			prefix = s
			d.refuse(schedule.ValidateText(resyncFields[i], s, schedule.MaxKeyBytes))
		}
	}
	if err == nil {
		err = d.end()
	}
	if err == nil && d.fault != nil {
		err = d.fault
	}
	return over, prefix, err
}
