package scale

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// world is an API server with one kubelet: a workload that is scaled up accepts connections after starts.
type world struct {
	*testing.T
	k      *Keeper
	starts time.Duration

	mu       sync.Mutex
	replicas map[string]int32
	up       map[string]time.Time // when its pod accepts connections
	calls    []string
	fail     func(account, verb, name string) error
	underWay map[string]int // deliveries
	takes    time.Duration  // a call
	work     Work           // what metrics say
	restarts int            // of the pod
	examined int
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, starts: time.Second, replicas: map[string]int32{}, up: map[string]time.Time{}, underWay: map[string]int{}}
	w.restart()
	return w
}

// restart ends the Keeper, as a crash does, and makes another one.
func (w *world) restart() {
	if w.k != nil {
		w.k.Stop()
	}
	w.k = New(Config{API: w, Connect: w.connect})
}

func (w *world) connect(ctx context.Context, src *schedule.Spec) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.accepts(src.Scale.Name) {
		return errors.New("refused")
	}
	return ctx.Err()
}

func (w *world) accepts(name string) bool {
	return w.replicas[name] > 0 && !time.Now().Before(w.up[name])
}

func (w *world) do(ctx context.Context, a objects.Account, verb, name string, change func(was int32) int32) (int32, error) {
	if w.takes > 0 {
		select {
		case <-time.After(w.takes):
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.fail != nil {
		if err := w.fail(a.Name, verb, name); err != nil {
			return 0, err
		}
	}
	was, ok := w.replicas[name]
	if !ok {
		return 0, ErrNoTarget
	}
	if n := change(was); n != was {
		w.calls = append(w.calls, fmt.Sprintf("%s=%d", name, n))
		w.set(name, n)
	}
	return was, nil
}

// set scales a workload. The caller holds the lock.
func (w *world) set(name string, n int32) {
	if n > 0 && w.replicas[name] == 0 {
		w.up[name] = time.Now().Add(w.starts)
	}
	w.replicas[name] = n
}

// now changes the world.
func (w *world) now(change func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	change()
}

// fails makes calls fail as f says.
func (w *world) fails(f func(account, verb, name string) error) { w.now(func() { w.fail = f }) }

// pass lets time pass, until nothing moves any more.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// hand scales a workload from outside; less than 0: it does not exist any more.
func (w *world) hand(name string, n int32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n < 0 {
		delete(w.replicas, name)
		return
	}
	w.set(name, n)
}

// looks is how often pods were examined.
func (w *world) looks() int {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.examined
}

func (w *world) have(name string) int32 {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.replicas[name]
}

// Replicas implements API.
func (w *world) Replicas(ctx context.Context, a objects.Account, x schedule.Workload) (int32, error) {
	return w.do(ctx, a, "get", x.Name, func(was int32) int32 { return was })
}

// SetReplicas implements API.
func (w *world) SetReplicas(ctx context.Context, a objects.Account, x schedule.Workload, n int32) (int32, error) {
	return w.do(ctx, a, "patch", x.Name, func(was int32) int32 {
		if (was == 0) == (n == 0) {
			return was
		}
		if n == 0 && w.underWay[x.Name] > 0 {
			w.Errorf("%s was told to sleep under a delivery", x.Name)
		}
		return n
	})
}

// Examine implements API.
func (w *world) Examine(ctx context.Context, a objects.Account, x schedule.Workload, busy schedule.Busy) (h Health, err error) {
	h.Replicas, err = w.do(ctx, a, "list", x.Name, func(was int32) int32 { return was })
	if err != nil {
		return h, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.examined++
	if h.Replicas > 0 {
		h.Pods = []Pod{{UID: w.up[x.Name].String(), Ready: w.accepts(x.Name), Restarts: w.restarts, Problem: "ImagePullBackOff"}}
	}
	if busy.Port != 0 {
		h.Work = w.work
	}
	return h, nil
}

// operator is a source with keys, as the dispatcher runs it.
type operator struct {
	w    *world
	m    *Member
	spec *schedule.Spec

	mu     sync.Mutex // the dispatcher's
	keys   []time.Time
	took   time.Duration
	ran    int
	missed int // deliveries that could not connect, and counted
	timer  *time.Timer
	ended  bool
	last   time.Duration // the longest wait of a due key
}

func (w *world) source(name string, change func(*schedule.Scale)) *operator {
	scale := schedule.Scale{
		Workload: schedule.Workload{APIVersion: "apps/v1", Kind: "Deployment", Name: "web", Account: "scaler", Replicas: 1},
		Mode:     schedule.ScaleAuto, Cooldown: 10 * time.Second, StartTimeout: 2 * time.Minute, Recorded: true,
	}
	scale.Held = scale.Workload
	if change != nil {
		change(&scale)
	}
	w.now(func() { w.replicas[scale.Name] += 0 }) // it exists
	o := &operator{w: w, spec: &schedule.Spec{UID: name, Namespace: "ops", Name: name, Scale: scale}, took: time.Second}
	o.timer = time.AfterFunc(time.Hour, o.wake)
	o.join()
	return o
}

func (o *operator) join() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.m = o.w.k.Join(o.spec, 0, o.wake, o.isDue)
	o.pump()
}

// set changes the settings.
func (o *operator) set(change func(*schedule.Scale)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	spec := *o.spec
	change(&spec.Scale)
	o.spec = &spec
	o.m.Set(o.spec)
	o.pump()
}

func (o *operator) isDue(within time.Duration) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.keys) > 0 && !o.keys[0].After(time.Now().Add(within))
}

