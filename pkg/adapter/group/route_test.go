package group

import (
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// far are the two other members of a group, and who of them owns it as far as a member knows.
type far struct {
	mu      sync.Mutex
	servers [members - 1]*httptest.Server
	owner   int           // -1: none
	named   int           // the member that is taken for the owner; -1: none
	moved   chan struct{} // closed when another one is named
	reads   bool          // who is no owner reads the body before it refuses the call
	called  []int
	still   chan struct{} // the owner answers once it is closed; nil: at once
	stands  func()        // called when a call has reached an owner that stands still; nil: none
}

func (f *far) here() (*tenure, <-chan struct{}) { return nil, nil }
func (f *far) isSealed() bool                   { return false }

func (f *far) elsewhere() (string, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.named < 0 {
		return "", f.moved
	}
	return strings.TrimPrefix(f.servers[f.named].URL, "http://"), f.moved
}

// name makes the router take the member for the owner.
func (f *far) name(i int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.named = i
	close(f.moved)
	f.moved = make(chan struct{})
}

func (f *far) calls() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.called)
}

func (f *far) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *far) answer(i int, w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	owner, reads, still, stands := f.owner, f.reads, f.still, f.stands
	f.called = append(f.called, i)
	f.mu.Unlock()
	if owner != i {
		if reads {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		w.Header().Set(notOwner, "true")
		unavailable(w, detailNoOwner)
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if still != nil {
		if stands != nil {
			stands()
		}
		<-still
	}
	_, _ = io.WriteString(w, strconv.Itoa(len(body)))
}

// newFar returns a router of a member that owns nothing, and the other members. The first one owns the group.
func newFar(t *testing.T) (sending, *far) {
	t.Helper()
	f := &far{moved: make(chan struct{})}
	for i := range f.servers {
		f.servers[i] = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.answer(i, w, r) }))
		t.Cleanup(f.servers[i].Close)
	}
	return newRouting(t, f), f
}

func (s sending) call(method, body string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, httptest.NewRequest(method, "/n/s/schedules/k", strings.NewReader(body)))
	return answer
}

// A call goes to the owner at once, and to the next one when the log names it.
func TestForwarded_GoesToTheOwner(t *testing.T) {
	t.Parallel()
	r, f := newFar(t)
	for _, owner := range []int{1, 0} {
		f.set(func() { f.owner = owner })
		f.name(owner)
		if a := r.call(http.MethodPut, "{}"); a.Code != http.StatusOK {
			t.Fatal(a.Code, a.Body)
		}
	}
	if got := f.calls(); !slices.Equal(got, []int{1, 0}) {
		t.Error("calls went to", got)
	}
}

// The log names an owner that is gone until another member owns the group. The call waits.
func TestForwarded_DeadOwnerIsNamed(t *testing.T) {
	t.Parallel()
	r, f := newFar(t)
	f.owner = 1
	f.servers[0].Close()
	claimed := time.AfterFunc(300*time.Millisecond, func() { f.name(1) })
	defer claimed.Stop()
	if a := r.call(http.MethodPut, "{}"); a.Code != http.StatusOK {
		t.Fatal(a.Code, a.Body)
	}
}

// A group without an owner costs a call the patience, and nothing was changed: where none is named, and
// where the one that is named refuses.
func TestForwarded_NoOwner(t *testing.T) {
	t.Parallel()
	for _, named := range []int{-1, 0} {
		r, f := newFar(t)
		f.owner, f.named = -1, named
		begun := time.Now()
		a := r.call(http.MethodPut, "{}")
		if a.Code != http.StatusServiceUnavailable || !strings.Contains(a.Body.String(), "nothing was changed") || a.Header().Get("Retry-After") == "" {
			t.Error(a.Code, a.Body)
		}
		if took := time.Since(begun); took < patience || took > 3*patience {
			t.Errorf("it took %s", took)
		}
	}
}

// An owner that stands still is given up once the log names the next one. The outcome of a change is
// unknown then, a read is repeated at the next owner.
func TestForwarded_OwnerStandsStill(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodPut, http.MethodGet} {
		r, f := newFar(t)
		still := make(chan struct{})
		f.still, f.stands = still, func() {
			f.set(func() { f.owner, f.still = 1, nil })
			f.name(1)
		}
		a := r.call(method, "{}")
		close(still)
		switch {
		case method == http.MethodGet && a.Code != http.StatusOK:
			t.Error(a.Code, a.Body)
		case method == http.MethodPut && (a.Code != http.StatusServiceUnavailable || !strings.Contains(a.Body.String(), "unknown")):
			t.Error(a.Code, a.Body)
		}
	}
}

