package sink

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// What is read of an answer.
const (
	maxFailureData = 1024     // kept for the dead letter
	maxDrain       = 64 << 10 // to use the connection again
)

// kind is the one meaning of every status.
func kind(status int) schedule.OutcomeKind {
	switch {
	case status >= 200 && status <= 299:
		return schedule.Succeeded
	case status == http.StatusNotFound, status == http.StatusRequestTimeout, status == http.StatusConflict,
		status == http.StatusTooManyRequests, status >= 500 && status <= 599:
		return schedule.Failed
	}
	return schedule.Rejected
}

func (s *Sender) read(ctx context.Context, a *schedule.Attempt, r *route, resp *http.Response) schedule.Outcome {
	defer resp.Body.Close()
	o := schedule.Outcome{Kind: kind(resp.StatusCode)}
	if o.Kind == schedule.Succeeded {
		return s.success(ctx, a, r, resp)
	}
	var data []byte
	if resp.StatusCode != http.StatusSwitchingProtocols { // its body is the connection
		data, _ = io.ReadAll(io.LimitReader(resp.Body, maxFailureData))
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain) // the status has decided
	}
	o.Failure = r.failure(resp.StatusCode, data)
	if header, ok := s.rescheduleAfter(a, resp.Header); ok && !header.never {
		o.Again = &schedule.Again{After: header.after}
	}
	if status := resp.StatusCode; status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		o.RetryAfter = parseRetryAfter(resp.Header.Get("Retry-After"), s.cfg.Now())
	}
	return o
}

// success reads a 2xx. An answer is complete with its last byte: one that
// breaks off or is cut by the timeout before is a failure, for the sink may
// not have finished its work.
func (s *Sender) success(ctx context.Context, a *schedule.Attempt, r *route, resp *http.Response) schedule.Outcome {
	isEvent := cloudevent.Is(resp.Header)
	var body []byte
	var err error
	whole := true
	switch {
	case resp.Body == http.NoBody:
	case isEvent:
		body, err = io.ReadAll(io.LimitReader(resp.Body, maxReply+1))
		whole = int64(len(body)) <= maxReply
	default:
		if _, err = io.CopyN(io.Discard, resp.Body, maxDrain+1); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return schedule.Outcome{Kind: schedule.Failed, Failure: r.failure(0, dispatchError(err))}
	}
	o := schedule.Outcome{Kind: schedule.Succeeded}
	header, hasHeader := s.rescheduleAfter(a, resp.Header)
	if header.never {
		o.Never = true
		return o
	}
	if isEvent {
		o.Again = s.replied(a, resp.Header, body, whole, hasHeader)
	}
	if hasHeader {
		if o.Again == nil {
			o.Again = &schedule.Again{}
		}
		o.Again.After, o.Again.At = header.after, time.Time{}
	}
	return o
}

// maxReply bounds the body of a reply: data as base64 or with every byte
// escaped a little, and attributes.
const maxReply = 3*schedule.MaxDataBytes + 256<<10

// failure is what a dead letter will say.
func (r *route) failure(code int, data []byte) schedule.Failure {
	return schedule.Failure{Dest: r.dest, Code: code, Data: clip(data)}
}

func clip(b []byte) []byte { return b[:min(len(b), maxFailureData)] }

// afterHeader is a Reschedule-After header.
type afterHeader struct {
	after time.Duration
	never bool
}

// rescheduleAfter reads the header; one that cannot be read is as if absent.
func (s *Sender) rescheduleAfter(a *schedule.Attempt, h http.Header) (afterHeader, bool) {
	values := h.Values("Reschedule-After")
	if len(values) == 0 {
		return afterHeader{}, false
	}
	v, err := parseRescheduleAfter(values[0])
	if err != nil {
		s.warn(a, err)
		return afterHeader{}, false
	}
	return v, true
}

func parseRescheduleAfter(value string) (v afterHeader, err error) {
	value = strings.TrimSpace(value)
	switch {
	case strings.EqualFold(value, "never"):
		v.never = true
	case isDecimal(value):
		v.after, err = schedule.ParseSeconds("Reschedule-After", value)
	default:
		v.after, err = schedule.ParseDuration("Reschedule-After", value)
	}
	return v, err
}

// parseRetryAfter reads seconds or an HTTP date; 0 when it is neither or past.
func parseRetryAfter(value string, now time.Time) time.Duration {
	value = strings.TrimSpace(value)
	if isDecimal(value) {
		d, err := schedule.ParseSeconds("Retry-After", value)
		if err != nil {
			return schedule.MaxDuration // a number too large
		}
		return d
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), schedule.MaxDuration)
}

// isDecimal wants digits, with a fraction or without.
func isDecimal(s string) bool {
	digits, point := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case '0' <= c && c <= '9':
			digits++
		case c == '.' && !point && i > 0:
			point = true
		default:
			return false
		}
	}
	return digits > 0 && s[len(s)-1] != '.'
}

func (s *Sender) warn(a *schedule.Attempt, err error) {
	s.cfg.Log.Warn("part of the sink's answer is ignored", "source", a.Source.Path(), "key", a.Key, "err", err)
}
