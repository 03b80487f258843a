package group

import (
	crand "crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/backup"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// While a copy takes the place of the view, on a disk that hangs, a member knows how far it is:
// it asks while it looks for the owner, to forward calls.
func TestView_AnswersWhileItIsReplaced(t *testing.T) {
	t.Parallel()
	v, err := openView(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	v.mu.Lock() // as replace does
	go func() {
		defer close(answered)
		if v.Applied() != 0 || v.Sealed() {
			t.Error("it is not empty")
		}
	}()
	select {
	case <-answered:
	case <-time.After(10 * time.Second):
		t.Error("it waits for the disk")
	}
	v.mu.Unlock()
	<-answered
	if err := v.get().Close(); err != nil {
		t.Error(err)
	}
}

// A sender that is silent for too long is given up. What the reader does between two reads is
// not the sender's silence.
func TestCopy_StallIsOfTheSender(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stalled atomic.Bool
		timer := time.AfterFunc(copyStall, func() { stalled.Store(true) })
		if _, err := (stallReader{strings.NewReader("x"), timer}).Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * copyStall) // it is verified
		if stalled.Load() {
			t.Error("a long verification ends the copy")
		}
		silent, end := io.Pipe()
		go func() {
			time.Sleep(2 * copyStall)
			_ = end.Close()
		}()
		if _, err := (stallReader{silent, timer}).Read(make([]byte, 1)); !errors.Is(err, io.EOF) || !stalled.Load() {
			t.Errorf("a silent sender is waited for: %v", err)
		}
	})
}

// smallDisk has so many bytes free.
type smallDisk struct {
	vfs.FS
	free uint64
}

func (d smallDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: d.free, TotalBytes: 1 << 40}, nil
}

// appliedView is a view with so many entries.
func appliedView(t *testing.T, fs vfs.FS, entries uint64) *view {
	t.Helper()
	v, err := openView(store.Options{Dir: t.TempDir(), FS: fs, Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = v.get().Close() })
	owned := &ownView{v.get()}
	db, err := owned.Own(owned)
	for n := v.Applied(); err == nil && n < entries; n++ {
		err = db.SetHistory(strings.Repeat("x", int(n)))
	}
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	return v
}

// A disk that has no space for two views removes the old one, which is too old for the log. Without space for one it
// says so, and asks no other member. The member tried again without an end, and had both others begin a view each time.
func TestCopy_DiskWithoutSpaceForTwo(t *testing.T) {
	t.Parallel()
	const reserve, size, most = 512 << 20, 1 << 30, 1<<32 - 1
	for name, test := range map[string]struct {
		free, size uint64
		copied     bool
	}{
		"space for two":  {reserve + size, size, true},
		"space for one":  {reserve + size - 1, size, true},
		"space for none": {reserve, most, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			newer, asked := appliedView(t, vfs.Default, 9), make(chan string, 9)
			sends := func(name string) string {
				return peer(t, func(w http.ResponseWriter, r *http.Request) {
					asked <- name
					w.Header().Set(viewBytes, strconv.FormatUint(test.size, 10))
					backup.Send(w, r, newer, slog.New(slog.DiscardHandler))
				})
			}
			c, log := newCopies(appliedView(t, smallDisk{vfs.Default, test.free}, 4), map[string]string{"a": sends("a"), "b": sends("b"), "c": "127.0.0.1:1"})
			if err := log.Mark(t.Context(), "c", 4); err != nil {
				t.Fatal(err)
			}
			held := false
			from, _, err := c.any(t.Context(), c.cfg.others(), false, func() { held = true })
			if (err == nil) != test.copied || held != test.copied || from != "a" && test.copied || err != nil && !errors.Is(err, errNoSpace) || len(asked) != 1 {
				t.Errorf("from %q: %v; %d members were asked", from, err, len(asked))
			}
			want := map[bool]uint64{true: newer.Applied(), false: 4}[test.copied]
			marks, err := log.Marks(t.Context())
			if removed := name == "space for one"; c.view.Applied() != want || (marks["c"] == 0) != removed || err != nil {
				t.Errorf("it is at %d, want %d; its mark is %d, %v", c.view.Applied(), want, marks["c"], err)
			}
		})
	}
}

// newCopies are the copies of member c, which begins with the view and with an empty log.
func newCopies(v *view, peersAt map[string]string) (*copies, replica.Log) {
	cfg := &Config{Log: slog.New(slog.DiscardHandler), Settings: Settings{Member: "c", peers: peersAt}}
	log := replicatest.NewMemory(rand.New(rand.NewPCG(1, 2)), replicatest.Faults{}).Member()
	s := &stage{}
	s.engine.Store(&engine{entries: log, group: replica.New(replica.Config{Member: "c", Log: log, View: v})})
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	return &copies{cfg: cfg, view: v, peers: &peers{cfg: cfg, client: client}, stage: s}, log
}

