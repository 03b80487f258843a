package inspect

import (
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

var t0 = time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC)

func waiting(revision uint64) *schedule.Entry {
	at := t0.Add(time.Duration(revision) * time.Minute)
	return &schedule.Entry{Revision: revision, Occurrence: revision, ScheduledAt: t0, DueAt: at}
}

// filled makes a directory with three keys and a dead letter of one source and
// a key of another, as inspect is to show them.
func filled(t *testing.T) (dir string, db *store.DB, dumps map[string]store.Dump) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "data")
	db, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	event := waiting(2)
	event.Event = &schedule.Event{Type: "t", Extensions: map[string]any{"team": "a<b"}, Data: []byte("{}")}
	letter := waiting(5)
	letter.DeadLetter = &schedule.DeadLetter{
		Key: "ns/a", Due: t0, ID: "id", Attempt: 3, Revision: 4,
		Failure: schedule.Failure{Dest: "http://sink/", Code: 503, Data: []byte("busy")},
	}
	dumps = map[string]store.Dump{}
	for _, c := range []store.Change{
		{Source: "default/demo", Key: "ns/a", New: waiting(1)}, {Source: "default/demo", Key: "ns/b", New: event},
		{Source: "default/demo", Key: "other", New: waiting(3)}, {Source: "default/two", Key: "ns/a", New: waiting(4)},
		{Source: "default/demo", Key: schedule.DeadLetterKey(5), New: letter},
	} {
		commit, err := db.Apply(false, c)
		if err != nil {
			t.Fatal(err)
		}
		if err := commit.Wait(); err != nil {
			t.Fatal(err)
		}
		key, name := c.Key, c.Source+" "+c.Key
		if c.New.DeadLetter != nil {
			key, name = c.New.DeadLetter.Key, "dead letter"
		}
		dumps[name] = store.NewDump(c.Source, key, c.New, db.ID())
	}
	return dir, db, dumps
}

func closed(t *testing.T, db *store.DB) {
	t.Helper()
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

// run returns what the tool says.
func run(args ...string) (code int, stdout, stderr string) {
	var out, errs strings.Builder
	code = Main(args, &out, &errs)
	return code, out.String(), errs.String()
}

// decode reads a stream of JSON values.
func decode[T any](t *testing.T, s string) []T {
	t.Helper()
	var all []T
	d := json.NewDecoder(strings.NewReader(s))
	d.DisallowUnknownFields()
	for {
		var v T
		if err := d.Decode(&v); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%v in %s", err, s)
		}
		all = append(all, v)
	}
}

// inspect shows the selected source or key.
func TestInspect_ShowsTheSelection(t *testing.T) {
	t.Parallel()
	dir, db, dumps := filled(t)
	closed(t, db)
	for _, tt := range []struct {
		args, want string // names of dumps
		indented   bool
	}{
		{"--source default/demo DIR", "default/demo ns/a,default/demo ns/b,default/demo other", false},
		{"DIR --source default/demo", "default/demo ns/a,default/demo ns/b,default/demo other", false},
		{"--source default/demo --prefix ns/ DIR", "default/demo ns/a,default/demo ns/b", false},
		{"--source default/demo --prefix none DIR", "", false},
		{"--source default/none DIR", "", false},
		{"--source default/two DIR", "default/two ns/a", false},
		{"--source default/demo --key ns/b DIR", "default/demo ns/b", true},
		{"--source default/demo --dead-letters DIR", "dead letter", false},
		{"--source default/two --dead-letters DIR", "", false},
	} {
		code, out, errs := run(append([]string{"inspect"}, strings.Fields(strings.ReplaceAll(tt.args, "DIR", dir))...)...)
		var want []store.Dump
		for name := range strings.SplitSeq(tt.want, ",") {
			if name != "" {
				want = append(want, dumps[name])
			}
		}
		if d := cmp.Diff(want, decode[store.Dump](t, out)); d != "" || code != 0 || errs != "" {
			t.Errorf("%s: %d %s %s", tt.args, code, errs, d)
		}
		if lines := strings.Count(out, "\n"); !tt.indented && lines != len(want) {
			t.Errorf("%s: %d lines for %d entries", tt.args, lines, len(want))
		}
		if strings.Contains(out, `\u003c`) {
			t.Errorf("%s: escaped as for HTML: %s", tt.args, out)
		}
	}
}

