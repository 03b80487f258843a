package watch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// What decides which of two things about one object is newer, in random orders:
//
//   - Of a list and a watch the version decides: an older state never comes after a newer one, and none comes twice.
//   - After etcd was put back its state decides, also over higher versions.
//   - A resync is never newer: it changes no event and no setting of a key that there is.
//   - Of an object's event and a caller's PUT or DELETE the one decides that was accepted later. What a PUT has set
//     stays until the next PUT or DELETE, or until the object is made again. What other objects say changes nothing.
//   - A key ends by itself only if the newest thing about it is that its object is gone.
func TestNewer_WhatDecides(t *testing.T) {
	t.Parallel()
	histories(t, func(t *testing.T, seed uint64) {
		src := family()
		src.Watch.Resources[0].Changes = schedule.ChangesSpec // a generation may come again
		n := &newest{history: &history{env: newEnv(t, src), r: rand.New(rand.NewPCG(seed, 2))}}
		n.ordered = make(chan struct{}, 1)
		defer n.stop()
		n.play()
		if t.Failed() {
			t.Log(strings.Join(n.log, "\n"))
		}
	})
}

// newest is a history with callers, resyncs and restores.
type newest struct {
	*history
	puts   int
	epochs []int // how many wakes there were at each restore
	backs  []int // the versions that etcd was put back to
}

// most is how many versions a restore loses at least: more than follow it. As many changes would hide it.
const most = 200

func (n *newest) play() {
	n.start()
	running := true
	for range 60 {
		switch i := n.r.IntN(24); {
		case i < 7:
			n.touch()
		case i < 10:
			n.owned()
		case i < 12:
			n.call()
		case i == 12 && running:
			if _, err := n.m.Resync(n.t.Context(), n.src.UID, "", nil); err != nil {
				n.t.Error(err)
			}
			n.note("resync")
		case i == 13 && running && !n.api.down:
			n.putBack()
		case i == 14:
			n.api.cut()
		case i == 15:
			n.api.compact()
		case i == 16:
			n.api.set(func() { n.api.down = !n.api.down })
		case i == 17:
			n.api.set(func() { n.api.lags = n.r.IntN(lagAsks) })
		case i == 18 && running:
			n.note("stop")
			n.stop()
			running = false
		case i < 21:
			n.pass(time.Duration(n.r.Int64N(int64(10 * time.Minute))))
		default:
			n.pass(time.Duration(n.r.Int64N(int64(2 * time.Second))))
		}
		if !running && n.r.IntN(3) == 0 {
			n.note("start")
			n.start()
			running = true
		}
		if running {
			n.sameEntries()
		}
	}
	n.api.set(func() { n.api.down, n.api.lags = false, 0 })
	if !running {
		n.start()
	}
	n.pass(time.Hour)
	n.sameEntries()
	n.judge()
}

func (n *newest) touch() {
	path := "ops/" + strconv.Itoa(n.r.IntN(3))
	switch n.r.IntN(5) {
	case 0:
		n.api.remove("Website", path)
	case 1:
		if n.api.live["Website/"+path] != nil {
			n.api.put("Website", path, false)
		}
	default:
		n.api.put("Website", path, true)
	}
	n.note("touch %s: %d", path, n.api.version)
}

// owned makes, changes or removes an object that belongs to a website, and says any uid.
func (n *newest) owned() {
	i := strconv.Itoa(n.r.IntN(3))
	if n.r.IntN(4) == 0 {
		n.api.remove("Deployment", "ops/"+i)
	} else {
		n.api.put("Deployment", "ops/"+i, true, func(o *object) { o.owners = []any{ownerOf("example.com/v1", "Website", i)} })
	}
	n.note("owned by %s: %d", i, n.api.version)
}

// call is a caller's PUT or DELETE, once the adapter is idle.
func (n *newest) call() {
	synctest.Wait()
	if n.m == nil {
		return
	}
	key := "Website/ops/" + strconv.Itoa(n.r.IntN(3))
	w := wake{key: key, verb: "cancel"}
	if n.r.IntN(4) == 0 {
		if err := n.s.source.Cancel(key, schedule.Conditions{}); err != nil {
			n.t.Error(err)
		}
	} else {
		n.puts++
		w.verb, w.cause = "put", strconv.Itoa(n.puts)
		interval := time.Duration(n.puts) * time.Hour
		if _, err := n.s.source.Schedule(key, &schedule.Request{Delay: &interval, MaxInterval: &interval, Event: &schedule.Event{Type: "put", Subject: w.cause}}, nil); err != nil {
			n.t.Error(err)
		}
	}
	n.note("%s %s %s", w.verb, key, w.cause)
	n.mu.Lock()
	n.wakes = append(n.wakes, w)
	n.mu.Unlock()
}

