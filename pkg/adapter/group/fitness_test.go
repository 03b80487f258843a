package group

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// A member is an heir for as long as its word is fresh, and for what it is fit for.
func TestHeirs_SaidLately(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var h others
		for _, step := range []struct {
			member      string
			says        fitness
			after       time.Duration
			able, ample bool
		}{
			{"b", able, 0, true, false},
			{"c", unfit, 0, true, false},
			{"c", ample, 0, true, true},
			{"b", unfit, 0, true, true},
			{"c", unfit, 0, false, false},
			{"c", "of another version", 0, false, false},
			{"c", ample, answerLife - 1, true, true},
			{"c", ample, answerLife, false, false},
		} {
			h.record(step.member, answer{fitness: step.says})
			time.Sleep(step.after)
			if gotAble, gotAmple := h.anyFit(able), h.anyFit(ample); gotAble != step.able || gotAmple != step.ample {
				t.Errorf("%+v: able %v, ample %v", step, gotAble, gotAmple)
			}
		}
	})
}

// Two followers' disks filled up while the owner's had space: they ended, and the group had no majority. Nothing grows
// unless this member's disk and another one's have space. A member that is away says nothing new; of a full one it is
// known, and one that had space does not count for long.
func TestDisks_AMajorityHasSpace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const has, full, silent = "1 1 0", "0 1 0", ""
		for name, test := range map[string]struct {
			b, c string // what they say
			bFor time.Duration
			want bool
		}{
			"nothing is known yet":                   {silent, silent, 0, true},
			"both have space":                        {has, has, 0, true},
			"both are full":                          {full, full, 0, false},
			"one is full":                            {has, full, 0, true},
			"one is full, the other is away":         {has, full, answerLife, false},
			"a full one is away":                     {full, has, answerLife, true},
			"both are full, one is away":             {full, full, answerLife, false},
			"one is full, of one nothing is known":   {silent, full, 0, false},
			"one had space, and is away":             {has, has, answerLife, true},
			"one has space, of one nothing is known": {silent, has, 0, true},
		} {
			var o others
			o.record("b", answerOf(http.Header{diskHeader: {test.b}}))
			time.Sleep(test.bFor)
			o.record("c", answerOf(http.Header{diskHeader: {test.c}}))
			if got := o.mostDisks(func(d store.Disk) bool { return d.Free >= d.Reserve }); got != test.want {
				t.Errorf("%s: %v", name, got)
			}
		}
	})
}

// A member says how much space its disk has.
func TestDisk_ToldToOthers(t *testing.T) {
	t.Parallel()
	b := &health{view: appliedView(t, smallDisk{vfs.Default, 5 << 30}, 4), stage: &stage{}}
	b.stage.engine.Store(&engine{log: readyLog{}})
	cfg := &Config{Settings: Settings{Member: "a", peers: map[string]string{"b": peer(t, func(w http.ResponseWriter, _ *http.Request) { b.answerClock(w) })}}}
	a := &health{cfg: cfg, peers: &peers{cfg: cfg, client: http.DefaultClient}, stage: b.stage}
	_, says, err := a.offset(t.Context(), "b")
	if err != nil || says.disk == nil || *says.disk != (store.Disk{Free: 5 << 30, Reserve: 512 << 20, Scarce: 1 << 30}) {
		t.Errorf("%+v %v", says.disk, err)
	}
}

// An owner hands the group over for a clock that is ahead or a disk that is nearly full, and only to
// a member that is better off. With a clock that is behind it stays: nothing may be early.
func TestOwner_ResignsForABetterHeir(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		by    time.Duration // the others' clocks less this one's
		short bool
		heir  fitness
		want  string
	}{
		{0, false, ample, ""},
		{0, true, ample, "disk"},
		{0, true, able, ""},
		{0, true, unfit, ""},
		{-replica.OffLimit, false, ample, ""},
		{-replica.OffLimit - 1, false, ample, "clock"},
		{-replica.OffLimit - 1, false, able, "clock"},
		{-replica.OffLimit - 1, false, unfit, ""},
		{-replica.OffLimit - 1, true, able, "clock"},
		{replica.OffLimit + 1, false, ample, ""},
		{replica.OffLimit + 1, true, ample, ""},
		{replica.OffLimit, true, ample, "disk"},
	} {
		clocks, heirs := replica.NewClocks("a", 2), others{}
		clocks.Record("b", replica.Offset{By: c.by})
		clocks.Record("c", replica.Offset{By: c.by})
		heirs.record("b", answer{fitness: c.heir})
		if got := whyResign(clocks, c.short, &heirs); (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

// A member hands the group over at most once in a while, so that a hand-over to a member that cannot
// claim it is not repeated for ever.
func TestResign_OnceInAWhile(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		attempts := newResignations()
		for _, step := range []struct {
			after time.Duration
			want  bool
		}{{0, true}, {0, false}, {resignEvery - 1, false}, {1, true}, {time.Second, false}} {
			time.Sleep(step.after)
			if got := attempts.Allow(); got != step.want {
				t.Errorf("after %s more: %v", step.after, got)
			}
		}
	})
}

// hangs is a sink that does not answer, as a dispatch.Sender.
type hangs struct{ underWay chan bool }

func (h hangs) Send(ctx context.Context, a schedule.Attempt) schedule.Outcome {
	wrote, ok := a.Begin()
	if !ok {
		return schedule.Outcome{}
	}
	wrote()
	h.underWay <- true
	<-ctx.Done()
	h.underWay <- false
	return schedule.Outcome{Kind: schedule.Aborted}
}

// A lease that ends while a hand-over waits for a delivery cuts the delivery off: the next owner
// may make it.
func TestTenure_LeaseEndsDuringAHandOver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		fatal := func(err error) { t.Errorf("fatal: %v", err) }
		db, err := store.Open(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: fatal})
		if err != nil {
			t.Fatal(err)
		}
		sink := hangs{make(chan bool)}
		m := &Member{cfg: Config{Drain: time.Hour, Log: slog.New(slog.DiscardHandler), Fatal: fatal, Deliver: dispatch.Config{Sender: sink}}}
		tenure := &tenure{m: m, unwatch: func() {}}
		if tenure.queue, err = queue.Open(queue.Config{Store: db, Fatal: fatal, Wake: tenure.wake}); err != nil {
			t.Fatal(err)
		}
		if tenure.dispatch, err = dispatch.New(m.cfg.Deliver); err != nil {
			t.Fatal(err)
		}
		s, err := tenure.queue.Set(&schedule.Spec{UID: "s", Namespace: "ns", Name: "s", Targets: schedule.Targets{Sink: schedule.Target{URL: "http://sink"}}, Limits: schedule.Limits{MaxInFlight: 1, MaxPending: 1}})
		if err != nil {
			t.Fatal(err)
		}
		var now time.Duration
		if _, err := s.Schedule("k", &schedule.Request{Delay: &now}, nil); err != nil {
			t.Fatal(err)
		}
		<-sink.underWay
		waits, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		finished := make(chan struct{})
		go func() {
			tenure.cut(waits) // the hand-over
			close(finished)
		}()
		synctest.Wait()
		began := time.Now()
		over, end := context.WithCancel(t.Context())
		end()
		go tenure.cut(over) // the lease has ended
		if <-sink.underWay || time.Since(began) > 0 {
			t.Errorf("the delivery was under way for %s after the end of the lease", time.Since(began))
		}
		<-finished
		tenure.finishing.Store(true)
		tenure.deliver() // as the lease comes back
		if tenure.dispatch != nil {
			t.Error("deliveries begin anew while the group is handed over")
		}
		tenure.queue.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
}
