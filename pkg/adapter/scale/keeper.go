package scale

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// API reads and writes the replicas of workloads, with a token of the account and no
// other rights. Errors are *objects.Forbidden, wrap ErrNoTarget, or are of the moment.
type API interface {
	// Replicas returns how many the workload has.
	Replicas(ctx context.Context, a objects.Account, w schedule.Workload) (int32, error)
	// SetReplicas makes a workload without replicas have n, or with n = 0 a workload with
	// replicas have none. Any other workload stays as it is. It returns how many it had.
	SetReplicas(ctx context.Context, a objects.Account, w schedule.Workload, n int32) (was int32, err error)
	// Examine returns how the pods of the workload are, and, if busy has a port, what their
	// metrics say.
	Examine(ctx context.Context, a objects.Account, w schedule.Workload, busy schedule.Busy) (Health, error)
}

// Health is how a workload is.
type Health struct {
	Replicas int32 // that it must have
	Pods     []Pod // that are not about to end
	Work     Work
}

// Pod is a pod of a workload.
type Pod struct {
	UID      string
	Ready    bool
	Restarts int    // of its containers
	Problem  string // why it is not ready, if it says so
}

// Work is what the metrics of a workload say.
type Work struct {
	Known bool // they say whether it works
	Busy  bool // it works
	Waits bool // it waits until it is the leader
	Fresh bool // no queue has had an item since it was started
	// Reconciles is how many have ended since its pods started, Requeues how many of them with
	// RequeueAfter, Errors how many with an error.
	Reconciles, Requeues, Errors float64
	Failed                       error // why they could not be read
}

// ErrNoTarget means that the workload does not exist, or has no scale subresource.
var ErrNoTarget = errors.New("no such workload")

const (
	// slotTime is how long a start counts among the starts under way, if it takes longer. One of a
	// workload that did not start in time before does not count.
	slotTime = time.Minute
	// Each workload is looked at after pollLeast, and so much later that there are
	// 1/pollEach looks a second of all.
	pollLeast = 15 * time.Second
	pollEach  = 100 * time.Millisecond
	// podLooks are made a second, of all workloads. One that has no turn is made about laterLook later.
	podLooks  = 50
	laterLook = 400 * time.Millisecond
	// After a failed call the next one waits for firstRetry, doubled up to lastRetry.
	firstRetry = 250 * time.Millisecond
	lastRetry  = 30 * time.Second
)

// Config is what a Keeper needs.
type Config struct {
	API API          // nil: there are no workloads
	Log *slog.Logger // default: discards
	// Connect connects to the sink of a source, once.
	Connect func(context.Context, *schedule.Spec) error
	// Saved is the status that an adapter reported last; default: none.
	Saved func(*schedule.Spec) schedule.ScaleStatus
	// Changed is called when the status of a source's workload has changed. It must not block.
	Changed func(*schedule.Spec)
	// Started is called with how long a start took. It must not block.
	Started func(namespace string, took time.Duration)
}

// Keeper keeps the workloads of all sources in the state that their schedules ask for.
type Keeper struct {
	cfg    Config
	ctx    context.Context
	cancel context.CancelFunc
	work   sync.WaitGroup
	slots  *slots
	looks  *rate.Limiter // at pods

	mu      sync.Mutex // taken before target.mu
	targets map[id]*target
	count   atomic.Int64 // of targets that are looked at
}

// id is a workload, or what one source observes.
type id struct {
	namespace, group, kind, name string
	observer                     string // uid of the source
}

// New returns a Keeper without workloads.
func New(cfg Config) *Keeper {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Saved == nil {
		cfg.Saved = func(*schedule.Spec) schedule.ScaleStatus { return schedule.ScaleStatus{} }
	}
	if cfg.Changed == nil {
		cfg.Changed = func(*schedule.Spec) {}
	}
	if cfg.Started == nil {
		cfg.Started = func(string, time.Duration) {}
	}
	k := &Keeper{cfg: cfg, slots: newSlots(), looks: rate.NewLimiter(podLooks, podLooks), targets: map[id]*target{}}
	k.ctx, k.cancel = context.WithCancel(context.Background())
	return k
}

// Stop ends calls and connections. Workloads stay as they are: the next Keeper continues.
func (k *Keeper) Stop() {
	k.cancel()
	k.mu.Lock()
	for _, t := range k.targets {
		t.mu.Lock() // what began before the end is in work now
		t.timer.Stop()
		t.mu.Unlock()
	}
	k.mu.Unlock()
	k.work.Wait()
}

// enter makes a member one of the workload's.
func (k *Keeper) enter(m *Member, w schedule.Workload, saved schedule.ScaleStatus) {
	key := id{m.src.Namespace, w.Group(), w.Kind, w.Name, ""}
	if m.observes() {
		key.observer = m.src.UID
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	t := k.targets[key]
	if t == nil {
		t = newTarget(k, key, saved)
		k.targets[key] = t
		if !t.observed() {
			k.count.Add(1)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	m.target, m.workload = t, w
	t.members = append(t.members, m)
	t.update()
}

// leave takes a member out of its workload. A call under way ends first: until then the
// target is there for a member that comes.
func (k *Keeper) leave(m *Member) {
	k.mu.Lock()
	defer k.mu.Unlock()
	t := m.target
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(m)
	t.update()
	k.forgetIdle(t)
}

// forgetIdle drops a target without members and calls. The caller holds both locks.
func (k *Keeper) forgetIdle(t *target) {
	if len(t.members) == 0 && !t.running {
		t.timer.Stop()
		t.releaseSlot()
		if k.targets[t.id] == t {
			delete(k.targets, t.id)
			if !t.observed() {
				k.count.Add(-1)
			}
		}
	}
}

// pollAfter is when a workload is looked at next: not all at one time.
func (k *Keeper) pollAfter() time.Duration {
	d := max(pollLeast, time.Duration(k.count.Load())*pollEach)
	return d + rand.N(d/4)
}
