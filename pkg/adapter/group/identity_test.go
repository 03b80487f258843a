package group

import (
	"encoding/json"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

// newThird returns the member c of a group, and its directory. The others give the answers.
func newThird(t *testing.T, a, b *admission) *Member {
	t.Helper()
	says := func(of *admission) string {
		return peer(t, func(w http.ResponseWriter, _ *http.Request) {
			if of == nil {
				panic(http.ErrAbortHandler)
			}
			_ = json.NewEncoder(w).Encode(*of)
		})
	}
	m, err := Open(Config{DataDir: t.TempDir(), Log: slog.New(slog.DiscardHandler), Settings: Settings{
		Member: "c", peers: map[string]string{"a": says(a), "b": says(b), "c": "127.0.0.1:1"},
		PromiseOf: func(string) (replica.Promise, error) { return replica.More, nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	m.peers.client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return m
}

// A member with the log of a group that was replaced by a restored one ends, and says what to do. It had the longer log,
// took the others over with it, and the keys that the restored group had acknowledged were gone.
func TestStart_LogOfAnotherGroup(t *testing.T) {
	t.Parallel()
	foreign, foreignJoined := admission{Group: "new"}, admission{Group: "new", Joined: true}
	alike, third := admission{Group: "old"}, admission{Group: "third"}
	for name, test := range map[string]struct {
		a, b    *admission
		refuses bool
	}{
		"both are of another group":          {&foreign, &foreign, true},
		"one takes part in another group":    {&foreignJoined, nil, true},
		"the other one is the old disk":      {&alike, &foreignJoined, false},
		"one has not joined, and one is new": {&foreign, nil, false},
		"neither answers":                    {nil, nil, false},
		"a first start":                      {&admission{Attempt: "1"}, &admission{Attempt: "1"}, false},
		"three groups":                       {&foreignJoined, &third, true},
	} {
		m := newThird(t, test.a, test.b)
		if err := errors.Join(m.joining.dir.writeIdentity("old"), os.Mkdir(m.joining.dir.file("member"), 0o700)); err != nil {
			t.Fatal(err)
		}
		_, err := m.joining.admit(t.Context())
		if errors.Is(err, errForeign) != test.refuses || err != nil && !test.refuses {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil && (!strings.Contains(err.Error(), "old") || !strings.Contains(err.Error(), "new") || !strings.Contains(err.Error(), "empty the directory of member c")) {
			t.Errorf("%s: it does not name both ids and the cure: %v", name, err)
		}
		if has, err := m.joining.dir.has("member"); !has || err != nil {
			t.Errorf("%s: its log is gone: %v", name, err)
		}
	}
}

// A member whose disk went back to an earlier state, as of a snapshot of its volume, removes its log and joins anew. It
// took part without what it had promised, or etcd panicked at each start.
func TestStart_DiskWentBack(t *testing.T) {
	t.Parallel()
	for mark, joinsAnew := range map[uint64]bool{0: false, 1: true} {
		m := newThird(t, &admission{Group: "g", Joined: true, Marks: map[string]uint64{"c": mark}}, &admission{Group: "g", Joined: true})
		if err := errors.Join(m.joining.dir.writeIdentity("g"), os.Mkdir(m.joining.dir.file("member"), 0o700)); err != nil {
			t.Fatal(err)
		}
		replaces, err := m.joining.admit(t.Context())
		if replaces != joinsAnew || err != nil {
			t.Errorf("its view was at entry %d: it joins anew: %v, %v", mark, replaces, err)
		}
		if has, err := m.joining.dir.has("member"); has == joinsAnew || err != nil {
			t.Errorf("its view was at entry %d: it has its log: %v, %v", mark, has, err)
		}
		if id, err := m.joining.dir.readIdentity(); id != "g" || err != nil {
			t.Errorf("it is of group %q, %v", id, err)
		}
	}
}

// A member whose part of the log is damaged ended at each start, and its log said that everything is there after a
// restart. It joins anew once both others take part. Until then it keeps its log, and says what to do.
func TestStart_LogIsDamaged(t *testing.T) {
	t.Parallel()
	joined, other := &admission{Group: "g", Joined: true, Marks: map[string]uint64{"c": 0}}, &admission{Group: "g"}
	for name, test := range map[string]struct {
		b         *admission
		joinsAnew bool
	}{"both take part": {joined, true}, "one does not take part": {other, false}, "one is away": {nil, false}} {
		m := newThird(t, joined, test.b)
		m.cfg.PromiseOf = func(string) (replica.Promise, error) { return replica.More, replica.ErrDamaged }
		if err := errors.Join(m.joining.dir.writeIdentity("g"), os.Mkdir(m.joining.dir.file("member"), 0o700)); err != nil {
			t.Fatal(err)
		}
		replaces, err := m.joining.admit(t.Context())
		if has, _ := m.joining.dir.has("member"); replaces != test.joinsAnew || has == test.joinsAnew {
			t.Errorf("%s: it joins anew: %v; it has its log: %v: %v", name, replaces, has, err)
		}
		if (err == nil) != test.joinsAnew || err != nil && !strings.Contains(err.Error(), "empty the directory of member c") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A changed byte of the identity was not noticed where all members start at once: an owner with it began another history.
func TestStart_IdentityIsDamaged(t *testing.T) {
	t.Parallel()
	m := newThird(t, nil, nil)
	if err := errors.Join(m.joining.dir.writeIdentity("group"), os.Mkdir(m.joining.dir.file("member"), 0o700)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(m.joining.dir.file("identity"))
	if err != nil {
		t.Fatal(err)
	}
	text[3] ^= 1
	if err := os.WriteFile(m.joining.dir.file("identity"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.joining.admit(t.Context()); !errors.Is(err, errIdentity) || !strings.Contains(err.Error(), "empty the directory of member c") {
		t.Error("it starts:", err)
	}
	if has, err := m.joining.dir.has("member"); !has || err != nil {
		t.Error("its log is gone:", err)
	}
}

// A member that finds out that its disk went back once its log can be read, since the others did not take part before,
// ends, and the next start joins anew. While only one other member takes part it goes on: the log may need it.
func TestStart_WentBackFoundOutLate(t *testing.T) {
	t.Parallel()
	for both, ends := range map[bool]bool{true: true, false: false} {
		a, b := &admission{Group: "g", Joined: true, Marks: map[string]uint64{"c": 1}}, (*admission)(nil)
		if both {
			b = a
		}
		m, id := newThird(t, a, b), "g"
		log := replicatest.NewMemory(rand.New(rand.NewPCG(1, 2)), replicatest.Faults{}).Member()
		if err := log.Mark(t.Context(), "c", 1); err != nil {
			t.Fatal(err)
		}
		m.joining.identity.Store(&id)
		m.stage.engine.Store(&engine{log: readyLog{}, entries: log})
		if err := m.joining.awaitLog(t.Context()); errors.Is(err, replica.ErrSetBack) != ends || err != nil && !ends {
			t.Errorf("both others take part: %v: %v", both, err)
		}
	}
}

// All members of a first start take one id, also where one of them was cut off in between: the first one by name
// proposes it from its disk, and a member that has taken an id hands it on.
func TestStart_MembersTakeOneID(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		a, b admission
		want string
	}{
		"the first one proposes": {admission{Proposes: "x"}, admission{Proposes: "y"}, "x"},
		"one has taken it":       {admission{Proposes: "x"}, admission{Group: "z"}, "z"},
	} {
		m := newThird(t, nil, nil)
		own, err := m.joining.dir.propose()
		if again, e := m.joining.dir.propose(); own == "" || again != own || err != nil || e != nil {
			t.Errorf("%s: it proposes %q, and then %q: %v, %v", name, own, again, err, e)
		}
		m.joining.proposes.Store(&own)
		if err := m.joining.takeIdentity(map[string]admission{"a": test.a, "b": test.b}); err != nil || *m.joining.identity.Load() != test.want {
			t.Errorf("%s: %q, %v", name, *m.joining.identity.Load(), err)
		}
		if id, err := m.joining.dir.readIdentity(); id != test.want || err != nil {
			t.Errorf("%s: on disk it is %q, %v", name, id, err)
		}
	}
	if err := differ(map[string]admission{"a": {Group: "x"}, "b": {Group: "y"}}); err == nil || !strings.Contains(err.Error(), "group x") || !strings.Contains(err.Error(), "group y") {
		t.Error("two groups:", err)
	}
}

// The removal of a log that went back was cut off after the file identity: each later start refused the log without it.
func TestStart_RemovalIsCutOff(t *testing.T) {
	t.Parallel()
	m := newThird(t, &admission{Group: "g", Joined: true, Marks: map[string]uint64{"c": 1}}, &admission{Group: "g", Joined: true})
	if err := errors.Join(m.joining.dir.writeIdentity("g"), os.Mkdir(m.joining.dir.file("member"), 0o700)); err != nil {
		t.Fatal(err)
	}
	goesOn, err := m.joining.goOn(t.Context(), nil)
	joining, e := m.joining.dir.has("joining")
	if goesOn || !joining || err != nil || e != nil {
		t.Errorf("it goes on: %v; it is marked that it joins anew: %v; %v, %v", goesOn, joining, err, e)
	}
	if err := errors.Join(os.RemoveAll(m.joining.dir.file("identity")), os.MkdirAll(m.joining.dir.file("member"), 0o700)); err != nil {
		t.Fatal(err)
	}
	replaces, err := m.joining.admit(t.Context())
	if has, e := m.joining.dir.has("member"); !replaces || has || err != nil || e != nil {
		t.Errorf("it joins anew: %v; it has its log: %v; %v, %v", replaces, has, err, e)
	}
}

// A member with a copy of another member's directory ends, and says what to do. It took part as that member: two
// processes were one member of the log.
func TestStart_DirectoryOfAnotherMember(t *testing.T) {
	t.Parallel()
	for _, joining := range []bool{false, true} {
		m := newThird(t, nil, nil)
		m.joining.dir.member = "b"
		if err := errors.Join(m.joining.dir.writeIdentity("g"), os.Mkdir(m.joining.dir.file("member"), 0o700)); err != nil {
			t.Fatal(err)
		}
		if joining {
			if err := m.joining.dir.setJoining(); err != nil {
				t.Fatal(err)
			}
		}
		m.joining.dir.member = "c"
		if _, err := m.joining.admit(t.Context()); err == nil || !strings.Contains(err.Error(), `is the directory of member "b", and this is member c`) {
			t.Errorf("joining: %v: %v", joining, err)
		}
		if has, err := m.joining.dir.has("member"); !has || err != nil {
			t.Errorf("joining: %v: the log is gone: %v", joining, err)
		}
	}
}