// A call whose body is too large to be kept waits for an owner too: it was answered 503 at once,
// in a planned hand-over also.
func TestForwarded_LargeBodyWaits(t *testing.T) {
	t.Parallel()
	r, f := newFar(t)
	f.owner = -1
	body := strings.Repeat("x", 3*maxReplay)
	claimed := time.AfterFunc(300*time.Millisecond, func() {
		f.set(func() { f.owner = 1 })
		f.name(1)
	})
	defer claimed.Stop()
	if a := r.call(http.MethodPut, body); a.Code != http.StatusOK || a.Body.String() != strconv.Itoa(len(body)) {
		t.Error(a.Code, a.Body)
	}
}

// A large body that a member began to read is gone: the call is not sent again.
func TestForwarded_LargeBodyBegun(t *testing.T) {
	t.Parallel()
	r, f := newFar(t)
	f.owner, f.reads = -1, true
	a := r.call(http.MethodPut, strings.Repeat("x", 3*maxReplay))
	if a.Code != http.StatusServiceUnavailable || !strings.Contains(a.Body.String(), "nothing was changed") {
		t.Error(a.Code, a.Body)
	}
	if got := f.calls(); len(got) != 1 {
		t.Error("calls went to", got)
	}
}

// A body that is too large to be kept goes to the owner at once.
func TestForwarded_LargeBody(t *testing.T) {
	t.Parallel()
	r, f := newFar(t)
	f.owner, f.named = 1, 1
	body := strings.Repeat("x", 3*maxReplay)
	if a := r.call(http.MethodPost, body); a.Code != http.StatusOK || a.Body.String() != strconv.Itoa(len(body)) {
		t.Error(a.Code, a.Body)
	}
	if got := f.calls(); !slices.Equal(got, []int{1}) {
		t.Error("calls went to", got)
	}
}

// A peer with many calls under way leaves slots for the calls of other peers.
func TestForwarded_PeersShareSlots(t *testing.T) {
	t.Parallel()
	r, f := newFar(t)
	still := make(chan struct{})
	f.owner, f.still = 0, still
	var under sync.WaitGroup
	for range maxForwarded / 2 {
		under.Go(func() { r.callFrom("192.0.2.2:1") })
	}
	for r.slots.Used() < maxForwarded/4 {
		runtime.Gosched()
	}
	if answer := r.callFrom("192.0.2.2:2"); answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), detailBusy) {
		t.Errorf("the peer with a quarter of the slots got one more: %d %s", answer.Code, answer.Body)
	}
	other := make(chan int)
	go func() { other <- r.callFrom("192.0.2.3:1").Code }()
	close(still)
	if status := <-other; status != http.StatusOK {
		t.Errorf("another peer got %d", status)
	}
	under.Wait()
	if used := r.slots.Used(); used != 0 {
		t.Errorf("%d slots are kept", used)
	}
}

func (s sending) callFrom(peer string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPut, "/n/s/schedules/k", strings.NewReader("{}"))
	r.RemoteAddr = peer
	s.ServeHTTP(answer, r)
	return answer
}

// The owner sees the address of the caller, not of the member that forwards.
func TestForwarded_HasTheCallersAddress(t *testing.T) {
	t.Parallel()
	var got *http.Request
	r, owner := newSending(t, func(_ http.ResponseWriter, r *http.Request) { got = r })
	sent := httptest.NewRequest(http.MethodPut, "/n/s/schedules/k", strings.NewReader("{}"))
	sent.RemoteAddr = "192.0.2.7:99"
	sent.Header.Set(caller, "192.0.2.8:1") // a caller cannot pass for another one
	r.send(t, httptest.NewRecorder(), sent, owner)
	setCaller(got)
	if got.RemoteAddr != "192.0.2.7:99" || got.Header.Get(caller) != "" {
		t.Errorf("the owner sees %s, header %q", got.RemoteAddr, got.Header.Get(caller))
	}
}
