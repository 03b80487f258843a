package schedule

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"
)

// key drives one key through Apply and Finish, as the queue does.
type key struct {
	cur    *Entry
	flight *Flight
	src    *Spec
	now    time.Time
	rev    uint64
}

func (k *key) own() bool { return k.flight != nil && k.flight.Own }

func (k *key) state() State {
	switch {
	case k.flight == nil && k.cur == nil:
		return Absent
	case k.flight == nil:
		return NewView("k", k.cur, false, false, k.now).State
	case k.cur == nil:
		return Leaving
	case k.own():
		return InFlight
	}
	return Behind
}

func (k *key) start() bool {
	if k.flight != nil || k.cur == nil || k.cur.At().After(k.now) || k.cur.Expired(k.now) {
		return false
	}
	k.flight = &Flight{Entry: k.cur, Own: true}
	return true
}

func (k *key) schedule(r *Request, random float64) bool {
	k.rev++
	c, err := r.Apply(Inputs{Key: "k", Source: k.src, Revision: k.rev, Now: k.now, Random: random}, k.cur, k.own())
	if err != nil || c.Result == Kept {
		return false
	}
	if k.flight != nil {
		k.flight.Accept(c, r.Ingested)
	}
	k.cur = c.Entry
	return true
}

func (k *key) cancel() {
	k.cur = nil
	if k.flight != nil {
		k.flight.Cancel()
	}
}

func (k *key) expire() bool {
	if k.cur == nil || k.own() || !k.cur.Expired(k.now) {
		return false
	}
	k.cur = nil
	return true
}

// finish applies an outcome and returns the table's name for it.
func (k *key) finish(o Outcome) (on string) {
	k.rev++
	s := k.flight.Finish(Inputs{Key: "k", Source: k.src, Revision: k.rev, StoreID: "store", Now: k.now}, k.cur, o)
	k.flight, k.cur = nil, s.Next
	switch s.Disposition {
	case Delivered:
		return "succeed"
	case Retrying, Superseding:
		return "fail"
	case Dropped, DeadLettered:
		return "give up"
	case Expired:
		return "expire"
	}
	k.restart() // the adapter aborts only when it stops
	return "restart"
}

func (k *key) restart() {
	k.flight = nil
	if k.cur != nil {
		k.cur, _ = k.cur.Recover()
	}
}

// idle are the calls that find nothing to do, which the table leaves out.
var idle = map[[2]string]bool{
	{"absent", "cancel"}: true, {"leaving", "cancel"}: true,
	{"absent", "restart"}: true, {"waiting", "restart"}: true, {"due", "restart"}: true,
}

var answers = []string{"succeed", "fail", "give up", "expire"}

// legal finds the step in the table. An answer that leaves nothing of a key that is leaving is an answer, whatever it
// says; and a step to a time that has come already is followed by its coming at once.
func legal(from State, on string, to State) (Transition, bool) {
	for _, tr := range Transitions {
		same := tr.On == on || tr.On == "schedule" && on == "event" || tr.On == "answer" && slices.Contains(answers, on)
		if tr.From == from && same && (tr.To == to || tr.To == Waiting && to == Due) {
			return tr, true
		}
	}
	return Transition{}, false
}

// Only the transitions of the table happen, and all of them do.
func TestTransitions_AllHappenAndNoOthers(t *testing.T) {
	t.Parallel()
	seen := map[Transition]int{}
	if s := os.Getenv("WALK_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("WALK_SEED: %v", err)
		}
		walk(t, seed, seen)
		return
	}
	first := uint64(time.Now().UnixNano())
	// The rarest step is in one walk of some hundred: after 2,000 go on until it was seen.
	for i := range uint64(100_000) {
		if i >= 2000 && len(seen) == len(Transitions) {
			return
		}
		walk(t, first+i, seen)
		if t.Failed() {
			return
		}
	}
	for _, tr := range Transitions {
		if seen[tr] == 0 {
			t.Errorf("seeds %d and on: %s on %q to %s never happened", first, tr.From, tr.On, tr.To)
		}
	}
}

// walk takes a key through random steps and checks each.
func walk(t *testing.T, seed uint64, seen map[Transition]int) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 0))
	retry := r.IntN(3)
	k := &key{now: t0, src: &Spec{Policy: Replace, Ingest: Ingest{Policy: Earliest}, Delivery: Delivery{BackoffDelay: time.Second}}}
	if r.IntN(2) == 0 {
		k.src.Delivery.Retry = &retry
	}
	if r.IntN(2) == 0 {
		k.src.MaxInterval = 20 * time.Second
	}
	var history []string
	note := func(before key, on string) {
		from, to := before.state(), k.state()
		history = append(history, fmt.Sprintf("%v: %s on %q to %s", k.now.Sub(t0), from, on, to))
		tr, ok := legal(from, on, to)
		switch {
		case ok:
			seen[tr]++
		case from != to || !idle[[2]string{string(from), on}]:
			t.Errorf("the table has no %s on %q to %s", from, on, to)
		}
		if wrong := k.check(before, on); wrong != "" {
			t.Error(wrong)
		}
	}
	for range 60 {
		before := *k
		k.now = k.now.Add(time.Duration(max(r.IntN(20)-10, 0)) * time.Second)
		if before.state() != k.state() {
			note(before, "time comes")
		}
		before = *k
		if k.flight != nil {
			f := *k.flight
			before.flight = &f
		}
		if on := k.step(r); on != "" {
			note(before, on)
		}
		if t.Failed() {
			t.Logf("replay with WALK_SEED=%d", seed)
			for _, line := range history {
				t.Log(line)
			}
			return
		}
	}
}

