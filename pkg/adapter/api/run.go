package api

import (
	"net/http"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// emptyBody refuses a body that says something.
func (c *call) emptyBody() error {
	if c.r.ContentLength == 0 {
		return nil
	}
	b, err := c.readBody(nil)
	if err != nil {
		return err
	}
	if !blank(b) && strings.TrimSpace(string(b)) != "{}" {
		return schedule.Invalid("body", "is not empty: this call takes none")
	}
	return nil
}

// runKey is POST {address}/schedules/{key}/run.
func runKey(c *call) error {
	if err := c.noQuery(); err != nil {
		return err
	}
	if err := unconditional(c.r.Header, "If-None-Match"); err != nil {
		return err
	}
	match, err := parseIfMatch(c.r.Header)
	if err != nil {
		return err
	}
	if err := c.emptyBody(); err != nil {
		return err
	}
	r := schedule.RunNow(schedule.Conditions{})
	var s queue.Scheduled
	err = c.guarded(match, &r.IfMatch, func() (err error) {
		s, err = c.src.Schedule(c.key, &r, c.grow)
		return err
	})
	if err = c.audited(auditRun, c.key, err, string(s.Result)); err != nil {
		return err
	}
	buf := buffers.Get().(*buffer)
	defer buf.free()
	_ = c.compute(c.encoding, viewBytes(&s.View)) // as in put
	buf.b = append(appendView(buf.b, &s.View), '\n')
	c.turn.Release()
	c.tag(s.View.Revision)
	c.send(http.StatusOK, typeJSON, buf.b)
	return nil
}
