package api

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// putKey is PUT {address}/schedules/{key}.
func putKey(c *call) error {
	if err := c.noQuery(); err != nil {
		return err
	}
	match, err := parseIfMatch(c.r.Header)
	if err != nil {
		return err
	}
	var r schedule.Request
	if r.IfNoneMatch, err = parseIfNoneMatch(c.r.Header); err != nil {
		return err
	}
	d := c.newDecoder()
	defer d.free()
	if err := c.jsonBody(&d.buf); err != nil {
		return err
	}
	if err := c.compute(c.writing, d.buf.Len()); err != nil {
		return err
	}
	if err := d.put(&r); err != nil {
		return err
	}
	d.forget()
	r.TraceParent, r.TraceState = cloudevent.TraceContext(c.r.Header)
	var s queue.Scheduled
	err = c.guarded(match, &r.IfMatch, func() (err error) {
		s, err = c.src.Schedule(c.key, &r, c.grow)
		return err
	})
	c.turn.Release()
	if err = c.audited(auditSchedule, c.key, err, string(s.Result)); err != nil {
		return err
	}
	buf := buffers.Get().(*buffer)
	defer buf.free()
	_ = c.compute(c.encoding, viewBytes(&s.View)) // what was done is answered, with a turn or without
	buf.b = append(appendScheduled(buf.b, &s, 0), '\n')
	c.turn.Release()
	c.tag(s.View.Revision)
	c.send(statusOfResult(s.Result), typeJSON, buf.b)
	return nil
}

func statusOfResult(r schedule.Result) int {
	if r == schedule.Created {
		return http.StatusCreated
	}
	return http.StatusOK
}

// getKey is GET {address}/schedules/{key}. It is never answered with 304: the
// state and the counter change under one revision.
func getKey(c *call) error {
	if err := c.noQuery(); err != nil {
		return err
	}
	if err := c.grow(entryBytes); err != nil {
		return err
	}
	v, ok, err := c.src.Get(c.key)
	if err != nil {
		return err
	}
	if !ok {
		return schedule.Refuse(schedule.CodeNotFound, "nothing waits and nothing is in flight under key %q", c.key)
	}
	buf := buffers.Get().(*buffer)
	defer buf.free()
	if err := c.compute(c.encoding, viewBytes(&v)); err != nil {
		return err
	}
	buf.b = append(appendView(buf.b, &v), '\n')
	c.turn.Release()
	v = schedule.View{Entry: &schedule.Entry{Revision: v.Revision}} // the event is not held while a slow caller reads
	c.keep(buf.b)
	c.tag(v.Revision)
	c.send(http.StatusOK, typeJSON, buf.b)
	return nil
}

// cancelKey is DELETE {address}/schedules/{key}.
func cancelKey(c *call) error {
	var cond schedule.Conditions
	var err error
	if cond.IfUID, err = cancelUID(c.r.URL.RawQuery); err != nil {
		return err
	}
	if err := unconditional(c.r.Header, "If-None-Match"); err != nil {
		return err
	}
	match, err := parseIfMatch(c.r.Header)
	if err != nil {
		return err
	}
	err = c.guarded(match, &cond.IfMatch, func() error { return c.src.Cancel(c.key, cond) })
	if err = c.audited(auditCancel, c.key, err, "cancelled"); err != nil {
		return err
	}
	c.writeHeader(http.StatusNoContent)
	return nil
}

