package blackbox

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// A client that misbehaves harms no other.
func TestClient_MisbehavingHarmsNoOther(t *testing.T) {
	t.Parallel()
	s := &source{name: "hostile"}
	o := alone(t, nil, s)
	// Half requests and drips, held open until the end.
	for range 100 {
		conn := dial(t, o.URL)
		if _, err := io.WriteString(conn, "PUT /tests/hostile/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000000\r\n\r\n{"); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct{ request, status string }{
		"10 GB announced":    {"PUT /tests/hostile/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 10000000000\r\n\r\n{}", " 413 "},
		"a negative length":  {"PUT /tests/hostile/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", " 400 "},
		"two lengths":        {"PUT /tests/hostile/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}", " 400 "},
		"a bad chunk":        {"PUT /tests/hostile/schedules/k HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", " 400 "},
		"thousands of lines": {"GET /tests/hostile HTTP/1.1\r\nHost: localhost\r\n" + strings.Repeat("X-Header: value value value value\r\n", 5000) + "\r\n", " 431 "},
		"one long line":      {"GET /" + strings.Repeat("a", 100_000) + " HTTP/1.1\r\nHost: localhost\r\n\r\n", " 431 "},
		"no HTTP":            {"hello\r\n\r\n", " 400 "},
		"TLS":                {"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", " 400 "},
		"OPTIONS *":          {"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n", " 404 "},
	} {
		conn := dial(t, o.URL)
		go func() { _, _ = io.WriteString(conn, c.request) }() // the answer may come before the end
		if err := conn.SetReadDeadline(time.Now().Add(harness.Patience)); err != nil {
			t.Fatal(err)
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		if !strings.Contains(line, c.status) {
			t.Errorf("%s: %q %v, want%s", name, line, err, c.status)
		}
	}
	start := time.Now()
	s.put(t, "k", "")
	s.next(t, "k")
	if took := time.Since(start); took > 5*time.Second {
		t.Errorf("the others waited %s", took)
	}
	most := 300
	if harness.RaceEnabled {
		most = 1500
	}
	if used := residentMiB(t, o.Admin); used > most {
		t.Errorf("%d MiB resident", used)
	}
}

// residentMiB asks the adapter's own metrics.
func residentMiB(t *testing.T, admin string) int {
	t.Helper()
	r, err := harness.Do(t.Context(), http.MethodGet, admin+"/metrics", "")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(r.Body)) {
		if value, ok := strings.CutPrefix(line, "process_resident_memory_bytes "); ok {
			bytes, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return int(bytes) >> 20
		}
	}
	t.Fatal("no process_resident_memory_bytes")
	return 0
}

// A sink that hangs does not make another source late.
func TestSink_HangingDelaysNoOtherSource(t *testing.T) {
	t.Parallel()
	hangs, works := &source{name: "fair-hangs", spec: "limits: {maxInFlight: 1000}"}, &source{name: "fair-works"}
	alone(t, []string{"--max-in-flight", "20"}, hangs, works)
	hangs.answer("", func(_ http.ResponseWriter, r *http.Request, _ *harness.Delivery) { <-r.Context().Done() })
	for i := range 100 {
		hangs.put(t, fmt.Sprint(i), "")
	}
	for i := range 20 {
		key := fmt.Sprint(i)
		v := works.put(t, key, "")
		if d := works.next(t, key); d.At.Sub(v.DueAt) > 5*time.Second {
			t.Errorf("%s late", d.At.Sub(v.DueAt))
		}
	}
}

// A format from the future is refused and left alone.
func TestFormat_FromTheFutureIsRefused(t *testing.T) {
	t.Parallel()
	s := &source{name: "future"}
	o := alone(t, nil, s)
	s.put(t, "k", `{"delay":"1h"}`)
	o.terminate(t)
	data := filepath.Join(o.dir, "data")
	later := filepath.Join(o.dir, "later")
	if err := os.CopyFS(later, os.DirFS(data)); err != nil {
		t.Fatal(err)
	}
	rewrite(t, later, "m/format", "99")
	if out := harness.Refused(t, harness.Flags(o.file, later)...); !strings.Contains(out, "99") || !strings.Contains(out, "this program reads version") {
		t.Errorf("the refusal names both versions: %s", out)
	}
	for _, tool := range []string{"inspect", "verify"} {
		if code, out := harness.Run(tool, later); code == 0 || !strings.Contains(out, "99") {
			t.Errorf("%s: %d %s", tool, code, out)
		}
	}
	o.restart(t)
	s.get(t, "k")
}

// rewrite sets a row of the store's meta table, which the format document
// fixes, as a later version would.
func rewrite(t *testing.T, dir, key, value string) {
	t.Helper()
	path := filepath.Join(dir, "store")
	merger := *pebble.DefaultMerger // makes nonsense of the counters, which no test reads
	merger.Name = mergerName(t, path)
	db, err := pebble.Open(path, &pebble.Options{Merger: &merger, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Set([]byte(key), []byte(value), pebble.Sync); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	// It has the lengths of files that the engine has replaced now.
	if err := os.Remove(filepath.Join(path, "synced")); err != nil {
		t.Fatal(err)
	}
}

// mergerName is read from the store's own OPTIONS file.
func mergerName(t *testing.T, dir string) string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(dir, "OPTIONS-*"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "merger="); ok {
				return name
			}
		}
	}
	t.Fatalf("no OPTIONS in %s", dir)
	return ""
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}

