package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// sleeper is a sink that sleeps once it had no delivery for Company.
type sleeper struct {
	took  func() time.Duration
	again func(key string) time.Duration

	mu      sync.Mutex
	awake   []span // in order
	under   int
	windows []span // of the deliveries: from the due time to the end of the slack
}

type span struct{ from, to time.Time }

func (s *sleeper) Send(ctx context.Context, a schedule.Attempt) schedule.Outcome {
	now := time.Now()
	s.mu.Lock()
	s.windows = append(s.windows, span{a.Entry.DueAt, a.Entry.SlackEnd(a.Source)})
	if n := len(s.awake); s.under == 0 && (n == 0 || now.Sub(s.awake[n-1].to) >= a.Source.Company) {
		s.awake = append(s.awake, span{from: now})
	}
	s.under++
	s.mu.Unlock()
	select {
	case <-time.After(s.took()):
	case <-ctx.Done():
		return schedule.Outcome{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.under--
	s.awake[len(s.awake)-1].to = time.Now()
	return schedule.Outcome{Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: s.again(a.Key)}}
}

// run delivers items of a source to the sink for a time, after which the sink sleeps or waits for nothing.
func (s *sleeper) run(t *testing.T, settings *schedule.Spec, items []queue.Item, hours time.Duration) {
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	db, err := store.Open(store.Options{Dir: "data", FS: newDisk(vfs.NewCrashableMem())})
	must(err)
	d, err := dispatch.New(dispatch.Config{Sender: s})
	must(err)
	q, err := queue.Open(queue.Config{Store: db, Wake: d.Wake})
	must(err)
	src, err := q.Set(settings)
	must(err)
	synctest.Wait() // the page is loaded
	for i := range items {
		_, err = src.Schedule(items[i].Key, &items[i].Request, nil)
		must(err)
	}
	time.Sleep(hours)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d.Stop(ctx)
	q.Close()
	must(db.Close())
}

// wakes is the least number of wakes that serve all windows: each wake as late as the first window that is open
// allows, and as long as the sink stays awake without prolonging. It needs no knowledge of the future.
func wakes(windows []span, awake time.Duration) (n int) {
	slices.SortFunc(windows, func(a, b span) int { return a.to.Compare(b.to) })
	for len(windows) > 0 {
		at := windows[0].to
		n++
		windows = slices.DeleteFunc(windows, func(w span) bool { return !w.from.After(at.Add(awake)) })
	}
	return n
}

// The sink starts at most twice as often as with the best schedule, whatever the keys, their times and their slack.
func TestSlack_StartsNearTheOptimum(t *testing.T) {
	t.Parallel()
	first := uint64(time.Now().UnixNano())
	for seed := first; seed < first+20; seed++ {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			took, every := pick(r, time.Millisecond, time.Second, 20*time.Second), map[string]time.Duration{}
			s := &sleeper{took: func() time.Duration { return took }, again: func(key string) time.Duration { return every[key] }}
			settings := settingsOf(pick(r, time.Minute, 10*time.Minute, time.Hour))
			settings.MaxInFlight = pick(r, 1, 10, 100)
			items := make([]queue.Item, 1+r.IntN(100))
			for i := range items {
				key := fmt.Sprint(i)
				every[key] = pick(r, 5*time.Minute, time.Hour, 7*time.Hour) + time.Duration(r.Int64N(int64(time.Hour)))
				items[i] = queue.Item{Key: key, Request: schedule.Request{Delay: new(time.Duration(1 + r.Int64N(int64(time.Hour))))}}
				if r.IntN(3) == 0 {
					items[i].Request.Slack = new(pick(r, 0, time.Minute, 30*time.Minute))
				}
			}
			s.run(t, settings, items, 24*time.Hour)
			if got, best := len(s.awake), wakes(s.windows, settings.Company+took); got > 2*best {
				t.Errorf("seed %d: %d starts for %d keys, the best schedule has %d", seed, got, len(items), best)
			}
		})
	}
}

// A key that was postponed leaves a stale row, which wakes no sink for keys that wait.
func TestSlack_StaleRowWakesNone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &sleeper{took: func() time.Duration { return time.Second }, again: func(string) time.Duration { return 24 * time.Hour }}
		now, start := new(time.Duration(0)), time.Now()
		s.run(t, settingsOf(time.Hour), []queue.Item{
			{Key: "waits", Request: schedule.Request{Delay: new(time.Minute)}},
			{Key: "postponed", Request: schedule.Request{Delay: new(30 * time.Minute), Slack: now}},
			{Key: "postponed", Request: schedule.Request{Delay: new(23 * time.Hour), Slack: now}},
		}, 2*time.Hour)
		if len(s.awake) != 1 || s.awake[0].from.Sub(start) != 61*time.Minute {
			t.Errorf("the sink, asleep since %v, is awake in %v", start, s.awake)
		}
	})
}

func settingsOf(slack time.Duration) *schedule.Spec {
	return &schedule.Spec{
		UID: "s", Namespace: "ns", Name: "s", Targets: schedule.Targets{Sink: schedule.Target{URL: "http://sink"}}, Policy: schedule.Replace,
		Delivery: schedule.Delivery{BackoffDelay: time.Second, Timeout: time.Minute}, Waking: schedule.Waking{Slack: slack, Company: schedule.DefaultCompany},
		Limits: schedule.Limits{MaxInFlight: schedule.DefaultMaxInFlight, MaxPending: schedule.DefaultMaxPending},
	}
}

// Keys that come back every hour, evenly spread at first, wake the sink a few times an hour with slack. The figures
// are in docs/reschedulesource.md.
func TestSlack_WakesAnHour(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		keys       int
		slack      time.Duration
		mostAwake  time.Duration // an hour
		mostStarts float64
	}{
		{1000, 0, time.Hour, 1},
		{1000, 10 * time.Minute, time.Minute, 6},
		{100, 0, time.Hour, 101},
		{100, 10 * time.Minute, time.Minute, 6},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &sleeper{took: func() time.Duration { return time.Second }, again: func(string) time.Duration { return time.Hour }}
			items := make([]queue.Item, tc.keys)
			for i := range items {
				delay := time.Duration(i+1) * time.Hour / time.Duration(tc.keys)
				items[i] = queue.Item{Key: fmt.Sprint(i), Request: schedule.Request{Delay: &delay}}
			}
			start := time.Now()
			const hours = 12
			s.run(t, settingsOf(tc.slack), items, hours*time.Hour)
			var awake time.Duration
			for _, a := range s.awake {
				awake += a.to.Sub(a.from) + schedule.DefaultCompany
			}
			each, starts := awake/hours, float64(len(s.awake))/hours
			t.Logf("%d keys an hour, slack %v: %.1f starts and %v awake an hour, %d deliveries in %v", tc.keys, tc.slack, starts, each.Round(time.Second), len(s.windows), time.Since(start))
			if each > tc.mostAwake+time.Minute || starts > tc.mostStarts {
				t.Errorf("%d keys, slack %v: %.1f starts and %v awake an hour", tc.keys, tc.slack, starts, each)
			}
		})
	}
}