// scheduleAll is POST {address}/schedules.
func scheduleAll(c *call) error {
	if err := c.noModifiers(); err != nil {
		return err
	}
	d := c.newDecoder()
	defer d.free()
	if err := c.jsonBody(&d.buf); err != nil {
		return err
	}
	if blank(d.buf.Bytes()) {
		return schedule.Invalid("items", "is missing")
	}
	if err := c.grow(int64(min(maxItems, d.buf.Len()/itemText)) * itemBytes); err != nil {
		return err
	}
	if err := c.compute(c.writing, d.buf.Len()); err != nil {
		return err
	}
	d.pass = c.pass
	batch, err := d.bulk(cloudevent.TraceContext(c.r.Header))
	if err != nil {
		return err
	}
	d.forget()
	var scheduled []queue.Scheduled
	if len(batch.items) > 0 {
		if scheduled, err = c.src.ScheduleAll(batch.items, c.grow); err != nil {
			c.auditError(auditBulk, "", err)
			return err
		}
	}
	c.turn.Release()
	buf := buffers.Get().(*buffer)
	defer buf.free()
	b := slices.Grow(buf.b, min(600*len(batch.outcomes), streamBytes+2<<10))
	b = append(b, `{"items":[`...)
	for i, o := range batch.outcomes {
		if i > 0 {
			b = append(b, ',')
		}
		fault := o.fault
		if fault == nil {
			s := &scheduled[0]
			scheduled = scheduled[1:]
			if fault = s.Err; fault == nil {
				c.audit(auditBulk, o.key, string(s.Result))
				_ = c.compute(c.encoding, viewBytes(&s.View)) // as in put
				b = appendScheduled(b, s, statusOfResult(s.Result))
				c.turn.Release()
				b = c.stream(b)
				continue
			}
		}
		c.auditError(auditBulk, o.key, fault)
		b = c.stream(appendFault(b, o.key, fault))
	}
	buf.b = append(b, "]}\n"...)
	c.send(http.StatusOK, typeJSON, buf.b)
	return nil
}

// appendFault appends what became of an item that was refused.
func appendFault(b []byte, key string, fault *schedule.Error) []byte {
	b = append(b, `{"key":`...)
	b = appendString(b, key)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(statusOf(fault.Code)), 10)
	b = append(b, `,"code":`...)
	b = appendString(b, string(fault.Code))
	b = append(b, `,"detail":`...)
	b = appendString(b, fault.Detail)
	return append(b, '}')
}

// cancelTime is how long a call may take that changes all keys, or all dead letters, of a prefix.
const cancelTime = 10 * time.Minute

// mayTake gives the call so long, with its answer.
func (c *call) mayTake(most time.Duration) {
	until, deadline := time.Now().Add(most), http.NewResponseController(c.w)
	_, _ = deadline.SetWriteDeadline(until), deadline.SetReadDeadline(until) // HTTP always can
}

// cancelAll is DELETE {address}/schedules.
func cancelAll(c *call) error {
	return deleteAll(c, auditCancelAll, "cancel every key", c.src.CancelAll)
}

// deleteAll removes what the call's prefix selects. purpose says what a call without a selection
// would do.
func deleteAll(c *call, verb, purpose string, remove func(ctx context.Context, prefix string) (int, error)) error {
	prefix, err := selection(c.r.URL.RawQuery, purpose)
	if err != nil {
		return err
	}
	if err := unconditional(c.r.Header, "If-Match", "If-None-Match"); err != nil {
		return err
	}
	// Millions of keys take longer than any other call may. The request's context
	// ends with the read deadline.
	c.mayTake(cancelTime)
	n, err := remove(c.r.Context(), prefix)
	if err = c.audited(verb, prefix, err, "deleted "+strconv.Itoa(n)); err != nil {
		return err
	}
	c.send(http.StatusOK, typeJSON, []byte(`{"deleted":`+strconv.Itoa(n)+"}\n"))
	return nil
}

