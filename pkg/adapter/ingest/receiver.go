package ingest

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Source is the part of a [queue.Source] that events need.
type Source interface {
	Spec() *schedule.Spec
	// ScheduleTogether schedules all items or none.
	ScheduleTogether(items []queue.Item) error
}

// Receiver takes the CloudEvents that are sent to the addresses of sources. It
// owns the ingest rules of all sources, and is safe for concurrent use. The zero
// value has no sources.
type Receiver struct {
	Log *slog.Logger // default: slog.Default
	// Refused is called with the refusal of a request whose events can never be
	// taken, or not now. It must not block. Default: nothing is called.
	Refused func(src *schedule.Spec, refusal error)

	mu    sync.RWMutex
	rules map[string]rulesOf // by uid
}

// rulesOf are the rules of one source in force, nil: none compiled yet; and why the
// rules of its present spec are not in force.
type rulesOf struct {
	*Rules
	err error

	src   *schedule.Spec // of its present spec
	tally *tally
}

// Set compiles the rules of a source and puts them in force. Rules that do not
// compile must not delay timers: the source goes on with its previous rules, or
// takes no events. The controller reports that in a condition.
func (r *Receiver) Set(src *schedule.Spec) {
	before := r.find(src.UID)
	now := before
	now.src = src
	if now.tally == nil {
		now.tally = new(tally)
	}
	if before.Rules != nil && before.err == nil && before.sameExpressions(src) {
		now.Rules = before.withSettings(src)
	} else if compiled, err := Compile(src); err == nil {
		now.Rules, now.err = compiled, nil
	} else {
		now.err = err
		r.log().Warn("the ingest rules of a source do not compile: its previous rules stay in force, or it takes no events",
			"source", src.Path(), "error", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rules == nil {
		r.rules = map[string]rulesOf{}
	}
	r.rules[src.UID] = now
}

// Remove drops the rules of a source.
func (r *Receiver) Remove(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.rules, uid)
}

// Ingest takes the events of one HTTP request, all or none, and returns what they
// asked for once it is on stable storage. It keeps the body. Expressions end with
// ctx. A judge that is not nil is asked about each event.
func (r *Receiver) Ingest(ctx context.Context, src Source, h http.Header, body []byte, judge access.Judge) ([]queue.Item, error) {
	settings := src.Spec()
	rules := r.find(settings.UID)
	switch {
	case rules.tally == nil:
		return nil, schedule.Refuse(schedule.CodeNotFound, "there is no RescheduleSource %s any more", settings.Path())
	case rules.Rules == nil:
		rules.tally[refused].Add(1)
		return nil, schedule.Refuse(schedule.CodeUnavailable, "%s takes no events until its spec.ingest is corrected: %v", settings.Path(), rules.err)
	}
	items, events, err := rules.read(ctx, h, body, time.Now(), judge)
	if err == nil && len(items) > 0 {
		err = src.ScheduleTogether(items)
	}
	if err != nil {
		rules.tally[refused].Add(int64(max(events, 1)))
		if r.Refused != nil {
			r.Refused(settings, err)
		}
		return items, err
	}
	rules.tally[accepted].Add(int64(len(items)))
	rules.tally[filtered].Add(int64(events - len(items)))
	return items, nil
}

func (r *Receiver) find(uid string) rulesOf {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.rules[uid]
}

func (r *Receiver) log() *slog.Logger {
	if r.Log == nil {
		return slog.Default()
	}
	return r.Log
}

// sameExpressions reports whether the rules were compiled from these expressions.
func (r *Rules) sameExpressions(src *schedule.Spec) bool {
	return r.src.Ingest.Key == src.Ingest.Key && r.src.Ingest.When == src.Ingest.When
}

// withSettings returns the same rules with the other settings of src.
func (r *Rules) withSettings(src *schedule.Spec) *Rules {
	changed := *r
	changed.src = src
	return &changed
}
