package api

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// defaultRetryAfter is sent where the queue has no better value: long enough that
// a crowd of callers does not make things worse, short enough to be early.
const defaultRetryAfter = 5 * time.Second

var statuses = map[schedule.Code]int{
	schedule.CodeInvalid:         http.StatusBadRequest,
	schedule.CodeUnauthenticated: http.StatusUnauthorized,
	schedule.CodeDenied:          http.StatusForbidden,
	schedule.CodeNotFound:        http.StatusNotFound,
	schedule.CodeMethod:          http.StatusMethodNotAllowed,
	schedule.CodeExists:          http.StatusConflict,
	schedule.CodeExhausted:       http.StatusConflict,
	schedule.CodePrecondition:    http.StatusPreconditionFailed,
	schedule.CodeTooLarge:        http.StatusRequestEntityTooLarge,
	schedule.CodeMediaType:       http.StatusUnsupportedMediaType,
	schedule.CodeQuota:           http.StatusTooManyRequests,
	schedule.CodeUnavailable:     http.StatusServiceUnavailable,
	schedule.CodeStorageFull:     http.StatusInsufficientStorage,
}

func statusOf(code schedule.Code) int {
	if s, ok := statuses[code]; ok {
		return s
	}
	return http.StatusServiceUnavailable
}

// refuse answers with a problem. An error that is not a refusal is a fault of
// ours: it is logged, and the caller only reads that it may try again.
func (c *call) refuse(err error) {
	var e *schedule.Error
	if !errors.As(err, &e) {
		e = queue.RefusalOfEndedStore(err)
	}
	if e == nil {
		c.cfg.Log.Error("a schedule call failed", "method", c.r.Method, "path", c.r.URL.Path, "error", err)
		e = schedule.Refuse(schedule.CodeUnavailable, "the call failed in the adapter, perhaps after its change; GET, PUT and DELETE may be repeated")
	}
	status, h := statusOf(e.Code), c.w.Header()
	after := e.RetryAfter
	switch status {
	case http.StatusUnauthorized:
		h["Www-Authenticate"] = []string{`Bearer realm="reschedule"`}
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		if after <= 0 {
			after = defaultRetryAfter
		}
	}
	if after > 0 {
		h["Retry-After"] = []string{strconv.FormatInt(int64((after+time.Second-1)/time.Second), 10)}
	}
	buf := buffers.Get().(*buffer)
	defer buf.free()
	buf.b = appendProblem(buf.b, status, e)
	c.send(status, typeProblem, buf.b)
}

// WriteProblem answers a call that does not reach the handler, as the handler would.
func WriteProblem(w http.ResponseWriter, status int, e *schedule.Error) {
	h := w.Header()
	h["Content-Type"] = typeProblem
	h["Cache-Control"] = noStore
	h.Del("Content-Length") // of the answer that this one replaces
	w.WriteHeader(status)
	_, _ = w.Write(appendProblem(nil, status, e)) // it fails when the caller is gone
}

func appendProblem(b []byte, status int, e *schedule.Error) []byte {
	b = append(b, `{"type":"about:blank","title":`...)
	b = appendString(b, http.StatusText(status))
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(status), 10)
	b = append(b, `,"detail":`...)
	b = appendString(b, e.Detail)
	b = append(b, `,"code":`...)
	b = appendString(b, string(e.Code))
	if e.Field != "" {
		b = append(b, `,"field":`...)
		b = appendString(b, e.Field)
	}
	return append(b, "}\n"...)
}
