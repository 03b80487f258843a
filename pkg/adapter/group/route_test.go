package group

import (
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// far is a group that a member does not belong to: three servers that answer as its members.
type far struct {
	mu      sync.Mutex
	servers [members]*httptest.Server
	owner   int  // -1: none
	names   bool // the others say who the owner is
	reads   bool // the others read the body before they refuse the call
	called  []int
	still   chan struct{} // the owner answers once it is closed; nil: at once
	stands  func()        // called when a call has reached an owner that stands still; nil: none
}

func (f *far) address(i int) string { return strings.TrimPrefix(f.servers[i].URL, "http://") }

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
	owner, names, reads, still, stands := f.owner, f.names, f.reads, f.still, f.stands
	if r.URL.Path != ownerPath {
		f.called = append(f.called, i)
	}
	f.mu.Unlock()
	if names && owner >= 0 {
		w.Header().Set(ownerHeader, f.address(owner))
	}
	switch {
	case r.URL.Path == ownerPath:
	case owner != i:
		if reads {
			_, _ = io.Copy(io.Discard, r.Body)
		}
		w.Header().Set(notOwner, "true")
		unavailable(w, detailNoOwner)
	default:
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
}

// newFar returns a member of group 0, which knows the source n/s of group 1, and that group.
func newFar(t *testing.T) (*Member, *far) {
	t.Helper()
	f := &far{names: true}
	peers := []Peer{{"a", "127.0.0.1:1"}, {"b", "127.0.0.1:3"}, {"c", "127.0.0.1:5"}}
	for i := range f.servers {
		f.servers[i] = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { f.answer(i, w, r) }))
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.%d:0", 2+i)) // two members have no port in common
		if err != nil {
			t.Fatal(err)
		}
		f.servers[i].Listener.Close()
		f.servers[i].Listener = l
		f.servers[i].Start()
		t.Cleanup(f.servers[i].Close)
		host, port, err := net.SplitHostPort(f.address(i))
		if err != nil {
			t.Fatal(err)
		}
		n, _ := strconv.Atoi(port)
		peers = append(peers, Peer{string(rune('d' + i)), net.JoinHostPort(host, strconv.Itoa(n-1))})
	}
	m := &Member{client: forwarder(nil), otherGroups: map[int]*otherGroup{}, wanted: map[string]*schedule.Spec{}, byPath: map[string]*schedule.Spec{}}
	m.cfg.Log = slog.New(slog.DiscardHandler)
	m.cfg.Settings = Settings{Member: "a", Peers: peers, Open: func(LogOptions) (Log, error) { return nil, nil }}
	if err := m.cfg.Check(); err != nil {
		t.Fatal(err)
	}
	m.otherGroups[1] = newOtherGroup(m, 1)
	m.forwarded, _ = noop.Meter{}.Int64Counter("forwarded")
	t.Cleanup(m.client.CloseIdleConnections)
	if err := m.SetSource(&schedule.Spec{UID: "u", Namespace: "n", Name: "s", Group: 1}); err != nil {
		t.Fatal(err)
	}
	return m, f
}

func (f *far) call(m *Member, method, body string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	m.Route(nil).ServeHTTP(answer, httptest.NewRequest(method, "/n/s/schedules/k", strings.NewReader(body)))
	return answer
}

// A call for a source of another group goes to the member that a refusal names, and the next
// call goes there at once.
func TestForeign_HintIsFollowed(t *testing.T) {
	t.Parallel()
	m, f := newFar(t)
	f.owner = 2
	for range 2 {
		if a := f.call(m, http.MethodPut, "{}"); a.Code != http.StatusOK {
			t.Fatal(a.Code, a.Body)
		}
	}
	if got := f.calls(); !slices.Equal(got, []int{0, 2, 2}) {
		t.Error("calls went to", got)
	}
}

// Members that name no owner, or cannot be reached, are passed over.
func TestForeign_NextMemberIsTried(t *testing.T) {
	t.Parallel()
	m, f := newFar(t)
	f.owner, f.names = 2, false
	if a := f.call(m, http.MethodPut, "{}"); a.Code != http.StatusOK {
		t.Fatal(a.Code, a.Body)
	}
	if got := f.calls(); !slices.Equal(got, []int{0, 1, 2}) {
		t.Error("calls went to", got)
	}
	f.servers[2].Close()
	m.client.CloseIdleConnections() // on one of them the outcome of a change would be unknown
	f.set(func() { f.owner = 1 })
	if a := f.call(m, http.MethodPut, "{}"); a.Code != http.StatusOK {
		t.Fatal(a.Code, a.Body)
	}
}

