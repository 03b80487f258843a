package why

import (
	"fmt"
	"net/http"
	"strings"
	"unicode"

	"github.com/reschedule-dev/reschedule/sdk"
)

// timedOut is in the text of a failure without an answer whose delivery.timeout passed.
const timedOut = "the delivery timeout passed"

// cause is the cause that a failed attempt shows.
func (s *Source) cause(x *sdk.Failure) Cause {
	switch status := x.Status; {
	case status == 0 && s.Sinkless():
		return Unscaled
	case status == 0 && (strings.Contains(x.Error, timedOut) || strings.Contains(x.Error, "deadline exceeded")):
		return SinkSlow
	case status == 0:
		return SinkDown
	case status >= 200 && status < 300:
		return BadAnswer
	case status == http.StatusTooManyRequests:
		return SinkThrottles
	case status == http.StatusUnauthorized, status == http.StatusForbidden:
		return SinkDenies
	case status == http.StatusNotFound:
		return SinkNotFound
	case status == http.StatusRequestTimeout, status == http.StatusGatewayTimeout:
		return SinkSlow
	case status >= 500:
		return SinkFails
	}
	return SinkRefuses
}

// failed is the failure as the end of a sentence: "because …".
func (f *Facts) failed(x *sdk.Failure) string {
	switch f.Source.cause(x) {
	case Unscaled:
		// The text is one of the adapter, with what the workload's containers say.
		text := []rune(strings.ReplaceAll(strings.TrimSuffix(plain(x.Error), "."), ". ", "; "))
		if len(text) == 0 {
			return f.Workload() + " did not start or crashed"
		}
		text[0] = unicode.ToLower(text[0])
		return string(text)
	case SinkSlow:
		if x.Status == 0 {
			return "the sink did not answer within delivery.timeout" + f.timeout()
		}
		return fmt.Sprintf("the sink answered %s: it is too slow", status(x.Status))
	case SinkDown:
		text := plain(strings.TrimPrefix(x.Error, "dispatch error: "))
		switch {
		case hungUp(text):
			return "the sink closed the connection without an answer"
		case strings.Contains(text, "first record does not look like a TLS handshake"):
			return "TLS failed: the port of the sink speaks no TLS, but its URI begins with https"
		case strings.Contains(text, "tls: "):
			return "TLS with the sink failed: " + strings.TrimSuffix(text, ".")
		case text != "":
			return "the sink cannot be reached: " + strings.TrimSuffix(text, ".")
		}
		return "the sink did not answer"
	case BadAnswer:
		return fmt.Sprintf("the sink answered %s with a wait that cannot be read%s", status(x.Status), after(": ", strings.TrimSuffix(plain(x.Detail), ".")))
	case SinkThrottles:
		return "the sink answered 429 Too Many Requests: it asks for fewer deliveries"
	case SinkDenies:
		return fmt.Sprintf("the sink answered %s: it does not accept the token or the identity of the source", status(x.Status))
	case SinkNotFound:
		return "the sink answered 404 Not Found: its URL has no handler, or its route is not there yet"
	}
	if x.Status >= 300 && x.Status < 400 {
		return fmt.Sprintf("the sink answered %s: redirects are not followed", status(x.Status))
	}
	return "the sink answered " + status(x.Status)
}

func hungUp(text string) bool {
	return strings.HasSuffix(text, "EOF") || strings.HasSuffix(text, "connection reset by peer") || strings.HasSuffix(text, "broken pipe")
}

func (f *Facts) timeout() string {
	if f.Source == nil || f.Source.Timeout == 0 {
		return ""
	}
	return " (" + Short(f.Source.Timeout) + ")"
}

// lastOf is the last attempt of a dead letter.
func lastOf(l *sdk.DeadLetter) *sdk.Failure {
	return &sdk.Failure{At: l.At, Status: l.Status, Error: l.Error, Detail: l.Detail}
}

func status(code int) string {
	return strings.TrimSpace(fmt.Sprintf("%d %s", code, http.StatusText(code)))
}

// failure adds the failed attempt to the evidence.
func (a *answer) failure(f *Facts, x *sdk.Failure) {
	a.time("last failure", f.Now, x.At)
	if x.Status != 0 {
		a.add("sink's status", status(x.Status))
	}
	a.add("error", x.Error)
	a.add("sink's answer", x.Detail)
	if f.Source != nil {
		a.add("sink", f.Source.Sink())
	}
}
