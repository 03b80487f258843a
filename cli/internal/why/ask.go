package why

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// Target is a source, and how to ask about it.
type Target struct {
	Namespace, Name string
	Source          *Source  // its object, nil = unknown
	Adapter         *Adapter // nil = unknown
	// Client calls its schedule API. If it is nil, Err is why.
	Client *sdk.Client
	Err    error
	// Metrics reads the metrics of the adapter that serves it.
	Metrics func(context.Context) (*Metrics, error)
	Now     func() time.Time
}

// Count finds the facts but for single keys and the metrics. What cannot be found stays unknown.
func (t *Target) Count(ctx context.Context) Facts {
	f := Facts{Now: t.Now(), Namespace: t.Namespace, Name: t.Name, Adapter: t.Adapter}
	if t.Source != nil {
		f.Source = new(*t.Source) // the metrics may change it
	}
	if a := t.Adapter; a != nil && (a.Missing || a.Ready == 0) {
		return f // there is nothing to call
	}
	err := t.Err
	if err == nil {
		f.Counts, err = t.Client.Counts(ctx)
	}
	if err != nil {
		f.Refusal = NewRefusal(err)
	}
	f.Now = t.Now()
	return f
}

// Ask finds the facts about a key, or about the source if the key is "". They are younger than
// the question: now is when the last answer came, or what happened meanwhile would lie in the
// future.
func (t *Target) Ask(ctx context.Context, key string) Facts {
	f := t.Count(ctx)
	f.Key = key
	if f.Counts == nil {
		return f
	}
	var asking sync.WaitGroup
	var absent error
	if key == "" {
		asking.Go(func() { f.Record = t.trouble(ctx, f.Counts) })
		if f.Counts.DeadLetters > 0 {
			asking.Go(func() { f.DeadLetter = t.newestLetter(ctx) })
		}
	} else {
		asking.Go(func() { f.Record, absent = t.Client.Get(ctx, key) })
		asking.Go(func() { f.DeadLetter, _ = t.Client.DeadLetter(ctx, key) })
		asking.Go(func() {
			if h, err := t.Client.History(ctx, key); err == nil {
				f.History = *h
			}
		})
	}
	asking.Wait()
	if absent != nil && !errors.Is(absent, sdk.ErrNotFound) {
		f.Refusal = NewRefusal(absent)
		return f
	}
	r := f.Record
	if f.wantsStart() {
		f.StartedAt = t.started(ctx, r.Key)
	}
	if key != "" && r != nil && r.State == sdk.Due && r.LastFailure == nil && !r.InFlight {
		f.Ahead = t.ahead(ctx, r, f.Now)
	}
	if key == "" || r == nil || r.State == sdk.Due || f.Source == nil {
		f.Measure(t.Metrics(ctx))
	}
	f.Now = t.Now()
	return f
}

// trouble finds a key that shows what is wrong: the key that has been between attempts for
// longest, or the one that has been in flight for longest, as with a slow sink.
func (t *Target) trouble(ctx context.Context, n *sdk.Counts) *sdk.Schedule {
	for _, look := range []struct {
		state sdk.State
		keys  int
	}{{sdk.Retrying, n.Retrying}, {sdk.InFlight, n.InFlight}} {
		if look.keys == 0 {
			continue
		}
		for k, err := range t.Client.List(ctx, sdk.ListOptions{State: look.state, Order: sdk.ByDue, PageSize: 1}) {
			if err == nil && (k.LastFailure != nil || look.state == sdk.InFlight) {
				return k
			}
			break
		}
	}
	return nil
}

// maxListed bounds what is read of a list.
const maxListed = 1000

// newestLetter finds the newest of the first dead letters.
func (t *Target) newestLetter(ctx context.Context) (newest *sdk.DeadLetter) {
	n := 0
	for l, err := range t.Client.DeadLetters(ctx, sdk.ListOptions{PageSize: maxListed}) {
		if n++; err != nil || n > maxListed {
			break
		}
		if newest == nil || l.At.After(newest.At) {
			newest = l
		}
	}
	return newest
}

// ahead counts the keys of its priority that are delivered before a due key: their list is in the
// order of deliveries. nil: it is not known.
func (t *Target) ahead(ctx context.Context, r *sdk.Schedule, now time.Time) *Ahead {
	a, listed := &Ahead{}, 0
	for k, err := range t.Client.List(ctx, sdk.ListOptions{State: sdk.Due, Order: sdk.ByDue, PageSize: maxListed}) {
		switch {
		case err != nil:
			return nil
		case k.Key == r.Key || k.DueAt.After(r.DueAt):
			return a
		case listed == maxListed:
			a.More = true
			return a
		case k.Priority == r.Priority && !k.NextAttemptAt.After(now): // else others go first
			a.Keys++
		}
		listed++
	}
	return a
}

// started is when the delivery of the key began that is under way, zero if the source does not
// remember it.
func (t *Target) started(ctx context.Context, key string) (at time.Time) {
	events, _, _ := t.Client.Remembered(ctx) // without them it is not known
	for _, e := range events {
		switch {
		case e.Key == key && e.Kind == sdk.KeyStarted:
			at = e.At
		case e.Key == key && e.Kind == sdk.KeyOutcome:
			at = time.Time{}
		}
	}
	return at
}
