package group

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// A member joins only once the others have said all, whatever they are called: one that was
// named admitted was waited for, and taken for the verdict.
func TestAdmission_MemberNamedAdmitted(t *testing.T) {
	t.Parallel()
	m, err := Open(Config{DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Settings: Settings{
		Member: "a", peers: map[string]string{"a": "127.0.0.1:1", "admitted": "127.0.0.1:2", "replaceable": "127.0.0.1:3"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	empty, full := admission{Attempt: "1"}, admission{Attempt: "1", Applied: 1, Store: "x"}
	joined, asking := admission{Joined: true, Applied: 7, Store: "x"}, admission{Attempt: "1", Asking: true}
	ownVote, fullVote, joining := admission{OwnVote: true}, admission{OwnVote: true, Applied: 1, Store: "x"}, admission{}
	begun, left := admission{Joined: true}, admission{Attempt: "1", Asking: true, Applied: 7, Store: "x"}
	for _, test := range []struct {
		answers map[string]admission
		want    verdict
		wait    string
	}{
		{nil, waiting, "admitted and replaceable"},
		{map[string]admission{"replaceable": empty}, waiting, "admitted"},
		{map[string]admission{"admitted": empty}, waiting, "replaceable"},
		{map[string]admission{"admitted": empty, "replaceable": empty}, admitted, ""},
		{map[string]admission{"admitted": asking, "replaceable": asking}, admitted, ""},
		// A group begins with what one of them has, also where that one has joined meanwhile.
		{map[string]admission{"admitted": full, "replaceable": empty}, behind, "the other members"},
		{map[string]admission{"admitted": full, "replaceable": full}, behind, "the other members"},
		{map[string]admission{"admitted": joined, "replaceable": joined}, behind, "the other members"},
		{map[string]admission{"admitted": full}, waiting, "replaceable"},
		// In a group that has begun this member may have promised something before it lost its disk.
		{map[string]admission{"admitted": joined, "replaceable": empty}, waiting, "replaceable"},
		{map[string]admission{"admitted": begun, "replaceable": begun}, replaceable, "the other members"},
		// It may have joined with the vote of the member that was asking before.
		{map[string]admission{"admitted": joined, "replaceable": asking}, waiting, "replaceable"},
		// A member that has voted for itself alone has promised nothing to another one, and has no majority without one.
		{map[string]admission{"admitted": ownVote, "replaceable": asking}, admitted, ""},
		{map[string]admission{"admitted": ownVote, "replaceable": empty}, admitted, ""},
		{map[string]admission{"admitted": fullVote, "replaceable": asking}, behind, "the other members"},
		{map[string]admission{"admitted": ownVote, "replaceable": full}, behind, "the other members"},
		{map[string]admission{"admitted": ownVote}, waiting, "replaceable"},
		// Two with a log have a majority: they join without this member.
		{map[string]admission{"admitted": ownVote, "replaceable": ownVote}, waiting, "the other members"},
		{map[string]admission{"admitted": ownVote, "replaceable": joining}, waiting, "replaceable"},
		{map[string]admission{"admitted": joining, "replaceable": asking}, waiting, "admitted"},
		// It took part in the round before, and its log was removed, to begin a new group.
		{map[string]admission{"admitted": left, "replaceable": asking}, behind, "the other members"},
	} {
		before := map[string]admission{} // the round in which a member joined is its first one here
		if !test.answers["admitted"].Joined {
			before["admitted"] = joined
		}
		if got, wait, err := m.joining.judge(test.answers, before, nil, false); got != test.want || wait != test.wait || err != nil {
			t.Errorf("%v: %v, %q, %v", test.answers, got, wait, err)
		}
	}
}

// peer serves what another member answers at its port for members, and returns the address of its log, one port below.
func peer(t *testing.T, h http.HandlerFunc) string {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	at := netip.MustParseAddrPort(server.Listener.Addr().String())
	return netip.AddrPortFrom(at.Addr(), at.Port()-1).String()
}

// Two members that have lost their disks both end with that reason. Member c could end while b was starting. Then b
// did not know that the disk of c was empty too, and waited for c.
func TestAdmission_BothEmptyMembersEnd(t *testing.T) {
	t.Parallel()
	var b atomic.Pointer[http.HandlerFunc]
	says := func(a admission) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(a) }
	}
	hangUp := func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
	settings := Settings{Member: "c", peers: map[string]string{
		"a": peer(t, says(admission{Joined: true, Applied: 7, Store: "x", Marks: map[string]uint64{"b": 1, "c": 1}})),
		"b": peer(t, func(w http.ResponseWriter, r *http.Request) { (*b.Load())(w, r) }),
		"c": "127.0.0.1:1",
	}}
	var m *Member
	// A round has the answer of b, and whether c ends.
	type round struct {
		b    http.HandlerFunc
		ends bool
	}
	empty := says(admission{Attempt: "1"})
	begins := func(w http.ResponseWriter, r *http.Request) { // b does not answer yet, and asks
		call := httptest.NewRequestWithContext(r.Context(), http.MethodGet, admissionPath+"?empty=b", http.NoBody)
		m.joining.answerAdmission(httptest.NewRecorder(), call)
		hangUp(w, r)
	}
	for name, rounds := range map[string][]round{
		"b asks while it is asked": {{begins, false}, {empty, true}},
		"b ends after its answer":  {{empty, true}, {hangUp, true}},
		"b ends after it asked":    {{begins, false}, {hangUp, true}},
		"b has joined meanwhile":   {{begins, false}, {says(admission{Joined: true, Applied: 7, Store: "x"}), false}, {hangUp, false}},
		"b was never seen":         {{hangUp, false}, {hangUp, false}},
	} {
		var err error
		if m, err = Open(Config{DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Settings: settings}); err != nil {
			t.Fatal(err)
		}
		m.peers.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		for i, round := range rounds {
			b.Store(&round.b)
			answers, gone, silent := m.joining.askOthers(t.Context())
			_, _, err := m.joining.judge(answers, nil, gone, false)
			if errors.Is(err, errLostMajority) != round.ends || err != nil && !round.ends {
				t.Errorf("%s, round %d: %v; no answer: %v", name, i, err, silent)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A member that is asking while others take part joins once both do, in its own place. It was admitted under its old
// name, which etcd refused at each start if it had lost its disk. That one other was still asking before the second one
// took part, in the same round of questions, is no lost disk.
func TestAdmission_GroupThatHasBegun(t *testing.T) {
	t.Parallel()
	asking, opening, joined := admission{Attempt: "1", Asking: true}, admission{Attempt: "1"}, admission{Joined: true, Group: "g"}
	rounds := map[string][]admission{"a": {asking, opening, joined}, "b": {joined, joined, joined}}
	settings := Settings{Member: "c", peers: map[string]string{"c": "127.0.0.1:1"}}
	var replaced atomic.Bool
	for name, answers := range rounds {
		round := 0
		settings.peers[name] = peer(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				replaced.Store(true)
				return
			}
			_ = json.NewEncoder(w).Encode(answers[min(round, len(answers)-1)])
			round++ // one call at a time
		})
	}
	m, err := Open(Config{DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Settings: settings})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	m.peers.client = &http.Client{Transport: &http.Transport{}}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if inPlace, err := m.joining.admit(ctx); !inPlace || err != nil || !replaced.Load() {
		t.Errorf("in its own place: %v, %v; the others were asked: %v", inPlace, err, replaced.Load())
	}
}

// Two members that lost their disks before there was a record of one of them, or of both, took themselves for new ones.
// With a record of b, member c waited for b without an end; with none, both took part under their old names, without
// what they had promised. One that finds it out tells the other.
func TestAdmission_UnrecordedMembersEnd(t *testing.T) {
	t.Parallel()
	for name, third := range map[string]admission{
		"one has a record":             {Joined: true, Applied: 7, Store: "x", Marks: map[string]uint64{"b": 1}},
		"none has a record":            {Joined: true, Applied: 7, Store: "x"},
		"nor is there anything stored": {Joined: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bothEnd(t, third)
		})
	}
}

// bothEnd starts b and c without logs beside a member a that gives the answer.
func bothEnd(t *testing.T, third admission) {
	members := map[string]*Member{}
	settings := Settings{peers: map[string]string{}}
	settings.peers["a"] = peer(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != admissionPath {
			http.Error(w, "no copy", http.StatusServiceUnavailable)
			return
		}
		_ = json.NewEncoder(w).Encode(third)
	})
	for _, name := range []string{"b", "c"} {
		settings.peers[name] = peer(t, func(w http.ResponseWriter, r *http.Request) { members[name].joining.answerAdmission(w, r) })
	}
	for _, name := range []string{"b", "c"} {
		settings.Member = name
		m, err := Open(Config{DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Settings: settings})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = m.Close() })
		m.peers.client = &http.Client{Transport: &http.Transport{}}
		members[name] = m
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var both sync.WaitGroup
	for name, m := range members {
		both.Go(func() {
			if _, err := m.joining.admit(ctx); !errors.Is(err, errLostMajority) {
				t.Errorf("%s: %v, want that a majority is lost", name, err)
			}
		})
	}
	both.Wait()
}

// A member that begins with data of the history with which its group began may join, also once that group has a history
// of its own. Data of the earlier group beyond that entry is refused: the views would differ.
func TestAdmission_DataOfTheEarlierGroup(t *testing.T) {
	t.Parallel()
	m := newThird(t, nil, nil)
	owned := &ownView{m.view.get()}
	db, err := owned.View.Own(owned)
	if err == nil {
		err = errors.Join(db.SetHistory("x"), db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	at := m.view.Applied()
	for name, test := range map[string]struct {
		other   admission
		refused bool
	}{
		"the same history":                {admission{Store: "x", Applied: at}, false},
		"the group began with the data":   {admission{Store: "y", Applied: at + 9, Before: "x", Begun: at}, false},
		"the group began with less":       {admission{Store: "y", Applied: at + 9, Before: "x", Begun: at - 1}, true},
		"the group began with other data": {admission{Store: "y", Applied: at + 9, Before: "z", Begun: at}, true},
	} {
		test.other.Joined, test.other.Group = true, "g"
		_, _, err := m.joining.judge(map[string]admission{"a": test.other, "b": test.other}, nil, nil, false)
		if (err != nil) != test.refused {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// ownView is the log of a group of one.
type ownView struct{ *store.View }

func (l *ownView) Append(batch []byte) error { return l.Apply(l.Applied()+1, batch) }
func (l *ownView) Valid() bool               { return true }

// MostDisks implements store.Log.
func (*ownView) MostDisks(func(store.Disk) bool) bool { return true }

// Full implements store.Log.
func (*ownView) Full() bool { return false }

// A restored member beside one that had the log of the old group ended as with two lost disks, and did not name that member.
func TestAdmission_RestoredBesideAnOldLog(t *testing.T) {
	t.Parallel()
	m := newThird(t, nil, nil)
	answers := map[string]admission{"a": {Attempt: "1"}, "b": {Group: "old", Marks: map[string]uint64{"c": 3}}}
	_, _, err := m.joining.judge(answers, nil, nil, false)
	if !errors.Is(err, errLostMajority) || strings.Contains(err.Error(), "member b") {
		t.Error("without data it has lost its disk:", err)
	}
	restored := &joining{cfg: &m.cfg, view: appliedView(t, vfs.Default, 4)}
	if _, _, err := restored.judge(answers, nil, nil, false); !errors.Is(err, errLostMajority) || !strings.Contains(err.Error(), "empty the directory of member b") {
		t.Error(err)
	}
	if got := states(answers, []string{"a", "b", "d"}); !slices.Equal(got, []string{"a has no log", "b has a log", "d does not answer"}) {
		t.Error(got)
	}
}
