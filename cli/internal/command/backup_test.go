package command

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A back-up that was not made leaves no file, and says why.
func TestBackup_LeavesNothingBehind(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "b.tar")
	for name, step := range map[string]struct {
		status, code int
		says         string
	}{
		"no right": {403, exitDenied, "pods/exec in knative-eventing"},
		"no pod":   {404, exitUnavailable, "no pod of the adapter"},
	} {
		c.refuse["GET /exec"], c.refuse["POST /exec"] = step.status, step.status
		if code, _, errs := c.run(true, "backup", "-f", file); code != step.code || !strings.Contains(errs, step.says) {
			t.Errorf("%s: %d, %s", name, code, errs)
		}
	}
	if code, _, errs := c.run(true, "backup"); code != exitUsage || !strings.Contains(errs, "-f FILE") {
		t.Errorf("no file: %d, %s", code, errs)
	}
	if code, _, errs := c.run(true, "backup", "-f", "-"); code != exitUsage || !strings.Contains(errs, "a back-up goes to a file") {
		t.Errorf("a pipe, which would stay empty: %d, %s", code, errs)
	}
	if code, _, errs := c.run(true, "backup", "-f", filepath.Join(dir, "none", "b.tar")); code != exitUsage {
		t.Errorf("no directory: %d, %s", code, errs)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A back-up is of one group, by the program of its members: with several groups it must be named.
// The program of a single adapter was looked for, which a member does not have.
func TestBackup_OfAGroup(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		groups, group int
		pod, program  string
		refused       string
	}{
		{0, -1, "reschedule-adapter-0", "/ko-app/adapter", ""},
		{1, -1, "reschedule-adapter-0", "/ko-app/adapter-replicated", ""},
		{2, 1, "reschedule-adapter-3", "/ko-app/adapter-replicated", ""},
		{2, -1, "", "", "repeat it with --group 0 to --group 1"},
		{2, 2, "", "", "there are 2 groups"},
	} {
		c := newCluster(t)
		if test.groups > 0 {
			c.groups(test.groups)
		}
		pod, program, err := c.session().backedUp(t.Context(), test.group)
		if pod != test.pod || program != test.program || (err != nil) != (test.refused != "") || err != nil && !strings.Contains(err.Error(), test.refused) {
			t.Errorf("%d groups, --group %d: %s, %s, %v", test.groups, test.group, pod, program, err)
		}
	}
}

// A back-up that was cut off is not taken for a whole one.
func TestBackup_CutOffIsFound(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "b.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := tar.NewWriter(f)
	add := func(name, text string) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	add("000001.sst", strings.Repeat("x", 5000))
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := checkWhole(f); err == nil {
		t.Error("a back-up without its end is taken")
	}
	add(endOfBackup, "")
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := checkWhole(f); err != nil {
		t.Error(err)
	}
	if err := f.Truncate(3000); err != nil {
		t.Fatal(err)
	}
	if err := checkWhole(f); err == nil {
		t.Error("half a table is taken")
	}
}