// inspect without a selection gives an overview.
func TestInspect_Overview(t *testing.T) {
	t.Parallel()
	dir, db, _ := filled(t)
	id := db.ID()
	closed(t, db)
	code, out, errs := run("inspect", dir)
	want := []store.Overview{{ID: id, Format: 3, Form: store.Single, Sources: []store.SourceOverview{
		{Source: "default/demo", Keys: 3, DeadLetters: 1, NextAt: t0.Add(time.Minute)},
		{Source: "default/two", Keys: 1, NextAt: t0.Add(4 * time.Minute)},
	}}}
	if d := cmp.Diff(want, decode[store.Overview](t, out)); d != "" || code != 0 || errs != "" {
		t.Errorf("%d %s %s", code, errs, d)
	}
}

// verify reports its findings.
func TestVerify_ReportsItsFindings(t *testing.T) {
	t.Parallel()
	dir, db, _ := filled(t)
	id := db.ID()
	closed(t, db)
	code, out, errs := run("verify", dir)
	want := []store.Report{{ID: id, Format: 3, Form: store.Single, Sources: 2, Keys: 4, DeadLetters: 1, Rows: 5, Problems: []string{}}}
	if d := cmp.Diff(want, decode[store.Report](t, out)); d != "" || code != 0 || errs != "" {
		t.Errorf("%d %s %s", code, errs, d)
	}

	db, err := store.Open(store.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	// That there was a key is not said: its rows stay, and it is counted twice.
	if _, err := db.Apply(false, store.Change{Source: "default/two", Key: "ns/a", New: waiting(6)}); err != nil {
		t.Fatal(err)
	}
	closed(t, db)
	code, out, errs = run("verify", dir)
	if got := decode[store.Report](t, out); code != 1 || len(got) != 1 || got[0].ProblemCount != 2 || len(got[0].Problems) != 2 || errs != "adapter verify: 2 problems\n" {
		t.Errorf("%d %s%s", code, errs, out)
	}
}

// Each error has an exit status.
func TestMain_ErrorsHaveAStatus(t *testing.T) {
	t.Parallel()
	dir, db, _ := filled(t)
	closed(t, db)
	used, open, _ := filled(t)
	defer closed(t, open)
	for _, tt := range []struct {
		args, says string
		code       int
	}{
		{"inspect --source default/demo --key none DIR", `"default/demo", key "none": there is no such key`, 1},
		{"inspect --source default/none --key ns/a DIR", `"default/none", key "ns/a": there is no such key`, 1},
		{"inspect", "usage: adapter inspect ", 2},
		{"verify", "usage: adapter verify DIR", 2},
		{"inspect DIR more", `unexpected argument "more"`, 2},
		{"inspect --nope DIR", "-nope", 2},
		{"inspect --key ns/a DIR", "need --source", 2},
		{"inspect --prefix ns DIR", "need --source", 2},
		{"inspect --dead-letters DIR", "need --source", 2},
		{"inspect --source default/demo --key ns/a --prefix ns DIR", "give one of", 2},
		{"inspect --source default/demo --dead-letters --prefix ns DIR", "give one of", 2},
		{"verify --source default/demo DIR", "-source", 2},
		{"inspect --help", "-dead-letters", 2},
		{"inspect USED", "in use", 3},
		{"verify USED", "in use", 3},
		{"inspect DIR/none", "adapter inspect: store: opening", 3},
		{"verify DIR/none", "adapter verify: store: verifying", 3},
	} {
		code, out, errs := run(strings.Fields(strings.NewReplacer("DIR", dir, "USED", used).Replace(tt.args))...)
		if code != tt.code || out != "" || !strings.Contains(errs, tt.says) {
			t.Errorf("%s: %d %q %q", tt.args, code, out, errs)
		}
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// An error of standard output is a failure.
func TestMain_UnwritableOutputFails(t *testing.T) {
	t.Parallel()
	dir, db, _ := filled(t)
	closed(t, db)
	for _, args := range []string{
		"verify DIR", "inspect DIR", "inspect --source default/demo DIR",
		"inspect --source default/demo --key other DIR", "inspect --source default/demo --dead-letters DIR",
	} {
		var errs strings.Builder
		if code := Main(strings.Fields(strings.ReplaceAll(args, "DIR", dir)), broken{}, &errs); code != 3 || !strings.Contains(errs.String(), "broken pipe") {
			t.Errorf("%s: %d %s", args, code, &errs)
		}
	}
}

// Repair says with its status what it did: all is copied, or it is not possible. A directory in use and one that is not empty
// are left alone.
func TestRepair_SaysWhatItDid(t *testing.T) {
	t.Parallel()
	dir, db, _ := filled(t)
	made := filepath.Join(t.TempDir(), "new")
	if code, _, said := run("repair", dir, made); code != exitFailed || !strings.Contains(said, "in use") {
		t.Errorf("in use: %d %s", code, said)
	}
	// A change that does not say what was there leaves rows behind that follow from nothing.
	if _, err := db.Apply(false, store.Change{Source: "default/demo", Key: "ns/a", New: waiting(9)}); err != nil {
		t.Fatal(err)
	}
	closed(t, db)
	code, out, said := run("repair", dir, made)
	if r := decode[store.Repaired](t, out)[0]; code != exitOK || r.Keys != 4 || r.DeadLetters != 1 || r.Lost != 0 || r.Sources != 2 {
		t.Errorf("%d %+v %s", code, r, said)
	}
	if code, _, said := run("verify", made); code != exitOK {
		t.Errorf("verify after it: %d %s", code, said)
	}
	if code, _, said := run("repair", dir, made); code != exitFailed || !strings.Contains(said, "not empty") {
		t.Errorf("again: %d %s", code, said)
	}
	if code, _, _ := run("repair", dir); code != exitUsage {
		t.Errorf("without a new directory: %d", code)
	}
	if code, _, _ := run("repair", filepath.Join(dir, "absent"), filepath.Join(dir, "new")); code != exitFailed {
		t.Errorf("an absent directory: %d", code)
	}
}

// The watched objects are counted, and listed with the state of their watch.
func TestInspect_ListsTheWatchedObjects(t *testing.T) {
	t.Parallel()
	dir, db, _ := filled(t)
	_, err := db.ApplyMarked(true, []store.MarkChange{
		{Source: "default/two", Watch: 0xab, Mark: store.Mark{Object: "ops/web", UID: "u", Hash: 255}},
		{Source: "default/two", Watch: 0xab, Mark: store.Mark{Object: "ops/a", UID: "v", Keys: []string{"Website/ops/web"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.SetWatchState("default/two", store.WatchState{Watch: 0xab, Version: "7", Complete: true}); err != nil {
		t.Fatal(err)
	}
	closed(t, db)
	code, out, errs := run("inspect", "--source", "default/two", "--watched", dir)
	want := `{"watch":"00000000000000ab","resourceVersion":"7","complete":true}
{"watch":"00000000000000ab","object":"ops/a","uid":"v","fingerprint":"0000000000000000","keys":["Website/ops/web"]}
{"watch":"00000000000000ab","object":"ops/web","uid":"u","fingerprint":"00000000000000ff"}
`
	if code != 0 || out != want || errs != "" {
		t.Errorf("%d %s %s", code, out, errs)
	}
	_, out, _ = run("inspect", dir)
	if o := decode[store.Overview](t, out)[0]; o.Format != 3 || len(o.Sources) != 2 || o.Sources[0].Watched != 0 || o.Sources[1].Watched != 2 {
		t.Errorf("%+v", o)
	}
	_, out, _ = run("verify", dir)
	if r := decode[store.Report](t, out)[0]; r.Marks != 2 || !r.Clean() {
		t.Errorf("%+v", r)
	}
}
