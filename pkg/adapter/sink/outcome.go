package sink

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The bounds of reading an answer: bytes, and time after its headers.
const (
	maxDrain = 64 << 10 // bytes, to use the connection again

	drainTime = time.Second
	replyTime = 30 * time.Second
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

// read turns the answer into an outcome. The status decides. limit ends the
// attempt; it is set anew for the rest of the answer.
func (s *Sender) read(ctx context.Context, a *schedule.Attempt, r *route, resp *http.Response, limit timeLimit) schedule.Outcome {
	defer resp.Body.Close()
	o := schedule.Outcome{Kind: kind(resp.StatusCode), Status: resp.StatusCode}
	if o.Kind == schedule.Succeeded {
		return s.success(ctx, a, resp, limit)
	}
	var data []byte
	if resp.Body != http.NoBody {
		limit.allow(s.drainTimeout)
		data, _ = io.ReadAll(io.LimitReader(resp.Body, schedule.MaxFailureData))
		drain(resp)
	}
	o.Failure = r.failure(resp.StatusCode, data)
	if header, ok := s.rescheduleAfter(a, resp.Header); ok && !header.never {
		o.Again = &schedule.RescheduleAfter{After: header.after}
	}
	if status := resp.StatusCode; status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		o.RetryAfter = parseRetryAfter(resp.Header.Get("Retry-After"), s.cfg.Now())
	}
	return o
}

// drain reads the rest of an answer, so that its connection can be used again.
func drain(resp *http.Response) { _, _ = io.CopyN(io.Discard, resp.Body, maxDrain+1) }

// success reads a 2xx: the occurrence is done even if the rest cannot be read.
func (s *Sender) success(ctx context.Context, a *schedule.Attempt, resp *http.Response, limit timeLimit) schedule.Outcome {
	o := schedule.Outcome{Kind: schedule.Succeeded, Status: resp.StatusCode}
	header, hasHeader := s.rescheduleAfter(a, resp.Header)
	o.Never = header.never
	if !o.Never && asks(resp.Header) {
		limit.allow(s.replyTimeout)
		o.Again = s.reply(ctx, a, resp, hasHeader)
	}
	if resp.Body != http.NoBody {
		limit.allow(s.drainTimeout)
		drain(resp)
	}
	if hasHeader && !o.Never {
		if o.Again == nil {
			o.Again = &schedule.RescheduleAfter{}
		}
		o.Again.After, o.Again.At = header.after, time.Time{}
	}
	return o
}

// failure is the failure for a dead letter.
func (r *route) failure(code int, data []byte) schedule.Failure {
	return schedule.Failure{Dest: r.dest, Code: code, Data: clip(data)}
}

func clip(b []byte) []byte { return b[:min(len(b), schedule.MaxFailureData)] }

// afterHeader is a Reschedule-After header.
type afterHeader struct {
	after time.Duration
	never bool
}

// rescheduleAfter reads the header. An invalid one is logged and ignored.
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

// isDecimal reports whether s is digits, with or without a fraction.
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

// warningLines is how many lines a second the log has of one source's answers.
const warningLines = 5

func (s *Sender) warn(a *schedule.Attempt, err error) {
	if left, ok := s.constants(a.Source).warnings.Next(time.Now()); ok {
		s.cfg.Log.Warn("part of the sink's answer is ignored", "source", a.Source.Path(), "key", a.Key,
			"err", fmt.Sprintf("%.1024s", err.Error()), "linesLeftOut", left)
	}
}