// check returns what of the promises does not hold after a step.
func (k *key) check(before key, on string) string {
	was, is := before.cur, k.cur
	waited := was != nil && !before.own()
	switch {
	case is != nil && !is.UnfinishedAt.IsZero() && is.dueAgainAt().IsZero() && (k.flight == nil || k.flight.Own):
		return "an older delivery is noted as unfinished, but none is under way"
	case was != nil && is != nil && is.Revision < was.Revision:
		return "the revision went back"
	case on == "event" && waited && is.At().After(was.At()):
		return "an event postponed a waiting occurrence"
	case on == "event" && is == nil:
		return "an event cancelled"
	case on == "fail" && before.own() && (!is.DueAt.Equal(was.DueAt) || is.Revision != was.Revision || is.Occurrence != was.Occurrence || is.Attempt != was.Attempt+1):
		return "a retry is another occurrence"
	case on == "fail" && waited && is.At().After(was.At()) && is.At().After(k.now.Add(maxFloor)):
		return "a failure postponed what waited behind it"
	case before.flight != nil && before.flight.Cancelled && k.flight == nil && on != "restart" && is != was:
		return "the answer had an effect after a DELETE"
	case on == "fail" && before.flight.Superseded && is != was && (before.flight.OwnCounter || !waited || !is.DueAt.Equal(was.DueAt) || is.Attempt != was.Attempt+1):
		return "the failure of what was superseded did more than count"
	case on == "restart" && was != nil && is == nil:
		return "a restart lost the key"
	case on == "restart" && was != nil && is.At().After(was.At()):
		return "a restart postponed the key"
	case on == "restart" && was != nil && was.DueAt.After(is.DueAt) && !is.dueAgainAt().Equal(was.DueAt):
		return "a restart took away the time of an event"
	case on == "succeed" && before.own() && !was.dueAgainAt().IsZero() && (is == nil || is.DueAt.After(was.dueAgainAt()) && is.DueAt.After(k.now)):
		return "the time of an event that came in behind a crash was not kept"
	}
	return ""
}

// step does something at random and says what; "" when there was nothing to do.
func (k *key) step(r *rand.Rand) string {
	switch r.IntN(10) {
	case 0, 1, 2:
		if k.start() {
			return "start"
		}
	case 3, 4, 5:
		if q := randomRequest(r, k.now); k.schedule(q, r.Float64()) {
			if q.Ingested && q.Policy == "" {
				return "event"
			}
			return "schedule"
		}
	case 6:
		k.cancel()
		return "cancel"
	case 7:
		if k.expire() {
			return "expire"
		}
	case 8:
		if k.flight != nil {
			return k.finish(randomOutcome(r))
		}
	case 9:
		if r.IntN(4) == 0 {
			k.restart()
			return "restart"
		}
	}
	return ""
}

func randomRequest(r *rand.Rand, now time.Time) *Request {
	q := &Request{}
	switch d := time.Duration(r.IntN(20)) * time.Second; r.IntN(4) {
	case 0:
		q.Backoff = &Backoff{Base: time.Second, Factor: 2, Cap: 10 * time.Second, MaxAttempts: uint32(r.IntN(4))}
	case 1:
		q.DueAt = now.Add(d - 5*time.Second)
	default:
		q.Delay = &d
	}
	if r.IntN(2) == 0 {
		q.Policy = policies[r.IntN(len(policies))]
	}
	if r.IntN(3) == 0 {
		q.Backoff, q.Ingested, q.Event = nil, true, ingestedEvent
		return q
	}
	if r.IntN(2) == 0 {
		q.ExpiresAt = now.Add(time.Duration(r.IntN(30)) * time.Second)
	}
	if r.IntN(4) == 0 {
		q.UID = string(rune('a' + r.IntN(2)))
	}
	return q
}

func randomOutcome(r *rand.Rand) Outcome {
	o := Outcome{Kind: OutcomeKind(r.IntN(4))}
	switch {
	case o.Kind == Succeeded && r.IntN(3) == 0:
		o.Again = &RescheduleAfter{After: time.Duration(r.IntN(20)) * time.Second}
	case o.Kind == Succeeded && r.IntN(3) == 0:
		o.Never = true
	case o.Kind == Failed && r.IntN(3) == 0:
		o.RetryAfter = time.Duration(r.IntN(10)) * time.Second
	case o.Kind != Aborted && r.IntN(3) == 0:
		o.Again = &RescheduleAfter{After: time.Duration(r.IntN(20)) * time.Second}
	}
	return o
}
