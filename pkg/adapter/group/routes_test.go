package group

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/metric/noop"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// farState is the state of a member of another group.
type farState int

const (
	farUp farState = iota
	farGone
	farStill
)

// farMember is a member of another group.
type farMember struct {
	state  farState
	named  int           // the member that it takes for the owner; -1: it knows none
	awoken chan struct{} // closed when it does not stand still any more
}

// farGroups are the groups that a member does not belong to, in the place of the network.
type farGroups struct {
	mu     sync.Mutex
	random *rand.Rand
	all    [][members]farMember
	owners []int          // -1: none
	done   map[string]int // how often a call was carried out
	wrong  []string
}

// at is a member's address for forwarded calls, and member the member of an address.
func (f *farGroups) at(group, i int) string {
	return forwardAddress(fmt.Sprintf("10.0.%d.%d:7400", group+1, i))
}

func (f *farGroups) member(host string) (group, i int) {
	_, _ = fmt.Sscanf(host, "10.0.%d.%d:", &group, &i)
	return group - 1, i
}

func (f *farGroups) pause(most time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.random.Int64N(int64(most)))
}

// awake waits while the member stands still, and then says whether it is there.
func (f *farGroups) awake(ctx context.Context, group, i int) error {
	for {
		f.mu.Lock()
		m := f.all[group][i]
		f.mu.Unlock()
		switch m.state {
		case farUp:
			return ctx.Err()
		case farGone:
			return &net.OpError{Op: "dial", Err: io.EOF}
		}
		select {
		case <-m.awoken:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// RoundTrip is a call at a member.
func (f *farGroups) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	group, i := f.member(r.URL.Host)
	time.Sleep(f.pause(10 * time.Millisecond))
	if err := f.awake(r.Context(), group, i); err != nil {
		return nil, err
	}
	f.mu.Lock()
	owns := f.owners[group] == i
	f.mu.Unlock()
	sent := r.ContentLength
	if r.Body != nil && (owns || r.Header.Get("Expect") == "") {
		var err error
		if sent, err = io.Copy(io.Discard, r.Body); err != nil {
			return nil, err
		}
	}
	answer := httptest.NewRecorder()
	f.mu.Lock()
	if named := f.all[group][i].named; named >= 0 {
		answer.Header().Set(ownerHeader, f.at(group, named))
	}
	owns = owns && f.owners[group] == i
	if r.URL.Path != ownerPath {
		if !strings.HasPrefix(r.URL.Path, fmt.Sprintf("/n/s%d/", group)) {
			f.wrong = append(f.wrong, fmt.Sprintf("%s was sent to group %d", r.URL.Path, group))
		}
		if sent != r.ContentLength {
			f.wrong = append(f.wrong, fmt.Sprintf("%s came with %d bytes of %d", r.URL.Path, sent, r.ContentLength))
		}
		if owns {
			f.done[r.URL.Path]++
		}
	}
	f.mu.Unlock()
	if r.URL.Path != ownerPath && !owns {
		answer.Header().Set(notOwner, "true")
		unavailable(answer, detailNoOwner)
	}
	time.Sleep(f.pause(10 * time.Millisecond))
	if err := f.awake(r.Context(), group, i); err != nil { // it went away before it answered
		if r.Context().Err() == nil {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return answer.Result(), nil
}

// become sets the state of a member.
func (f *farGroups) become(group, i int, state farState) {
	m := &f.all[group][i]
	if m.state == farStill {
		close(m.awoken)
	}
	if m.state = state; state == farStill {
		m.awoken = make(chan struct{})
	}
}

// disturb changes something at random.
func (f *farGroups) disturb() {
	f.mu.Lock()
	defer f.mu.Unlock()
	group, i := f.random.IntN(len(f.all)), f.random.IntN(members)
	switch f.random.IntN(6) {
	case 0:
		f.become(group, i, farGone)
	case 1:
		f.become(group, i, farStill)
	case 2:
		f.become(group, i, farUp)
	case 3: // also one that is gone: it is the owner that stood still
		f.owners[group] = i
	case 4:
		f.owners[group] = -1
	case 5: // it has heard of an owner, an old one perhaps
		f.all[group][i].named = f.random.IntN(members+1) - 1
	}
}

// settle gives each group an owner, of which the others hear. One other member stays as it is.
func (f *farGroups) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for group := range f.all {
		owner := f.random.IntN(members)
		left := (owner + 1 + f.random.IntN(members-1)) % members
		f.owners[group] = owner
		for i := range members {
			if i != left {
				f.become(group, i, farUp)
			}
			f.all[group][i].named = owner
		}
	}
}

// wake lets all members go on.
func (f *farGroups) wake() {
	for group := range f.all {
		for i := range members {
			f.become(group, i, farUp)
		}
	}
}

// newAmong returns a member of group 0 of so many groups, and the others. It knows the source
// n/s1 of group 1, and so on.
func newAmong(t *testing.T, groups int, random *rand.Rand) (*Member, *farGroups) {
	t.Helper()
	f := &farGroups{random: random, all: make([][members]farMember, groups), owners: make([]int, groups), done: map[string]int{}}
	m := &Member{client: &http.Client{Transport: f}, otherGroups: map[int]*otherGroup{}, wanted: map[string]*schedule.Spec{}, byPath: map[string]*schedule.Spec{}}
	m.cfg.Settings = Settings{Member: "0.0", TLSDir: "x", Open: func(LogOptions) (Log, error) { return nil, nil }}
	for group := range groups {
		for i := range members {
			m.cfg.Peers = append(m.cfg.Peers, Peer{fmt.Sprintf("%d.%d", group, i), fmt.Sprintf("10.0.%d.%d:7400", group+1, i)})
		}
	}
	if err := m.cfg.Check(); err != nil {
		t.Fatal(err)
	}
	m.forwarded, _ = noop.Meter{}.Int64Counter("forwarded")
	for group := 1; group < groups; group++ {
		m.otherGroups[group] = newOtherGroup(m, group)
		if err := m.SetSource(&schedule.Spec{UID: strconv.Itoa(group), Namespace: "n", Name: fmt.Sprint("s", group), Group: group}); err != nil {
			t.Fatal(err)
		}
	}
	return m, f
}

// judgeRoute is what is wrong with the answer of a call that was carried out so often.
func judgeRoute(method string, answer *httptest.ResponseRecorder, done int) string {
	said := answer.Body.String()
	switch {
	case method == http.MethodGet: // it may be repeated
		if answer.Code == http.StatusOK && done == 0 {
			return "it was answered without an owner"
		}
	case answer.Code == http.StatusOK && done != 1:
		return fmt.Sprintf("it succeeded, and was carried out %d times", done)
	case strings.Contains(said, "nothing was changed") && done > 0:
		return fmt.Sprintf("nothing was changed, it says, and it was carried out %d times", done)
	case done > 1:
		return fmt.Sprintf("it was carried out %d times", done)
	}
	if answer.Code != http.StatusOK && answer.Code != http.StatusServiceUnavailable {
		return fmt.Sprintf("it was answered %d", answer.Code)
	}
	return ""
}

// route plays a history from a seed, and says what was wrong, and how often calls were answered.
func route(t *testing.T, seed uint64) (wrong []string, answers map[int]int) {
	random := rand.New(rand.NewPCG(seed, 0))
	m, f := newAmong(t, 2+random.IntN(3), random)
	handler := m.Route(nil)
	answers = map[int]int{}
	call := func(key string, chooses *rand.Rand) (took time.Duration, answer *httptest.ResponseRecorder) {
		group := 1 + chooses.IntN(len(f.all)-1)
		method, body := http.MethodPut, []byte("{}")
		if chooses.IntN(5) == 0 {
			method = http.MethodGet
		}
		if chooses.IntN(5) == 0 { // once a member reads it, it cannot be sent again
			body = make([]byte, maxReplay+2)
		}
		path := fmt.Sprintf("/n/s%d/schedules/%s", group, key)
		answer = httptest.NewRecorder()
		begun := time.Now()
		handler.ServeHTTP(answer, httptest.NewRequest(method, path, bytes.NewReader(body)))
		took = time.Since(begun)
		f.mu.Lock()
		defer f.mu.Unlock()
		answers[answer.Code]++
		if text := judgeRoute(method, answer, f.done[path]); text != "" {
			wrong = append(wrong, fmt.Sprintf("%s %s, %d bytes: %s: %s", method, path, len(body), text, answer.Body))
		}
		return took, answer
	}
	var callers sync.WaitGroup
	over := time.Now().Add(20 * time.Second)
	for caller := range 4 {
		chooses := rand.New(rand.NewPCG(seed, uint64(caller)+1))
		callers.Go(func() {
			for n := 0; time.Now().Before(over); n++ {
				call(fmt.Sprintf("%d.%d", caller, n), chooses)
				time.Sleep(time.Duration(chooses.IntN(50)) * time.Millisecond)
			}
		})
	}
	for time.Now().Before(over) {
		time.Sleep(f.pause(300 * time.Millisecond))
		f.disturb()
	}
	f.settle()
	hangs := time.AfterFunc(time.Minute, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.wrong = append(f.wrong, "calls hang, with an owner again")
		f.wake()
	})
	callers.Wait()
	hangs.Stop()
	chooses := rand.New(rand.NewPCG(seed, 9))
	for settled, n := time.Now(), 0; n < 40; n++ {
		took, answer := call(fmt.Sprint("after.", n), chooses)
		// A call at a member that stands still finds the owner for the next ones.
		if time.Since(settled) > took+patience && (answer.Code != http.StatusOK || took > 100*time.Millisecond) {
			wrong = append(wrong, fmt.Sprintf("with an owner again, a call took %s: %d %s", took, answer.Code, answer.Body))
		}
		time.Sleep(100 * time.Millisecond)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wake()
	for group, far := range m.otherGroups {
		if used := far.held.Used(); used != 0 {
			wrong = append(wrong, fmt.Sprintf("%d slots of group %d are kept", used, group))
		}
	}
	return append(wrong, f.wrong...), answers
}

// Random memberships, owners that change, and members that are gone, stand still or name an old
// owner: a call goes to the group of its source alone, a change is carried out once at most and
// its answer is true, and calls find the owner again once there is one. A seed plays the same
// events again; the order of goroutines may differ.
func TestRoute_KeepsItsPromises(t *testing.T) {
	t.Parallel()
	n := uint64(100)
	if testing.Short() {
		n = 10
	}
	first := rand.Uint64N(1 << 40)
	last := first + n - 1
	if s := os.Getenv("ROUTE_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("ROUTE_SEED: %v", err)
		}
		first, last = seed, seed
	}
	all := map[int]int{}
	for seed := first; seed <= last && !t.Failed(); seed++ {
		synctest.Test(t, func(t *testing.T) {
			wrong, answers := route(t, seed)
			for _, text := range wrong {
				t.Errorf("ROUTE_SEED=%d: %s", seed, text)
			}
			for code, n := range answers {
				all[code] += n
			}
		})
	}
	t.Logf("calls by status: %v", all)
}