// getCounts is GET {address}.
func getCounts(c *call) error {
	if err := c.noQuery(); err != nil {
		return err
	}
	n, err := c.src.Counts()
	if err != nil {
		return err
	}
	b := append(make([]byte, 0, 256), `{"pending":`...)
	b = strconv.AppendInt(b, n.Pending, 10)
	b = append(b, `,"due":`...)
	b = strconv.AppendInt(b, n.Due, 10)
	b = append(b, `,"inFlight":`...)
	b = strconv.AppendInt(b, n.InFlight, 10)
	b = append(b, `,"retrying":`...)
	b = strconv.AppendInt(b, n.Retrying, 10)
	b = append(b, `,"deadLetters":`...)
	b = strconv.AppendInt(b, n.Kept, 10)
	b = append(b, `,"nextDueAt":`...)
	b = appendInstant(b, n.NextDueAt)
	b = append(b, `,"oldestDueAt":`...)
	b = appendInstant(b, n.OldestDueAt)
	if !n.CompanyUntil.IsZero() {
		b = append(b, `,"companyUntil":`...)
		b = appendTime(b, n.CompanyUntil)
	}
	b = appendPriorities(b, &n)
	b = append(b, `,"watched":`...)
	watched := int64(0)
	if c.cfg.Watched != nil {
		watched = c.cfg.Watched(c.src.Spec().UID)
	}
	b = strconv.AppendInt(b, watched, 10)
	if c.cfg.Workload != nil && c.src.Spec().Scale.Mode != "" {
		b = appendWorkload(append(b, `,"scale":`...), c.cfg.Workload(c.src.Spec().UID))
	}
	c.send(http.StatusOK, typeJSON, append(b, "}\n"...))
	return nil
}

// appendPriorities writes the keys of each priority, if some are not normal.
func appendPriorities(b []byte, n *queue.Counts) []byte {
	if n.Bands[schedule.HighPriority.Band()].Pending == 0 && n.Bands[schedule.LowPriority.Band()].Pending == 0 {
		return b
	}
	b = append(b, `,"priorities":`...)
	before := byte('{')
	for i, band := range n.Bands {
		b = append(append(b, before, '"'), schedule.Priorities[i].String()...)
		b = strconv.AppendInt(append(b, `":{"pending":`...), band.Pending, 10)
		b = strconv.AppendInt(append(b, `,"due":`...), band.Due, 10)
		b = append(b, '}')
		before = ','
	}
	return append(b, '}')
}

// appendWorkload writes the state of a workload as status.scale has it.
func appendWorkload(b []byte, s schedule.ScaleStatus) []byte {
	b = append(b, `{"starts":`...)
	b = strconv.AppendInt(b, s.Starts, 10)
	b = append(b, `,"awakeSeconds":`...)
	b = strconv.AppendInt(b, int64(s.Awake/time.Second), 10)
	b = append(b, `,"observedSeconds":`...)
	b = strconv.AppendInt(b, int64(s.Observed/time.Second), 10)
	if s.State != "" {
		b = appendString(append(b, `,"state":`...), s.State)
		b = appendInstant(append(b, `,"since":`...), s.Since)
	}
	if s.LastStart > 0 {
		b = appendString(append(b, `,"lastStart":`...), s.LastStart.Round(time.Millisecond).String())
	}
	if s.Quiet.Runs > 0 {
		b = strconv.AppendInt(append(b, `,"quietRuns":`...), s.Quiet.Runs, 10)
		b = strconv.AppendInt(append(b, `,"quietEverySeconds":`...), int64(s.Quiet.Every/time.Second), 10)
	}
	if s.Quiet.Requeues > 0 {
		b = strconv.AppendInt(append(b, `,"requeues":`...), s.Quiet.Requeues, 10)
	}
	if s.Reason != "" {
		b = appendString(append(b, `,"reason":`...), s.Reason)
		b = appendString(append(b, `,"message":`...), s.Message)
	}
	return append(b, '}')
}

// receiveEvents is POST {address}: CloudEvents in. The query is the sender's own.
func receiveEvents(c *call) error {
	if err := identity(c.r.Header); err != nil {
		return err
	}
	body, err := c.readBody(nil) // not pooled: the ingester keeps it
	if err != nil {
		return err
	}
	items, err := c.ingest(c.r.Context(), c.src, c.r.Header, body, c.caller.Judge)
	if err != nil {
		c.auditError(auditEvent, "", err)
		return err
	}
	for i := range items {
		c.audit(auditEvent, items[i].Key, "accepted")
	}
	c.writeHeader(http.StatusAccepted)
	return nil
}
