package schedule

import (
	"testing"
	"time"
)

// What a request during a delivery does to that delivery: promises 5 and 6.
func TestSuperseded_IsNotRetried(t *testing.T) {
	t.Parallel()
	unfinishedAt := flyingKey.DueAt
	for _, p := range policies {
		explicit := p == Replace || p == Latest
		c := apply(t, put(soon, p), &flyingKey, true, &Spec{})
		if !c.Supersedes || !c.Entry.UnfinishedAt.IsZero() {
			t.Errorf("PUT with %s: after its 2xx nothing older is delivered, got %+v", p, c.Entry)
		}
		c = apply(t, event(soon, p), &flyingKey, true, &Spec{})
		if c.Supersedes != explicit {
			t.Errorf("event with %s: supersedes %v, want %v", p, c.Supersedes, explicit)
		}
		want := unfinishedAt
		if explicit {
			want = time.Time{}
		}
		if !c.Entry.UnfinishedAt.Equal(want) {
			t.Errorf("event with %s: unfinished %v, want %v", p, c.Entry.UnfinishedAt, want)
		}
	}

	// A second event behind the same delivery does not forget the first one's note.
	if c := apply(t, event(soon, Earliest), &behindKey, false, &Spec{}); !c.Entry.UnfinishedAt.Equal(behindKey.UnfinishedAt) || c.Supersedes {
		t.Errorf("a second event: %+v", c.Entry)
	}
	for name, r := range map[string]*Request{"a PUT": put(soon, Earliest), "an event that postpones": event(late, Latest)} {
		if c := apply(t, r, &behindKey, false, &Spec{}); !c.Entry.UnfinishedAt.IsZero() || !c.Supersedes {
			t.Errorf("%s after an event: %+v", name, c.Entry)
		}
	}
	if c := apply(t, event(soon, Earliest), &waitingKey, false, &Spec{}); !c.Entry.UnfinishedAt.IsZero() {
		t.Error("nothing is unfinished where nothing was in delivery")
	}
}

// A new event starts with no failures, so that it has all its retries. A PUT that merges without one is the same
// occurrence, whose attempts count.
func TestEvent_BetweenAttemptsHasRetriesOfItsOwn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		r    *Request
		cur  *Entry
		want uint32
	}{
		"an event between attempts":      {event(soon, Earliest), &betweenKey, 0},
		"an event during the delivery":   {event(soon, Earliest), &flyingKey, 0},
		"a second event behind it":       {event(soon, Earliest), &behindKey, 0},
		"an event that replaces":         {event(soon, Replace), &betweenKey, 0},
		"a PUT that merges":              {put(late, Earliest), &betweenKey, 2},
		"a PUT that replaces":            {put(soon, Replace), &betweenKey, 0},
		"a PUT during the delivery":      {put(soon, Earliest), &flyingKey, 0},
		"an event where nothing is left": {event(soon, Earliest), nil, 0},
	} {
		if got := apply(t, tc.r, tc.cur, tc.cur == &flyingKey, &Spec{}).Entry.Tries; got != tc.want {
			t.Errorf("%s: %d failures, want %d", name, got, tc.want)
		}
	}
}

// Another uid replaces under each policy.
func TestUID_AnotherReplacesUnderEachPolicy(t *testing.T) {
	t.Parallel()
	stored := waitingKey
	stored.UID, stored.Reason = "old", "because"
	for _, p := range append([]Policy{""}, policies...) {
		r := put(late, p)
		r.UID = "new"
		c := apply(t, r, &stored, false, &Spec{Policy: Fail})
		if c.Result != Replaced || !c.Entry.DueAt.Equal(t0.Add(late)) || c.Entry.UID != "new" || c.Entry.Reason != "" || !c.NewObject || !c.Supersedes {
			t.Errorf("policy %q: %s, %+v", p, c.Result, c.Entry)
		}
	}
	flying := flyingKey
	flying.UID = "old"
	r := put(late, Keep)
	r.UID = "new"
	if c := apply(t, r, &flying, true, &Spec{}); c.Result != Created || !c.NewObject {
		t.Errorf("in flight: %s, new object %v", c.Result, c.NewObject)
	}

	for name, uids := range map[string][2]string{"the same uid": {"u", "u"}, "no uid": {"u", ""}, "no stored uid": {"", "u"}} {
		e := waitingKey
		e.UID = uids[0]
		r := put(late, Earliest)
		r.UID = uids[1]
		if c := apply(t, r, &e, false, &Spec{}); c.Result != Merged || c.NewObject || c.Entry.UID != "u" {
			t.Errorf("%s: %s, uid %q, new object %v", name, c.Result, c.Entry.UID, c.NewObject)
		}
	}
}

