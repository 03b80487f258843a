package blackbox

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// onSmallDisk starts an adapter whose data are on a disk that can really be full, and returns a file to fill it with.
func onSmallDisk(t *testing.T, sources ...*source) (o *own, filler string) {
	t.Helper()
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=48m"); err != nil {
		t.Fatalf("this test needs a small disk of its own: mount: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return aloneIn(t, disk, nil, sources...), filepath.Join(disk, "filler")
}

// SIGTERM also ends an adapter whose disk is full, and nothing is lost.
func TestSIGTERM_OnAFullDiskLosesNothing(t *testing.T) {
	t.Parallel()
	s := &source{name: "full-term", spec: "limits: {maxInFlight: 1000}"}
	o, filler := onSmallDisk(t, s)
	s.put(t, "kept", `{"delay":"1h"}`)
	// Outcomes, and changes that were let in before the disk was full, wait for space.
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
	must(t, os.Remove(filler))
	o.restart(t)
	for _, key := range taken {
		s.get(t, key)
	}
}

// On a full disk changes are refused; with space again they are accepted.
func TestFullDisk_RefusesAndRecovers(t *testing.T) {
	t.Parallel()
	s := &source{name: "full"}
	o, filler := onSmallDisk(t, s)
	due := time.Now().Add(3 * time.Second)
	s.put(t, "before", `{"dueAt":"`+due.UTC().Format(time.RFC3339Nano)+`"}`)
	s.put(t, "before the disk was full", `{"delay":"1h"}`)
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

	must(t, os.Remove(filler))
	eventually(t, "it recovers", func() bool {
		return s.call(t, http.MethodPut, "/schedules/after", `{"delay":"1h"}`).Status < 300
	})
	o.Kill()
	if code, out := harness.Run("verify", o.data); code != 0 {
		t.Errorf("verify: %d %s", code, out)
	}
	o.restart(t)
	for key := range taken {
		s.get(t, key)
	}
	s.get(t, "after")
}

// refused fills the disk until a change is refused: the store's own cleaning may free bytes at any time. A change that
// the adapter let in just before the disk was full waits for space, so each call has a bound; the next one is refused.
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
	must(t, err)
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	must(t, err)
	page := make([]byte, 4096)
	for ; ; size += int64(len(page)) {
		if _, err := f.Write(page); err != nil {
			must(t, f.Truncate(max(size-but, 0)))
			return
		}
	}
}

// While the disk is full to the last byte, reads of other sources, a reload and the end go on.
func TestFullDisk_ReadsAndTheEndGoOn(t *testing.T) {
	t.Parallel()
	waits, reads := &source{name: "full-waits"}, &source{name: "full-reads"}
	o, filler := onSmallDisk(t, waits, reads)
	const keys = 4000
	long := strings.Repeat("k", 400)
	for _, s := range []*source{waits, reads} {
		s.bulk(t, keys, func(i int) string { return fmt.Sprintf(`{"key":"%s%d","delay":"10h"}`, long, i) })
	}
	fill(t, filler, 0)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var deletes sync.WaitGroup
	deletes.Go(func() { _, _ = harness.Do(ctx, http.MethodDelete, waits.url()+"/schedules?all=true", "") })
	for i := range 500 {
		reads.get(t, fmt.Sprint(long, i))
	}
	if r, err := harness.Do(ctx, http.MethodGet, o.Admin+"/metrics", ""); err != nil || r.Status != http.StatusOK {
		t.Errorf("/metrics: %v", err)
	}
	o.write(t, reads)
	must(t, o.Signal(syscall.SIGHUP))
	o.terminate(t)
	cancel()
	deletes.Wait()
}