// The others name an owner that is gone until one of them owns the shard. The call waits.
func TestForeign_DeadOwnerIsNamed(t *testing.T) {
	t.Parallel()
	m, f := newFar(t)
	f.owner = 0
	f.servers[0].Close()
	claimed := time.AfterFunc(300*time.Millisecond, func() { f.set(func() { f.owner = 2 }) })
	defer claimed.Stop()
	if a := f.call(m, http.MethodPut, "{}"); a.Code != http.StatusOK {
		t.Fatal(a.Code, a.Body)
	}
}

// A group without an owner costs a call the patience, and nothing was changed.
func TestForeign_NoOwner(t *testing.T) {
	t.Parallel()
	m, f := newFar(t)
	f.owner = -1
	begun := time.Now()
	a := f.call(m, http.MethodPut, "{}")
	if a.Code != http.StatusServiceUnavailable || !strings.Contains(a.Body.String(), "nothing was changed") || a.Header().Get("Retry-After") == "" {
		t.Error(a.Code, a.Body)
	}
	if took := time.Since(begun); took < patience || took > 3*patience {
		t.Errorf("it took %s", took)
	}
}

// An owner that stands still is found out by asking the others. The outcome of a change is
// unknown then, a read is repeated at the next owner.
func TestForeign_OwnerStandsStill(t *testing.T) {
	t.Parallel()
	for _, method := range []string{http.MethodPut, http.MethodGet} {
		m, f := newFar(t)
		still := make(chan struct{})
		f.still, f.stands = still, func() { f.set(func() { f.owner, f.still = 1, nil }) }
		a := f.call(m, method, "{}")
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
func TestForeign_LargeBodyWaits(t *testing.T) {
	t.Parallel()
	m, f := newFar(t)
	f.owner = -1
	body := strings.Repeat("x", 3*maxReplay)
	claimed := time.AfterFunc(300*time.Millisecond, func() { f.set(func() { f.owner = 2 }) })
	defer claimed.Stop()
	if a := f.call(m, http.MethodPut, body); a.Code != http.StatusOK || a.Body.String() != strconv.Itoa(len(body)) {
		t.Error(a.Code, a.Body)
	}
}

// A large body that a member began to read is gone: the call is not sent again.
func TestForeign_LargeBodyBegun(t *testing.T) {
	t.Parallel()
	m, f := newFar(t)
	f.owner, f.reads = -1, true
	a := f.call(m, http.MethodPut, strings.Repeat("x", 3*maxReplay))
	if a.Code != http.StatusServiceUnavailable || !strings.Contains(a.Body.String(), "nothing was changed") {
		t.Error(a.Code, a.Body)
	}
	if got := f.calls(); len(got) != 1 {
		t.Error("calls went to", got)
	}
}

// A body that is too large to be kept goes to the owner at once.
func TestForeign_LargeBody(t *testing.T) {
	t.Parallel()
	m, f := newFar(t)
	f.owner = 1
	body := strings.Repeat("x", 3*maxReplay)
	if a := f.call(m, http.MethodPost, body); a.Code != http.StatusOK || a.Body.String() != strconv.Itoa(len(body)) {
		t.Error(a.Code, a.Body)
	}
	if got := f.calls(); !slices.Equal(got, []int{1}) {
		t.Error("calls went to", got)
	}
}

// Which group answers a call for a source.
func TestMember_Destination(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		groups, placed, want int // -1: none
	}{
		{1, 0, 0}, {1, schedule.NoGroup, 0}, {1, 1, -1},
		{2, 0, 0}, {2, 1, 1}, {2, schedule.NoGroup, -1}, {2, 2, -1},
	} {
		m, _ := newFar(t)
		m.cfg.Peers = m.cfg.Peers[:test.groups*members]
		if err := m.SetSource(&schedule.Spec{UID: "new", Namespace: "n", Name: "new", Group: test.placed}); err != nil {
			t.Fatal(err)
		}
		got := -1
		if d := m.destination(httptest.NewRequest(http.MethodGet, "/n/new", http.NoBody)); d != nil {
			got = d.number()
		}
		if got != test.want {
			t.Errorf("%d groups, source in %d: %d, want %d", test.groups, test.placed, got, test.want)
		}
	}
}

// A source that is not known is looked for in the member's own group. The path may be encoded.
func TestMember_DestinationByPath(t *testing.T) {
	t.Parallel()
	m, _ := newFar(t)
	for path, want := range map[string]int{
		"/n/s": 1, "/n/s/events": 1, "/n/%73/schedules/a%2Fb": 1, "/n/s/deadletters/k/redrive": 1,
		"/n/other": 0, "/n": 0, "/n%2Fs/x": 0, "/x/s": 0,
	} {
		if got := m.destination(httptest.NewRequest(http.MethodGet, path, http.NoBody)).number(); got != want {
			t.Errorf("%s: group %d, want %d", path, got, want)
		}
	}
	if err := m.RemoveSource("u"); err != nil {
		t.Fatal(err)
	}
	if got := m.destination(httptest.NewRequest(http.MethodGet, "/n/s", http.NoBody)).number(); got != 0 {
		t.Error("a removed source is in group", got)
	}
}

// A source is given a group once. Another one would leave its schedules behind.
func TestMember_SourceIsNotMoved(t *testing.T) {
	t.Parallel()
	m, _ := newFar(t)
	source := func(group int) *schedule.Spec {
		return &schedule.Spec{UID: "new", Namespace: "n", Name: "new", Group: group}
	}
	for _, group := range []int{schedule.NoGroup, 1, 1} {
		if err := m.SetSource(source(group)); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.SetSource(source(0)); err == nil || !strings.Contains(err.Error(), "cannot be moved") {
		t.Error(err)
	}
	if d := m.destination(httptest.NewRequest(http.MethodGet, "/n/new", http.NoBody)); d.number() != 1 {
		t.Error("it is in group", d.number())
	}
}

// A member that has heard that a source is another group's refuses a forwarded call for it.
func TestForwarded_OtherGroupsSource(t *testing.T) {
	t.Parallel()
	m, _ := newFar(t)
	answer := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/n/s", http.NoBody)
	r.Header.Set(caller, "192.0.2.7:99")
	m.routePeers(nil).ServeHTTP(answer, r)
	if answer.Code != http.StatusServiceUnavailable || answer.Header().Get(notOwner) != "true" {
		t.Error(answer.Code, answer.Header())
	}
}

// Members come in threes, in the order of --peers.
func TestSettings_Groups(t *testing.T) {
	t.Parallel()
	var peers []Peer
	for i := range 7 {
		peers = append(peers, Peer{string(rune('a' + i)), "127.0.0.1:" + strconv.Itoa(100+2*i)})
	}
	for n := range 8 {
		s := Settings{Member: "a", Peers: peers[:n], Open: func(LogOptions) (Log, error) { return nil, nil }}
		if err := s.Check(); (err == nil) != (n == 3 || n == 6) || err != nil && n > 0 && !strings.Contains(err.Error(), "three for each group") {
			t.Errorf("%d members: %v", n, err)
		}
	}
	s := Settings{Member: "e", Peers: peers[:6], Open: func(LogOptions) (Log, error) { return nil, nil }}
	if err := s.Check(); err != nil {
		t.Fatal(err)
	}
	if s.shard != 1 || len(s.peers) != members || s.peers["d"] != "127.0.0.1:106" || !slices.Equal(s.others(), []string{"d", "f"}) {
		t.Errorf("%+v", s)
	}
}

// A peer with many calls under way leaves slots for the calls of other peers.
func TestForeign_PeersShareSlots(t *testing.T) {
	t.Parallel()
	m, f := newFar(t)
	still := make(chan struct{})
	f.owner, f.still = 0, still
	var under sync.WaitGroup
	for range maxForwarded / 2 {
		under.Go(func() { f.callFrom(m, "192.0.2.2:1") })
	}
	for m.otherGroups[1].held.Used() < maxForwarded/4 {
		runtime.Gosched()
	}
	if answer := f.callFrom(m, "192.0.2.2:2"); answer.Code != http.StatusServiceUnavailable || !strings.Contains(answer.Body.String(), detailBusy) {
		t.Errorf("the peer with a quarter of the slots got one more: %d %s", answer.Code, answer.Body)
	}
	other := make(chan int)
	go func() { other <- f.callFrom(m, "192.0.2.3:1").Code }()
	close(still)
	if status := <-other; status != http.StatusOK {
		t.Errorf("another peer got %d", status)
	}
	under.Wait()
	if used := m.otherGroups[1].held.Used(); used != 0 {
		t.Errorf("%d slots are kept", used)
	}
}

func (f *far) callFrom(m *Member, peer string) *httptest.ResponseRecorder {
	answer := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPut, "/n/s/schedules/k", strings.NewReader("{}"))
	r.RemoteAddr = peer
	m.Route(nil).ServeHTTP(answer, r)
	return answer
}

// The owner sees the address of the caller, not of the member that forwards.
func TestForwarded_HasTheCallersAddress(t *testing.T) {
	t.Parallel()
	var got *http.Request
	m, owner := newSending(t, func(_ http.ResponseWriter, r *http.Request) { got = r })
	sent := httptest.NewRequest(http.MethodPut, "/n/s/schedules/k", strings.NewReader("{}"))
	sent.RemoteAddr = "192.0.2.7:99"
	sent.Header.Set(caller, "192.0.2.8:1") // a caller cannot pass for another one
	call, err := newForwarding(httptest.NewRecorder(), sent)
	if err != nil {
		t.Fatal(err)
	}
	m.forward(httptest.NewRecorder(), sent, call, ownGroup{m}, owner, nil)
	setCaller(got)
	if got.RemoteAddr != "192.0.2.7:99" || got.Header.Get(caller) != "" {
		t.Errorf("the owner sees %s, header %q", got.RemoteAddr, got.Header.Get(caller))
	}
}
