package command

import (
	"archive/tar"
	"fmt"
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

// A back-up of a group is made by the program of its members.
// The program of a single adapter was looked for, which a member does not have.
func TestBackup_OfAGroup(t *testing.T) {
	t.Parallel()
	for grouped, want := range map[bool]string{
		false: "[reschedule-adapter-0] /ko-app/adapter",
		true:  "[reschedule-adapter-0 reschedule-adapter-1 reschedule-adapter-2] /ko-app/adapter-replicated",
	} {
		c := newCluster(t)
		if grouped {
			c.group()
		}
		pods, program := c.session().backedUp(t.Context())
		if got := fmt.Sprint(pods, " ", program); got != want {
			t.Errorf("a group: %t: %s", grouped, got)
		}
	}
}

// Any member of a group gives its back-up. Only the first pod was asked: while its machine was
// away there was no back-up. A member that has begun to write is not followed by another one.
func TestBackup_AnyMemberGivesIt(t *testing.T) {
	t.Parallel()
	whole := tarOf(t, endOfBackup, "")
	gives, busy := execution{out: whole}, execution{errs: "adapter backup: another back-up is under way", status: 3}
	for name, test := range map[string]struct {
		pods   map[int]execution // the others are away
		hangs  string
		denied []int
		asked  string // the pods where the command ran
		code   int
		says   []string
		silent string // about this
	}{
		"the first one":            {pods: map[int]execution{0: gives, 1: busy}, asked: "0"},
		"the first is away":        {pods: map[int]execution{1: gives}, asked: "1"},
		"two are away":             {pods: map[int]execution{2: gives}, asked: "2"},
		"the first refuses":        {pods: map[int]execution{0: busy, 1: gives}, asked: "0 1"},
		"the first hangs":          {pods: map[int]execution{0: gives, 1: gives}, hangs: "-adapter-0/exec", asked: "1"},
		"a right to another alone": {pods: map[int]execution{1: gives}, denied: []int{0}, asked: "1"},
		"no right": {
			pods: map[int]execution{2: busy}, denied: []int{0, 1}, asked: "2",
			code: exitDenied, says: []string{"pods/exec in knative-eventing"}, silent: "under way",
		},
		"a right to the first alone": {
			denied: []int{1, 2},
			code:   exitUnavailable, says: []string{"reschedule-adapter-0: no pod"}, silent: "pods/exec",
		},
		"none": {
			pods: map[int]execution{1: busy}, asked: "1",
			code: exitUnavailable, says: []string{"reschedule-adapter-0: no pod", "reschedule-adapter-1: adapter backup: another", "reschedule-adapter-2: no pod"},
		},
		"the first is cut off":   {pods: map[int]execution{0: {out: whole[:100], lost: true}, 1: gives}, asked: "0", code: exitUnavailable, says: []string{"no back-up from the adapter"}},
		"the first breaks off":   {pods: map[int]execution{0: {out: whole[:100], errs: "the disk is nearly full", status: 3}, 1: gives}, asked: "0", code: exitUnavailable, says: []string{"the disk is nearly full"}},
		"the first is not whole": {pods: map[int]execution{0: {out: tarOf(t, "1.sst", "x")}, 1: gives}, asked: "0", code: exitUnavailable, says: []string{"its end is missing"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.group()
			c.hangs = test.hangs
			c.commands = map[string]execution{}
			for pod, e := range test.pods {
				c.commands[podName(pod)] = e
			}
			for _, pod := range test.denied {
				for _, method := range []string{"GET ", "POST "} {
					c.refuse[method+podName(pod)+"/exec"] = 403
				}
			}
			dir := t.TempDir()
			code, _, errs := c.run(true, "backup", "-f", filepath.Join(dir, "b.tar"))
			if code != test.code || test.silent != "" && strings.Contains(errs, test.silent) {
				t.Errorf("%d: %s", code, errs)
			}
			for _, text := range test.says {
				if !strings.Contains(errs, text) {
					t.Errorf("it does not say %q: %s", text, errs)
				}
			}
			var asked []string
			for _, call := range c.calls {
				if pod, ok := strings.CutPrefix(call, "executed "+system+"/pods/reschedule-adapter-"); ok {
					number, command, _ := strings.Cut(pod, "/exec ")
					asked = append(asked, number)
					if command != "/ko-app/adapter-replicated backup --data-dir /var/lib/reschedule -f -" {
						t.Errorf("the command is %s", command)
					}
				}
			}
			if got := strings.Join(asked, " "); got != test.asked {
				t.Errorf("the command ran in %q, want %q", got, test.asked)
			}
			written, err := os.ReadFile(filepath.Join(dir, "b.tar"))
			if info, _ := os.Stat(filepath.Join(dir, "b.tar")); test.code == 0 && (string(written) != whole || info.Mode().Perm() != 0o600) {
				t.Errorf("the file has %d bytes of %d: %v, %v", len(written), len(whole), info, err)
			}
			if left, err := os.ReadDir(dir); err != nil || test.code != 0 && len(left) > 0 {
				t.Errorf("left: %v, %v", left, err)
			}
		})
	}
}

// tarOf is an archive with files, each a name and its text.
func tarOf(t *testing.T, files ...string) string {
	t.Helper()
	var b strings.Builder
	w := tar.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		err := w.WriteHeader(&tar.Header{Name: files[i], Mode: 0o600, Size: int64(len(files[i+1]))})
		if err == nil {
			_, err = w.Write([]byte(files[i+1]))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A back-up that was cut off is not taken for a whole one.
func TestBackup_CutOffIsFound(t *testing.T) {
	t.Parallel()
	table := strings.Repeat("x", 5000)
	whole := tarOf(t, "000001.sst", table, endOfBackup, "")
	for text, want := range map[string]bool{whole: true, tarOf(t, "000001.sst", table): false, whole[:3000]: false} {
		f, err := os.Create(filepath.Join(t.TempDir(), "b.tar"))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := checkWhole(f); (err == nil) != want {
			t.Errorf("%d of %d bytes: %v", len(text), len(whole), err)
		}
	}
}