// tornView is a view with a block of a table that cannot be read. No read has met it yet.
func tornView(t *testing.T) *view {
	t.Helper()
	whole := appliedView(t, vfs.Default, 4)
	owned := &ownView{whole.get()}
	db, err := owned.Own(owned)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 100 {
		reason := crand.Text() + crand.Text() + crand.Text() + crand.Text() + crand.Text() + crand.Text()
		commit, err := db.Apply(false, store.Change{Source: "s", Key: strconv.Itoa(n), New: &schedule.Entry{Revision: uint64(n + 1), Occurrence: 1, Cause: schedule.Cause{Reason: reason}}})
		if err == nil {
			err = commit.Wait()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(db.Close(), owned.Close()); err != nil {
		t.Fatal(err)
	}
	tables, err := filepath.Glob(filepath.Join(whole.options.Dir, "store", "*.sst"))
	if err != nil || len(tables) != 1 {
		t.Fatal(tables, err)
	}
	table, err := os.ReadFile(tables[0])
	if err != nil {
		t.Fatal(err)
	}
	table[len(table)/2]++
	if err := os.WriteFile(tables[0], table, 0o600); err != nil {
		t.Fatal(err)
	}
	torn, err := openView(whole.options)
	if err != nil {
		t.Fatal(err)
	}
	whole.current.Store(torn.get()) // its clean-up closes it
	return torn
}

// A member with a damaged table became the owner: keys that were acknowledged were 404, while two members had them. Once
// it has met the damage, nothing that it read counts while another member can own the group, it does not own it, and no
// member takes a copy of its view. Where no other member can own it, it serves the rest, as a single adapter.
func TestView_DamageIsNotServed(t *testing.T) {
	t.Parallel()
	c, _ := newCopies(tornView(t), nil)
	m := &health{view: c.view, stage: c.stage}
	m.stage.engine.Store(&engine{clocks: replica.NewClocks("c", 2)})
	m.stage.joined.Store(true)
	// The answer stays recent however long the test takes: it failed where 3 s had gone by.
	m.others.answers = map[string]answer{"a": {fitness: able, at: time.Now().Add(time.Hour)}}
	if m.mustYield() {
		t.Error("before it has met the damage")
	}
	owned := &ownView{m.view.get()}
	db, err := owned.Own(owned)
	if err != nil {
		t.Fatal(err)
	}
	for n := range 100 {
		_, _ = db.Get("s", strconv.Itoa(n)) // of some of them the error is a store.CorruptError
	}
	if err := db.Close(); err != nil || m.view.get().Corrupt() == 0 {
		t.Fatal("nothing is damaged:", err)
	}
	if !m.mustYield() || m.fit() != unfit || !m.unfitToClaim() {
		t.Errorf("it goes on: %v, %q, %v", m.mustYield(), m.fit(), m.unfitToClaim())
	}
	if err := (tenureLog{nil, m}).Append(nil); !errors.Is(err, store.ErrNotOwner) {
		t.Error("a change that rests on what it read:", err)
	}
	w := httptest.NewRecorder()
	if c.sendView(w, httptest.NewRequest(http.MethodGet, viewPath+"?above=0", http.NoBody)); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "damaged") {
		t.Error("it sends its view:", w.Code, w.Body)
	}
	m.others.record("a", answer{fitness: unfit})
	if m.mustYield() {
		t.Error("no other member can take the group over")
	}
}

// A view that is wrong was removed before another member had sent its own: where none did, it was lost.
func TestCopy_WrongViewStaysUntilOneIsSent(t *testing.T) {
	t.Parallel()
	same, sends := appliedView(t, vfs.Default, 4), false
	address := peer(t, func(w http.ResponseWriter, r *http.Request) {
		if !sends || r.URL.Query().Get("above") != "0" {
			http.Error(w, "", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set(viewBytes, "1")
		backup.Send(w, r, same, slog.New(slog.DiscardHandler))
	})
	c, _ := newCopies(appliedView(t, vfs.Default, 4), map[string]string{"a": address, "c": "127.0.0.1:1"})
	if err := c.take(t.Context(), true, func() {}); err == nil || c.view.Applied() != 4 {
		t.Error(err, c.view.Applied())
	}
	sends = true
	if err := c.take(t.Context(), true, func() {}); err != nil || c.view.Applied() != 4 || c.taken.Load() != 1 {
		t.Error(err, c.view.Applied())
	}
}

// A member whose view may differ from the others' made back-ups of it.
func TestBackup_NotOfAViewInDoubt(t *testing.T) {
	t.Parallel()
	c, _ := newCopies(appliedView(t, vfs.Default, 4), nil)
	m := &Member{view: c.view, stage: c.stage}
	err := m.Checkpoint(func(string) error { t.Error("it is made"); return nil })
	if err == nil || !strings.Contains(err.Error(), "another member") {
		t.Error(err)
	}
}

// A view that is ahead of its log is of another time than the log. It passed over the log's next entries.
func TestStart_ViewAheadOfTheLog(t *testing.T) {
	t.Parallel()
	log := replicatest.NewMemory(rand.New(rand.NewPCG(1, 2)), replicatest.Faults{}).Member()
	m := newThird(t, nil, nil)
	id := "g"
	m.joining.identity.Store(&id)
	m.joining.began = 2
	m.stage.engine.Store(&engine{log: readyLog{}, entries: log})
	if err := m.joining.awaitLog(t.Context()); err != nil { // the group begins with the view
		t.Error(err)
	}
	epoch, err := log.Claim(t.Context(), replica.State{}, replica.Owner{Member: "a"}, time.Now())
	if err == nil {
		_, err = log.Append(t.Context(), epoch, 1, binary.LittleEndian.AppendUint64(nil, 1), time.Now())
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := m.joining.awaitLog(t.Context()); err == nil || !strings.Contains(err.Error(), "empty the directory of member c") {
		t.Error("it starts:", err)
	}
}

// readyLog can be read.
type readyLog struct{ Log }

func (readyLog) Close() {}

func (readyLog) Wall() time.Time { return time.Now() }

func (readyLog) Ready() <-chan struct{} {
	ready := make(chan struct{})
	close(ready)
	return ready
}