// smallDisk mounts one, which can really be full, for an adapter's data.
func smallDisk(t *testing.T, s *source) (disk string, flags []string) {
	t.Helper()
	disk = t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=48m"); err != nil {
		t.Fatalf("this test needs a small disk of its own: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	file := filepath.Join(t.TempDir(), "sources.yaml")
	if err := os.WriteFile(file, []byte(s.manifest()), 0o600); err != nil {
		t.Fatal(err)
	}
	return disk, harness.Flags(file, filepath.Join(disk, "data"))
}

// SIGTERM also ends an adapter whose disk is full, and nothing is lost.
func TestSIGTERM_OnAFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	s := &source{name: "full-term", spec: "limits: {maxInFlight: 1000}"}
	disk, flags := smallDisk(t, s)
	o := &own{Adapter: harness.Start(t, flags...)}
	s.at = func() string { return o.URL }
	s.put(t, "kept", `{"delay":"1h"}`)
	filler := filepath.Join(disk, "filler")
	// Outcomes, and changes that were let in before the disk was full, wait for
	// space.
	const flying = 60
	before := len(sink.Of("full-term", ""))
	release := make(chan bool)
	s.answer("", func(w http.ResponseWriter, r *http.Request, _ *harness.Delivery) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
		status(200, "Reschedule-After", "1h")(w)
	})
	for i := range flying {
		s.put(t, fmt.Sprint("flying/", i), `{"event":{"data":"`+strings.Repeat("x", 100_000)+`"}}`)
	}
	sink.Find(t, "all are flying", func([]*harness.Delivery) bool { return len(sink.Of("full-term", "")) == flying+before })
	var callers sync.WaitGroup
	var mu sync.Mutex
	taken, full := []string{"kept"}, false
	for i := range 16 {
		callers.Go(func() {
			for n := 0; ; n++ {
				key := fmt.Sprintf("caller%d/%d", i, n)
				r, err := harness.Do(t.Context(), http.MethodPut, s.url()+harness.KeyPath(key), `{"delay":"1h","event":{"data":"`+strings.Repeat("x", 100_000)+`"}}`)
				mu.Lock()
				if err == nil && r.Status == http.StatusCreated {
					taken = append(taken, key)
				}
				over := full && (err != nil || r.Status >= 300) || n > 5000
				mu.Unlock()
				if over {
					return
				}
			}
		})
	}
	fill(t, filler, 0)
	mu.Lock()
	full = true
	mu.Unlock()
	close(release)
	s.refused(t, filler)
	o.terminate(t)
	callers.Wait()
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	o.Adapter = harness.Start(t, flags...)
	for _, key := range taken {
		s.get(t, key)
	}
}

// On a full disk changes are refused; with space again they are accepted.
func TestFullDisk_RefusesAndRecovers(t *testing.T) {
	t.Parallel()
	s := &source{name: "full"}
	disk, flags := smallDisk(t, s)
	a := harness.Start(t, flags...)
	s.at = func() string { return a.URL }

	due := time.Now().Add(3 * time.Second)
	s.put(t, "before", `{"dueAt":"`+due.UTC().Format(time.RFC3339Nano)+`"}`)
	s.put(t, "before the disk was full", `{"delay":"1h"}`)
	filler := filepath.Join(disk, "filler")
	fill(t, filler, 4<<20)
	taken := map[string]bool{}
	eventually(t, "507", func() bool {
		key := fmt.Sprint("k", len(taken))
		r := s.call(t, http.MethodPut, "/schedules/"+key, `{"delay":"1h","event":{"data":"`+strings.Repeat("x", 100_000)+`"}}`)
		if r.Status == http.StatusInsufficientStorage {
			problem(t, r, http.StatusInsufficientStorage, "storage_full")
			if _, ok := s.look(t, key); ok {
				t.Error("what was refused is there")
			}
			return true
		}
		if r.Status != http.StatusCreated {
			t.Errorf("%d %s", r.Status, r.Body)
		}
		taken[key] = true
		return false
	})
	r := s.call(t, http.MethodPost, "/schedules", `{"items":[{"key":"bulk"}]}`)
	problem(t, r, http.StatusInsufficientStorage, "storage_full")
	problem(t, s.send(t), http.StatusInsufficientStorage, "storage_full")
	// What was accepted before is delivered and listed all the same.
	s.next(t, "before")
	s.pages(t, "")
	// A DELETE frees bytes.
	s.cancel(t, "before the disk was full")
	if _, ok := s.look(t, "before the disk was full"); ok {
		t.Error("a DELETE on a full disk had no effect")
	}
	for range 10 {
		s.refused(t, filler)
	}

	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it recovers", func() bool {
		return s.call(t, http.MethodPut, "/schedules/after", `{"delay":"1h"}`).Status < 300
	})
	a.Kill()
	if code, out := harness.Run("verify", filepath.Join(disk, "data")); code != 0 {
		t.Errorf("verify: %d %s", code, out)
	}
	a = harness.Start(t, flags...)
	for key := range taken {
		s.get(t, key)
	}
	s.get(t, "after")
}

// refused fills the disk until a change is refused: the store's own cleaning
// may free bytes at any time. A change that the adapter let in just before the disk
// was full waits for space, so each call has a bound; the next one is refused.
func (s *source) refused(t *testing.T, filler string) {
	t.Helper()
	eventually(t, "507", func() bool {
		fill(t, filler, 0)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		r, err := harness.Do(ctx, http.MethodPut, s.url()+harness.KeyPath("refused"), "")
		if err != nil || r.Status < 300 {
			return false
		}
		problem(t, r, http.StatusInsufficientStorage, "storage_full")
		return true
	})
}

// fill takes the space that is left, but for some bytes.
func fill(t *testing.T, file string, but int64) {
	t.Helper()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		t.Fatal(err)
	}
	page := make([]byte, 4096)
	for ; ; size += int64(len(page)) {
		if _, err := f.Write(page); err != nil {
			if err := f.Truncate(max(size-but, 0)); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
}
