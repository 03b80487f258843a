package api

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
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
	c.accounted = true
	if !c.src.Spec().Audit {
		return
	}
	c.cfg.Log.LogAttrs(context.Background(), slog.LevelInfo, "a change was asked for", slog.Group("audit",
		"user", cmp.Or(c.caller.User, Peer(c.r)), "verb", verb, "source", c.src.Spec().Path(), "key", key, "result", result))
}

// auditError logs a change that an admitted caller asked for and did not get, with its
// status and code.
func (c *call) auditError(verb, key string, err error) {
	c.accounted = true
	if !c.src.Spec().Audit {
		return
	}
	code := schedule.CodeUnavailable
	if e, ok := errors.AsType[*schedule.Error](err); ok {
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

// auditVerbs are the verbs of the calls that change something.
var auditVerbs = map[pathKind]map[string]string{
	pathSource:     {http.MethodPost: auditEvent},
	pathSchedules:  {http.MethodPost: auditBulk, http.MethodDelete: auditCancelAll},
	pathKey:        {http.MethodPut: auditSchedule, http.MethodDelete: auditCancel},
	pathResync:     {http.MethodPost: auditResync},
	pathRun:        {http.MethodPost: auditRun},
	pathLetters:    {http.MethodDelete: auditDiscard},
	pathLetter:     {http.MethodDelete: auditDiscard},
	pathRedriveAll: {http.MethodDelete: auditDiscard, http.MethodPost: auditRedrive},
	pathRedrive:    {http.MethodPost: auditRedrive},
}

// auditUnread logs a change that was refused before its call could log it: a body, a
// parameter or a header was bad.
func (c *call) auditUnread(err error) {
	verb := auditVerbs[c.path][c.r.Method]
	if err == nil || c.accounted || verb == "" {
		return
	}
	key := c.key
	if c.path == pathRedriveAll && verb == auditRedrive {
		key = "" // the key is the prefix, which was not read
	}
	c.auditError(verb, key, err)
}
