package sources

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// fakeRegistry records calls.
type fakeRegistry struct {
	calls []string
	err   error
}

func (f *fakeRegistry) SetSource(s *schedule.Spec) error {
	f.calls = append(f.calls, "set "+s.UID)
	return f.err
}

func (f *fakeRegistry) RemoveSource(uid string) error {
	f.calls = append(f.calls, "remove "+uid)
	return f.err
}

func (f *fakeRegistry) Counts(string) (Counts, bool) { return Counts{}, false }

func (f *fakeRegistry) Workload(string) (schedule.ScaleStatus, bool) {
	return schedule.ScaleStatus{}, false
}

func (f *fakeRegistry) Serves() bool { return true }

func (f *fakeRegistry) WatchStatus(string) (schedule.WatchStatus, bool) {
	return schedule.WatchStatus{}, false
}

// fileOf is a file of these sources.
func fileOf(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, "---\napiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\n"+
			"metadata: {name: %s, namespace: ns}\nspec: {sink: {uri: http://127.0.0.1:1}}\n", name)
	}
	return b.String()
}

// A reload sets what the file has and removes what it had; what failed is tried
// again by the next reload, and a bad file changes nothing.
func TestFile_ReloadFollowsTheFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sources.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fileOf("a", "b"))
	f := NewFile(FileConfig{Sources: path, Log: slog.New(slog.DiscardHandler)})
	if _, err := f.Connect(t.Context()); err != nil {
		t.Fatal(err)
	}
	if wanted, unusable := f.Sources(); len(wanted) != 2 || unusable != nil {
		t.Fatalf("%v, %v", wanted, unusable)
	}
	full := errors.New("no space left on device")
	for _, step := range []struct {
		file string
		err  error
		want []string
	}{
		{fileOf("b", "c"), nil, []string{"remove ns/a", "set ns/b", "set ns/c"}},
		{fileOf("c"), full, []string{"remove ns/b"}},
		{"kind: nonsense\n", nil, nil},
		{fileOf("c"), nil, []string{"remove ns/b", "set ns/c"}},
		{fileOf("c"), nil, []string{"set ns/c"}},
	} {
		write(step.file)
		r := &fakeRegistry{err: step.err}
		f.reload(t.Context(), r)
		if d := cmp.Diff(step.want, r.calls); d != "" {
			t.Errorf("calls (-want +got):\n%s", d)
		}
	}
}

// What is wrong with a file is found by Connect, all of it at once.
func TestFile_ConnectRefusesABadFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "sources.yaml")
	text := strings.ReplaceAll(fileOf("a", "b"), "127.0.0.1:1}", "127.0.0.1:1}, ingest: {key: event., authentication: required}")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := NewFile(FileConfig{Sources: path, Log: slog.New(slog.DiscardHandler)}).Connect(t.Context())
	if err == nil {
		t.Fatal("connected")
	}
	for _, part := range []string{"ns/a: spec.ingest.key", "ns/b: spec.ingest.key", "ns/a: spec.ingest.authentication", "ns/b: spec.ingest.authentication"} {
		if !slices.ContainsFunc(strings.Split(err.Error(), "\n"), func(line string) bool { return strings.Contains(line, part) }) {
			t.Errorf("no %q in %v", part, err)
		}
	}
}

// The files are broken for a while: each reload meanwhile changes nothing and says which file it is, and the first one
// with the right file is followed, whichever file it was.
func TestHeals_FilesBrokenForAWhile(t *testing.T) {
	t.Parallel()
	right := map[string]string{"sources.yaml": fileOf("a"), "ceilings.yaml": "max-pending: 50\n", "tokens": "right\n"}
	for _, broken := range []string{"sources.yaml", "ceilings.yaml", "tokens"} {
		dir := t.TempDir()
		write := func(file, text string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for file, text := range right {
			write(file, text)
		}
		var log strings.Builder
		f := NewFile(FileConfig{Sources: filepath.Join(dir, "sources.yaml"), Ceilings: filepath.Join(dir, "ceilings.yaml"), Tokens: filepath.Join(dir, "tokens"),
			Log: slog.New(slog.NewTextHandler(&log, nil))})
		if _, err := f.Connect(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.Sources()
		admitted := func() bool {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			r.Header.Set("Authorization", "Bearer right")
			_, err := f.Guard().Admit(r, access.Request{})
			return err == nil
		}
		reload := func() (calls []string, failed bool) {
			log.Reset()
			r := &fakeRegistry{}
			f.reload(t.Context(), r)
			if !admitted() {
				t.Errorf("%s: the token is not admitted any more", broken)
			}
			return r.calls, strings.Contains(log.String(), "not everything was reloaded") && strings.Contains(log.String(), broken)
		}
		for _, breaks := range []func(){
			func() { write(broken, "\x00 : [") },
			func() { write(broken, "a: {") },
			func() { _ = os.Remove(filepath.Join(dir, broken)) },
		} {
			breaks()
			if calls, failed := reload(); !failed || len(calls) > 0 && broken != "tokens" {
				t.Errorf("%s: calls %v, log %s", broken, calls, log.String())
			}
		}
		write(broken, right[broken])
		if calls, failed := reload(); failed || !slices.Equal(calls, []string{"set ns/a"}) {
			t.Errorf("%s is right again: calls %v, log %s", broken, calls, log.String())
		}
	}
}