// Conditions are checked before anything else.
func TestConditions_AreCheckedFirst(t *testing.T) {
	t.Parallel()
	five, four := uint64(5), uint64(4)
	withUID := waitingKey
	withUID.UID = "u"
	for name, tc := range map[string]struct {
		c    Conditions
		cur  *Entry
		miss bool
	}{
		"none, absent":                         {Conditions{}, nil, false},
		"none, there":                          {Conditions{}, &waitingKey, false},
		"If-Match hits":                        {Conditions{IfMatch: &five}, &waitingKey, false},
		"If-Match misses":                      {Conditions{IfMatch: &four}, &waitingKey, true},
		"If-Match on an absent key":            {Conditions{IfMatch: &five}, nil, true},
		"If-Match zero on an absent key":       {Conditions{IfMatch: new(uint64)}, nil, true},
		"If-None-Match hits":                   {Conditions{IfNoneMatch: true}, nil, false},
		"If-None-Match misses":                 {Conditions{IfNoneMatch: true}, &waitingKey, true},
		"both, there":                          {Conditions{IfMatch: &five, IfNoneMatch: true}, &waitingKey, true},
		"both, absent":                         {Conditions{IfMatch: &five, IfNoneMatch: true}, nil, true},
		"uid hits":                             {Conditions{IfUID: "u"}, &withUID, false},
		"uid misses":                           {Conditions{IfUID: "other"}, &withUID, true},
		"uid on a key without":                 {Conditions{IfUID: "u"}, &waitingKey, true},
		"uid on an absent key":                 {Conditions{IfUID: "u"}, nil, false},
		"If-Match hits and uid misses":         {Conditions{IfMatch: &five, IfUID: "other"}, &withUID, true},
		"If-Match and uid hit":                 {Conditions{IfMatch: &five, IfUID: "u"}, &withUID, false},
		"If-Match on an absent key and an uid": {Conditions{IfMatch: &five, IfUID: "u"}, nil, true},
	} {
		err := tc.c.Check("k", tc.cur)
		if (err != nil) != tc.miss || tc.miss && code(err) != CodePrecondition {
			t.Errorf("%s: %v, want a miss: %v", name, err, tc.miss)
		}
	}

	// before the policy, the counter and a new uid
	for name, r := range map[string]*Request{
		"fail":      {Policy: Fail, Conditions: Conditions{IfMatch: &four}},
		"keep":      {Policy: Keep, Conditions: Conditions{IfNoneMatch: true}},
		"exhausted": {Backoff: &Backoff{MaxAttempts: 1}, Policy: Replace, Conditions: Conditions{IfMatch: &four}},
		"new uid":   {UID: "other", Conditions: Conditions{IfMatch: &four}},
	} {
		if _, err := r.Apply(inputs(&Spec{}), &withUID, false); code(err) != CodePrecondition {
			t.Errorf("%s: %v, want %s", name, err, CodePrecondition)
		}
	}
	// and also of what is in delivery
	r := &Request{Policy: Replace, Conditions: Conditions{IfNoneMatch: true}}
	if _, err := r.Apply(inputs(&Spec{}), &flyingKey, true); code(err) != CodePrecondition {
		t.Errorf("If-None-Match of a key in delivery: %v", err)
	}
}
