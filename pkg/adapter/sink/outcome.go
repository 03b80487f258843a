package sink

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
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
	case slices.Contains(passing, status), status >= 500 && status <= 599:
		return schedule.Failed
	}
	return schedule.Rejected
}

// passing are the statuses below 500 that a rollout, a policy of a mesh or an expired token
// gives to a request that is right.
var passing = []int{
	http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusRequestTimeout, http.StatusConflict,
	http.StatusMisdirectedRequest, http.StatusTooManyRequests,
}

// read turns the answer into an outcome. The status decides. limit ends the
// attempt; it is set anew for the rest of the answer.
func (s *Sender) read(ctx context.Context, a *schedule.Attempt, r *route, resp *http.Response, limit timeLimit) schedule.Outcome {
	defer resp.Body.Close()
	o := schedule.Outcome{Kind: kind(resp.StatusCode), Status: resp.StatusCode}
	if o.Kind == schedule.Succeeded {
		return s.success(ctx, a, r, resp, limit)
	}
	if r.forwarded && resp.StatusCode == http.StatusProxyAuthRequired { // the event reached no sink
		o.Kind = schedule.Failed
	}
	var data []byte
	if resp.Body != http.NoBody {
		limit.allow(s.drainTimeout)
		data, _ = io.ReadAll(io.LimitReader(resp.Body, schedule.MaxFailureData))
		drain(resp)
	}
	o.Failure, o.Priority = r.failure(resp.StatusCode, data), s.priority(a, resp.Header)
	switch header, err := rescheduleAfter(resp.Header); {
	case err != nil: // the answer fails anyway
		s.warn(a, err)
	case header != nil && !header.never:
		o.Again = &schedule.RescheduleAfter{After: header.after}
	}
	if status := resp.StatusCode; status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable {
		var err error
		if o.RetryAfter, err = parseRetryAfter(resp.Header.Get("Retry-After"), s.cfg.Now()); err != nil {
			s.warn(a, err)
		}
	}
	return o
}

// drain reads the rest of an answer, so that its connection can be used again.
func drain(resp *http.Response) { _, _ = io.CopyN(io.Discard, resp.Body, maxDrain+1) }

// success reads a 2xx. The occurrence is done, unless the answer has a wait that cannot be
// read: without it the key would be gone. A dead letter has no next time, so that its answer
// asks for nothing.
func (s *Sender) success(ctx context.Context, a *schedule.Attempt, r *route, resp *http.Response, limit timeLimit) schedule.Outcome {
	o := schedule.Outcome{Kind: schedule.Succeeded, Status: resp.StatusCode}
	var err error
	if a.Entry.DeadLetter == nil {
		o.Again, o.Never, err = s.wait(ctx, a, resp, limit)
		o.Priority = s.priority(a, resp.Header)
	}
	if resp.Body != http.NoBody {
		limit.allow(s.drainTimeout)
		drain(resp)
	}
	if err != nil {
		o.Kind, o.Failure = schedule.Failed, r.failure(resp.StatusCode, []byte(err.Error()))
	}
	return o
}

// wait is the wait of a 2xx, in its header or its reply: again is nil without one.
func (s *Sender) wait(ctx context.Context, a *schedule.Attempt, resp *http.Response, limit timeLimit) (again *schedule.RescheduleAfter, never bool, err error) {
	header, err := rescheduleAfter(resp.Header)
	if err != nil || header != nil && header.never {
		return nil, err == nil, err
	}
	if asks(resp.Header) {
		limit.allow(s.replyTimeout)
		if again, err = s.reply(ctx, a, resp, header != nil); err != nil {
			return nil, false, err
		}
	}
	if header != nil {
		if again == nil {
			again = &schedule.RescheduleAfter{}
		}
		again.After, again.At = header.after, time.Time{}
	}
	return again, false, nil
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

// rescheduleAfter reads the header; nil when there is none.
func rescheduleAfter(h http.Header) (*afterHeader, error) {
	values := h.Values("Reschedule-After")
	if len(values) == 0 {
		return nil, nil
	}
	value := cloudevent.OneLine(values)
	if strings.EqualFold(strings.TrimSpace(value), "never") {
		return &afterHeader{never: true}, nil
	}
	after, err := schedule.ParseWait("Reschedule-After", value)
	if err != nil {
		return nil, err
	}
	return &afterHeader{after: after}, nil
}

// priority is the key's from now on, as the header Reschedule-Priority says; nil without it.
func (s *Sender) priority(a *schedule.Attempt, h http.Header) *schedule.Priority {
	const name = "Reschedule-Priority"
	values := h.Values(name)
	if len(values) == 0 {
		return nil
	}
	p, err := schedule.ParsePriority(name, cloudevent.OneLine(values))
	if err != nil {
		s.warn(a, err)
		return nil
	}
	return &p
}

// parseRetryAfter reads a wait or an HTTP date; 0 when it is past or not there.
func parseRetryAfter(value string, now time.Time) (time.Duration, error) {
	if value == "" {
		return 0, nil
	}
	d, err := schedule.ParseWait("Retry-After", value)
	if err == nil {
		return d, nil
	}
	at, notDate := http.ParseTime(strings.TrimSpace(value))
	if notDate != nil {
		return 0, err
	}
	return min(max(at.Sub(now), 0), schedule.MaxDuration), nil
}

// warningLines is how many lines a second the log has of one source's answers.
const warningLines = 5

// warn notifies of a part of an answer that is ignored. The sink cannot learn of it: its answer has no answer.
func (s *Sender) warn(a *schedule.Attempt, err error) {
	left, ok := s.constants(a.Source).warnings.Next(time.Now())
	if !ok {
		return
	}
	why := fmt.Sprintf("%.1024s", err.Error())
	s.cfg.Log.Warn("part of the sink's answer is ignored", "source", a.Source.Path(), "key", a.Key, "err", why, "linesLeftOut", left)
	if s.cfg.Ignored != nil {
		s.cfg.Ignored(a.Source, a.Key, why)
	}
}
