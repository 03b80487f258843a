package sim

import (
	"fmt"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// moment is a line of the trace: what happened, and when by the bubble's clock and
// by the adapter's.
type moment struct {
	at, wall time.Time
	what     any
}

// A trace has these things, and pointers to calls and starts.
type (
	// remark is for the reader alone.
	remark string
	// up is a process that begins; found is what it found on the disk.
	up    struct{ maxInFlight int }
	found struct {
		whole bool
		views map[string][]schedule.View // by source
		dead  map[string][]store.Item
	}
	down struct{ crash bool }
	// drawn is what jitter draws from now on.
	drawn struct{ random float64 }
	// applied are new settings of a source, or a new source.
	applied struct{ *schedule.Spec }
	removed struct{ uid string }
	// jumped is a jump of the wall clock. Before a jump back everything that has
	// expired is dropped.
	jumped struct{ by time.Duration }
	// slow: until then pages may still load.
	slow struct{ until time.Time }
	// answered is the end of a call, with its answer.
	answered struct {
		*call
		scheduled []queue.Scheduled
		deleted   int
		err       error
	}
	// unreached is an attempt that makes no connection: it counts in maxPerSecond alone.
	unreached struct{ uid string }
	end       struct {
		*start
		schedule.Outcome
	}
	// got is the answer to a GET while nothing moves.
	got struct {
		uid, key string
		view     schedule.View
		there    bool
	}
	// quiet is a moment at which nothing moves, and drained the last one.
	quiet   struct{}
	drained struct{}
)

// callKind is the kind of a call.
type callKind string

const (
	callPut       callKind = "PUT"
	callBulk      callKind = "bulk"
	callTogether  callKind = "all or none"
	callCancel    callKind = "DELETE"
	callCancelAll callKind = "DELETE all"
)

// call is a call. All of its effects are there as soon as it begins,
// because it begins while nothing moves; that they are durable is known when it is
// answered.
type call struct {
	kind   callKind
	uid    string
	items  []queue.Item // of a DELETE: the key and its conditions
	prefix string
}

// start is the start of a delivery.
type start struct{ schedule.Attempt }

// sight is what a source shows while nothing moves.
type sight struct {
	uid    string
	views  map[string]schedule.View // by key, of all that GET finds
	counts queue.Counts
	list   []schedule.View // read page by page
	listed *queue.ListOptions
}

func text(trace []moment) string {
	var b strings.Builder
	for _, m := range trace {
		switch w := m.what.(type) {
		case quiet, slow, got, *sight, found:
			continue
		case fmt.Stringer, remark:
			fmt.Fprintf(&b, "%s %s\n", stamp(m.wall), w)
		default:
			fmt.Fprintf(&b, "%s   %T %+v\n", stamp(m.wall), w, w)
		}
	}
	return b.String()
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02T15:04:05.999999999")
}

func (a applied) String() string {
	return fmt.Sprintf("  %s: sink %s suspend %v limits %d %d %d policy %s ingest %s delay %s interval %s slack %s company %s retry %v backoff %s linear %v schedule %+v", a.UID, a.Sink.URL,
		a.Suspend, a.MaxInFlight, a.MaxPerSecond, a.MaxPending, a.Policy, a.Ingest.Policy, a.Delay, a.MaxInterval, a.Slack, a.Company,
		interval(a.Delivery.Retry), a.Delivery.BackoffDelay, a.Delivery.Linear, a.Calendar)
}
func (a answered) String() string { return "  answered: " + a.call.String() }

func (c *call) String() string {
	text := fmt.Sprintf("  %s %s", c.kind, c.uid)
	if c.kind == callCancelAll {
		return text + fmt.Sprintf(" prefix %q", c.prefix)
	}
	for _, i := range c.items {
		text += fmt.Sprintf(" [%q %s]", i.Key, requestText(&i.Request))
	}
	return text
}

func (s *start) String() string {
	return fmt.Sprintf("  start %s %q rev %d attempt %d id %s dead %v", s.Source.UID, s.Key, s.Revision(), s.Number(), s.ID, s.Entry.DeadLetter != nil)
}

func (e end) String() string {
	text := fmt.Sprintf("  end   %s %q rev %d: %s", e.start.Source.UID, e.Key, e.Revision(), [...]string{"cut off", "succeeded", "failed", "rejected"}[e.Kind])
	if a := e.Again; a != nil {
		text += fmt.Sprintf(", again after %s at %s reply %v", a.After, stamp(a.At), a.Reply != nil)
	}
	if e.Never {
		text += ", never again"
	}
	if e.RetryAfter > 0 {
		text += fmt.Sprintf(", retry after %s", e.RetryAfter)
	}
	return text
}

func requestText(r *schedule.Request) string {
	text := string(r.Policy)
	if r.Ingested {
		text += " event " + r.Event.ID
	}
	if r.Delay != nil {
		text += fmt.Sprintf(" delay %s", *r.Delay)
	}
	if !r.DueAt.IsZero() {
		text += " dueAt " + stamp(r.DueAt)
	}
	if c := r.Calendar; c != nil {
		text += fmt.Sprintf(" cron %q %s", c.Cron, c.TimeZone)
	}
	if r.Backoff != nil {
		text += fmt.Sprintf(" backoff %+v", *r.Backoff)
	}
	if !r.ExpiresAt.IsZero() {
		text += " expiresAt " + stamp(r.ExpiresAt)
	}
	if r.Slack != nil {
		text += fmt.Sprintf(" slack %s", *r.Slack)
	}
	if r.MaxInterval != nil {
		text += fmt.Sprintf(" maxInterval %s", *r.MaxInterval)
	}
	if r.IfMatch != nil {
		text += fmt.Sprintf(" if-match %d", *r.IfMatch)
	}
	if r.IfNoneMatch {
		text += " if-none-match"
	}
	return fmt.Sprintf("%s %s jitter %g uid %q event %v", text, r.Priority, r.Jitter, r.UID, r.Event != nil)
}

func interval[T ~int | ~int64](v *T) T {
	if v == nil {
		return -1
	}
	return *v
}
