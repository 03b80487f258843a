package recent

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

var t0 = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

func at(n int) time.Time { return t0.Add(time.Duration(n) * time.Second) }

// A busy namespace costs a quiet one nothing, and the bytes stay within their bound.
func TestHistory_FairWithinItsBound(t *testing.T) {
	t.Parallel()
	const most = 64 << 10
	h := NewHistory(most, t0)
	h.Add("quiet", "q", "k", Outcome{At: at(1), Result: "delivered", Cause: "v1/Secret/a/b"})
	for i := range 20_000 {
		h.Add("busy", "b", fmt.Sprint("k", i%500), Outcome{At: at(i), Result: "retrying", Cause: strings.Repeat("c", 1000)})
		if h.used > most {
			t.Fatalf("%d bytes after %d outcomes", h.used, i)
		}
	}
	got, since := h.Get("quiet", "q", "k")
	if len(got) != 1 || got[0].Cause != "v1/Secret/a/b" || !since.Equal(t0) {
		t.Errorf("of the quiet namespace: %+v since %s", got, since)
	}
	got, since = h.Get("busy", "b", "k499")
	if len(got) == 0 || !got[0].At.Equal(at(19_999)) || !since.After(at(19_000)) || len(got[0].Cause) > maxCause {
		t.Errorf("of the busy one: %d since %s", len(got), since)
	}
	if got, _ := h.Get("busy", "another", "k499"); got != nil {
		t.Errorf("of another source: %+v", got)
	}
	used := 0
	for _, c := range h.keys {
		used += keyBytes + len(c.name.key) + c.stalePlaces*placeBytes
		for _, o := range c.outcomes {
			used += outcomeBytes + len(o.Cause)
		}
	}
	if used != h.used {
		t.Errorf("%d bytes are counted, there are %d", h.used, used)
	}
}

// Of one key the newest outcomes are known, and since when.
func TestHistory_NewestOfAKey(t *testing.T) {
	t.Parallel()
	h := NewHistory(HistoryBytes, t0)
	for i := range 3 * perKey {
		h.Add("ns", "s", "k", Outcome{At: at(i)})
	}
	got, since := h.Get("ns", "s", "k")
	if len(got) != perKey || !got[0].At.Equal(at(3*perKey-1)) || !got[perKey-1].At.Equal(at(2*perKey)) || !since.Equal(at(2*perKey-1)) {
		t.Errorf("%d from %s to %s, since %s", len(got), got[0].At, got[len(got)-1].At, since)
	}
	h.most = 0
	h.Add("ns", "s", "k", Outcome{At: at(1000)})
	if len(h.keys) != 0 || len(h.of) != 0 || h.used != 0 {
		t.Errorf("%d keys, %d namespaces, %d bytes are left", len(h.keys), len(h.of), h.used)
	}
}

func numbers(events []Event) (out string) {
	for _, e := range events {
		out += fmt.Sprint(" ", e.Revision)
	}
	return out
}

// An event of an earlier queue of the same process, as of an earlier tenure, is not known.
func TestFeed_EventOfAnEarlierQueue(t *testing.T) {
	t.Parallel()
	var before, after FeedRef
	earlier, later := NewFeeds(), NewFeeds()
	first, _ := earlier.Follow(&before, 0, false)
	second, _ := later.Follow(&after, 0, false)
	for range 10 {
		before.Feed().Add(Event{})
		after.Feed().Add(Event{})
	}
	first.Next(nil, 10)
	resumed, whole := later.Follow(&after, first.Last(), true)
	if got, _, _, _ := resumed.Next(nil, 20); whole || len(got) != 10 {
		t.Errorf("whole: %v, %d events of 10", whole, len(got))
	}
	if second.Last() == first.Last() {
		t.Error("two queues give out the same numbers")
	}
}

// A follower gets each event once, and goes on where it left.
func TestFeed_GoesOnWhereItLeft(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ref FeedRef
		all := NewFeeds()
		if ref.Feed() != nil {
			t.Fatal("a source without a follower has a feed")
		}
		w, whole := all.Follow(&ref, 0, false)
		add := func(n uint64) { ref.Feed().Add(Event{Revision: n}) }
		add(1)
		add(2)
		got, more, slow, ended := w.Next(nil, 1)
		if numbers(got) != " 1" || !whole || slow || ended {
			t.Fatalf("%v %v %v %v", got, whole, slow, ended)
		}
		left := w.Last()
		w.Close()
		add(3)
		<-more
		w, whole = all.Follow(&ref, left, true)
		if got, _, _, _ = w.Next(nil, 10); numbers(got) != " 2 3" || !whole {
			t.Errorf("%v %v", numbers(got), whole)
		}
		w.Close()
		for _, unknown := range []uint64{0, 1, left + 100} {
			w, whole = all.Follow(&ref, unknown, true)
			if got, _, _, _ = w.Next(nil, 10); numbers(got) != " 1 2 3" || whole {
				t.Errorf("after %d: %v %v", unknown, numbers(got), whole)
			}
			w.Close()
		}
		time.Sleep(linger - time.Second)
		if all.Tidy(); ref.Feed() == nil {
			t.Error("the feed is gone before its time")
		}
		time.Sleep(time.Second)
		if all.Tidy(); ref.Feed() != nil {
			t.Error("the feed is there after its time")
		}
		if w, whole = all.Follow(&ref, left, true); whole {
			t.Error("an event of an older feed is known")
		}
		all.End(&ref)
		if _, _, _, ended := w.Next(nil, 1); !ended {
			t.Error("the feed of a removed source goes on")
		}
		w.Close()
	})
}

// A feed takes a bounded number of bytes: a follower who is slower is cut off.
func TestFeed_SlowFollowerIsCutOff(t *testing.T) {
	t.Parallel()
	var ref FeedRef
	w, _ := NewFeeds().Follow(&ref, 0, false)
	key := strings.Repeat("k", 512)
	for i := range 10_000 {
		ref.Feed().Add(Event{Key: key, Revision: uint64(i)})
	}
	f := ref.Feed()
	if f.used > ringBytes || len(f.events) > ringBytes/(eventBytes+len(key)) {
		t.Errorf("%d bytes of %d events", f.used, len(f.events))
	}
	if _, _, slow, _ := w.Next(nil, 1); !slow {
		t.Error("the follower is not cut off")
	}
}

// There is a bounded number of feeds: one that was left gives way, one that is followed does not.
func TestFeeds_AreBounded(t *testing.T) {
	t.Parallel()
	all := NewFeeds()
	refs := make([]FeedRef, maxFeeds+1)
	var first *Follower
	for i := range maxFeeds {
		w, _ := all.Follow(&refs[i], 0, false)
		if i == 0 {
			first = w
		}
	}
	if w, _ := all.Follow(&refs[maxFeeds], 0, false); w != nil {
		t.Error("one feed too many")
	}
	first.Close()
	if w, _ := all.Follow(&refs[maxFeeds], 0, false); w == nil || refs[0].Feed() != nil {
		t.Error("a feed that was left did not give way")
	}
}
