package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strconv"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The verbs of the audit log.
const (
	auditSchedule  = "schedule"
	auditBulk      = "bulk"
	auditCancel    = "cancel"
	auditCancelAll = "cancelAll"
	auditEvent     = "event"
	auditRun       = "run"
	auditDiscard   = "discard"
	auditRedrive   = "redrive"
	auditResync    = "resync"
)

// audit logs a change that an admitted caller asked for, and what became of it, if the source
// wants that. The key of cancelAll is the prefix.
func (c *call) audit(verb, key, result string) {
	if !c.src.Spec().Audit {
		return
	}
	c.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "a change was asked for", slog.Group("audit",
		"user", cmp.Or(c.caller.User, Peer(c.r)), "verb", verb, "source", c.src.Spec().Path(), "key", key, "result", result))
}

// auditError logs a change that an admitted caller asked for and did not get, with its
// status and code.
func (c *call) auditError(verb, key string, err error) {
	if !c.src.Spec().Audit {
		return
	}
	code := schedule.CodeUnavailable
	var e *schedule.Error
	if errors.As(err, &e) {
		code = e.Code
	}
	c.audit(verb, key, strconv.Itoa(statusOf(code))+" "+string(code))
}

// audited hands on the error of a call that changes one key, or all of a
// prefix.
func (c *call) audited(verb, key string, err error, result string) error {
	if err != nil {
		c.auditError(verb, key, err)
		return err
	}
	c.audit(verb, key, result)
	return nil
}