// putBack puts etcd back to an older state, that loses more versions than will follow.
func (n *newest) putBack() {
	n.pass(2 * time.Minute) // it must see an earlier restore before so many changes hide it
	back := n.api.version
	for range 1 + n.r.IntN(4) {
		n.touch()
	}
	for range most {
		n.api.put("Node", "n", true)
	}
	n.pass(2 * time.Minute) // the adapter has seen them, if it could
	n.api.restore(back)
	n.mu.Lock()
	n.epochs, n.backs = append(n.epochs, len(n.wakes)), append(n.backs, back)
	n.mu.Unlock()
	n.note("put back to %d", back)
}

// entry is what a key must have.
type entry struct {
	event string
	ends  bool
	uid   string
	max   string // the PUT that set maxInterval
}

// after is the entry after a call or a report.
func (e *entry) after(w wake) *entry {
	news := &entry{event: w.says(), ends: w.verb == string(deleted) || w.final, uid: w.uid}
	switch {
	case w.verb == "cancel":
		return nil
	case w.verb == "put":
		return &entry{event: news.event, max: w.cause}
	case e == nil, w.uid != "" && e.uid != "" && w.uid != e.uid && !w.hearsay && w.reason != reasonResync: // no key, or another object
		return news
	case w.reason == reasonResync:
		news.event, news.ends = e.event, e.ends
	case w.final:
		news.ends = e.ends
	}
	news.max = e.max
	if news.uid == "" || w.hearsay && e.uid != "" {
		news.uid = e.uid
	}
	return news
}

// says is the event of a wake or a call.
func (w wake) says() string { return strings.Join([]string{w.verb, w.version, w.cause}, " ") }

// sameEntries compares the keys with what was called and reported, in its order.
func (n *newest) sameEntries() {
	synctest.Wait()
	n.mu.Lock()
	wakes := slices.Clone(n.wakes)
	n.mu.Unlock()
	want := map[string]*entry{}
	for _, w := range wakes {
		want[w.key] = want[w.key].after(w)
	}
	for key, e := range want {
		v, ok, err := n.s.source.Get(key)
		if err != nil {
			n.t.Fatal(err)
		}
		var got *entry
		if ok {
			got = &entry{ends: v.Event.Ends(), uid: v.UID}
			if v.MaxInterval != nil {
				got.max = strconv.Itoa(int(v.MaxInterval.Hours()))
			}
			says := wakeOf(v.Event)
			if says.verb == "put" {
				says.cause = v.Event.Subject
			}
			got.event = says.says()
		}
		if fmt.Sprint(got) != fmt.Sprint(e) {
			n.t.Fatalf("%s has %+v, want %+v", key, got, e)
		}
	}
}

// judge compares what woke the websites with the history of the API server.
func (n *newest) judge() {
	stamps, last := map[string]int{}, map[string]event{}
	for _, e := range n.api.history {
		if e.o.kind == "Website" {
			stamps[strconv.Itoa(e.version)], last["Website/"+e.o.path()] = e.o.stamp, e
		}
	}
	before := map[string]wake{}
	epoch := 0
	lastEpoch := map[string]int{}
	for i, w := range n.wakes {
		for epoch < len(n.epochs) && i >= n.epochs[epoch] {
			epoch++
		}
		if w.verb != string(added) && w.verb != string(updated) && w.verb != string(deleted) {
			continue
		}
		was, had := before[w.key]
		if had && lastEpoch[w.key] == epoch && was.version != "" && w.version != "" {
			a, _ := strconv.Atoi(was.version)
			switch b, _ := strconv.Atoi(w.version); {
			case b <= a && w.verb != string(deleted):
				n.t.Errorf("%s: version %d came after %d", w.key, b, a)
			case epoch == len(n.epochs) && stamps[w.version] == stamps[was.version] && w.verb != string(deleted) && was.verb != string(deleted):
				n.t.Errorf("%s: woke at version %d without a change since %d", w.key, b, a)
			}
		}
		before[w.key], lastEpoch[w.key] = w, epoch
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		w := before[key]
		e, exists := last[key]
		exists = exists && e.t != "DELETED"
		switch version, _ := strconv.Atoi(w.version); {
		case !exists && w.verb != string(deleted):
			n.t.Errorf("%s: its deletion is lost: %+v", key, w)
		case exists && (w.verb == string(deleted) || stamps[w.version] != e.o.stamp):
			n.t.Errorf("%s: its last change is lost: %+v, and it has %+v", key, w, e)
		case exists && lastEpoch[key] < len(n.backs) && version > slices.Min(n.backs[lastEpoch[key]:]):
			n.t.Errorf("%s: it was not scheduled since etcd was put back: %+v", key, w)
		}
		delete(last, key)
	}
	for key, e := range last {
		if e.t != "DELETED" {
			n.t.Errorf("%s was never scheduled", key)
		}
	}
	if s := n.status(); s.Status != schedule.WatchTrue {
		n.t.Errorf("status %+v", s)
	}
}