func (o *operator) wake() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pump()
}

// key schedules a key.
func (o *operator) key(in time.Duration) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := time.Now().Add(in)
	i := 0
	for i < len(o.keys) && o.keys[i].Before(at) {
		i++
	}
	o.keys = append(o.keys[:i], append([]time.Time{at}, o.keys[i:]...)...)
	o.pump()
}

// pump is dispatch.admit.
func (o *operator) pump() {
	if o.ended {
		return
	}
	for {
		now := time.Now()
		if len(o.keys) == 0 {
			o.m.Next(-1, time.Time{})
			return
		}
		if wait := o.keys[0].Sub(now); wait > 0 {
			o.m.Next(wait, o.keys[0])
			o.timer.Reset(wait)
			return
		}
		if !o.m.Admit(now.Sub(o.keys[0])) {
			return
		}
		due := o.keys[0]
		o.keys = o.keys[1:]
		o.m.Begin()
		if o.spec.Scale.Sinkless {
			o.settle(due)
			continue
		}
		go o.deliver(due)
	}
}

func (o *operator) deliver(due time.Time) {
	w, name := o.w, o.spec.Scale.Name
	w.mu.Lock()
	reached := w.accepts(name)
	if reached {
		w.underWay[name]++
	}
	w.mu.Unlock()
	if reached {
		time.Sleep(o.took)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if reached {
		w.mu.Lock()
		w.underWay[name]--
		w.mu.Unlock()
		o.ran++
		o.last = max(o.last, time.Since(due)-o.took)
	} else if o.m.Unreached() {
		o.keys = append([]time.Time{due}, o.keys...)
	} else {
		o.missed++
		o.keys = append(o.keys, time.Now().Add(5*time.Second)) // the back-off
	}
	o.m.End(reached)
	o.pump()
}

// settle is a delivery without a sink. The caller holds the lock.
func (o *operator) settle(due time.Time) {
	switch outcome := o.m.Settle(time.Since(due), time.Since(due)); outcome.Kind {
	case schedule.Succeeded:
		o.ran++
	case schedule.Failed:
		o.missed++
		o.keys = append(o.keys, time.Now().Add(5*time.Second)) // the back-off
	default:
		o.w.Errorf("the key that was due %s ago was admitted, but has not ended", time.Since(due))
	}
	o.m.End(false)
}

func (o *operator) leave() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.timer.Stop()
	o.m.Leave()
}

// get reads what the operator counts.
func get[T any](o *operator, what func(*operator) T) T {
	o.mu.Lock()
	defer o.mu.Unlock()
	return what(o)
}

func (o *operator) runs() int { return get(o, func(o *operator) int { return o.ran }) }

func (o *operator) refused() int { return get(o, func(o *operator) int { return o.missed }) }

func (o *operator) latest() time.Duration {
	return get(o, func(o *operator) time.Duration { return o.last })
}

func (o *operator) waiting() int { return get(o, func(o *operator) int { return len(o.keys) }) }

func (o *operator) status() schedule.ScaleStatus {
	synctest.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.m.Status()
}

// in runs a test under fake time.
func in(t *testing.T, test func(*world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		test(w)
		w.k.Stop()
	})
}
