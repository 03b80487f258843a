// Package queue is the keyed delaying work queue.
package queue

import (
	"log/slog"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Config is what a Queue needs.
type Config struct {
	Store store.Store
	Log   *slog.Logger
	// Now is the wall clock; nil means time.Now.
	Now func() time.Time
	// Random returns a number in [0,1) for jitter; nil means math/rand/v2.
	Random func() float64
	// Wake is called whenever a source may have something due sooner than
	// Source.NextAt said. It must not block and may be called from anywhere.
	Wake func(*Source)
	// Fatal is called when durability is unknown, after a failed fsync; the process must end.
	Fatal func(error)
	// PageRows bounds the rows of a source's near horizon in memory, default 4096.
	PageRows int
}

// Queue holds the queues of all sources over one store.
type Queue struct{ cfg Config }

// Open recovers what a crash left and returns a Queue without sources.
func Open(cfg Config) (*Queue, error) { panic("x") }

// Close ends the background work; it does not close the store.
func (q *Queue) Close() { panic("x") }

// Set adds a source or gives the one with the same uid new settings, in force for the next request and
// the next delivery.
func (q *Queue) Set(s *schedule.Source) (*Source, error) { panic("x") }

// Remove purges the source: its schedules are lost for good.
func (q *Queue) Remove(uid string) error { panic("x") }

// Lookup finds a source by its address.
func (q *Queue) Lookup(namespace, name string) (*Source, bool) { panic("x") }

// Sources lists the sources.
func (q *Queue) Sources() []*Source { panic("x") }

// Source is the queue of one source. All methods are safe for concurrent use. A source that was
// removed answers not_found.
type Source struct{}

// Settings are the source's settings now in force.
func (s *Source) Settings() *schedule.Source { panic("x") }

// Item is a request for a key.
type Item struct {
	Key     string
	Request schedule.Request
}

// Scheduled is the answer to an Item: either Err (an *schedule.Error) or the rest.
type Scheduled struct {
	Result schedule.Result
	// View is the key after the change.
	View schedule.View
	// PreviousDueAt is the due time of the waiting occurrence that was there before; zero if none waited.
	PreviousDueAt time.Time
	Err           *schedule.Error
}

// Schedule applies one request. It returns once the change is durable. Its error is an *schedule.Error
// (nothing changed), or another error when durability is unknown: then do not acknowledge.
func (s *Source) Schedule(key string, r *schedule.Request) (Scheduled, error) { panic("x") }

// ScheduleAll applies the items in order, each judged alone, as one durable change.
func (s *Source) ScheduleAll(items []Item) ([]Scheduled, error) { panic("x") }

// ScheduleTogether applies all the items or, when one is refused, none: then the error is that item's *schedule.Error.
func (s *Source) ScheduleTogether(items []Item) error { panic("x") }

// Cancel removes the key; idempotent. Nothing of the answer to a delivery under way has an effect.
func (s *Source) Cancel(key string, c schedule.Conditions) error { panic("x") }

// CancelAll cancels all keys with the prefix ("" = all) and returns how many were waiting or due.
func (s *Source) CancelAll(prefix string) (int, error) { panic("x") }

// Get returns the key; false once nothing waits and nothing is in flight.
func (s *Source) Get(key string) (schedule.View, bool, error) { panic("x") }

// ListOptions select keys.
type ListOptions struct {
	Prefix   string
	Limit    int
	Continue string // token of the page before
	ByDue    bool   // by due time instead of key
}

// List returns a page of keys and the token of the next page, "" at the end.
// A token that is not one of ours is an invalid_argument naming "continue".
func (s *Source) List(o ListOptions) ([]schedule.View, string, error) { panic("x") }

// Counts are a source's numbers.
type Counts struct {
	Pending  int64 // waiting and due
	Due      int64 // retries among them
	InFlight int64
	// NextDueAt is the soonest due time still ahead, OldestDueAt the earliest one that has come;
	// zero when there is none.
	NextDueAt, OldestDueAt time.Time
	DeadLetters            int64 // waiting for the dead letter sink
}

// Counts counts. Up to 10,000 due keys it is exact; above that Due and the instants may be 5 s old.
func (s *Source) Counts() (Counts, error) { panic("x") }

// Delivery is a delivery under way: from Take to Finish its key is not handed out again.
type Delivery struct {
	schedule.Attempt
	// Lateness is how long after its time (the due time or, between attempts, the retry time) it was taken.
	Lateness time.Duration
}

// Take hands out the next key that is due, nil when there is none now. The caller makes
// the attempt at once (a change accepted from now on counts as one during the delivery) and must call Finish. A suspended source hands out nothing.
func (s *Source) Take() (*Delivery, error) { panic("x") }

// Finish applies the outcome of a delivery.
func (s *Source) Finish(d *Delivery, o schedule.Outcome) (schedule.Disposition, error) { panic("x") }

// NextAt is when Take may have something next; zero when nothing is known to come (Wake tells when that changes).
func (s *Source) NextAt() time.Time { panic("x") }
