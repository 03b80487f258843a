package group

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
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
)

// farState is the state of another member.
type farState int

const (
	farUp farState = iota
	farGone
	farStill
)

// farMember is another member of the group.
type farMember struct {
	state  farState
	awoken chan struct{} // closed when it does not stand still any more
}

// farMembers are the other members of a group, in the place of the network, and who of them owns it as far as a
// member knows.
type farMembers struct {
	mu     sync.Mutex
	random *rand.Rand
	all    [members - 1]farMember
	owner  int            // -1: none
	named  int            // the member that is taken for the owner, an old one perhaps; -1: none
	moved  chan struct{}  // closed when another one is named
	done   map[string]int // how often a call was carried out
	wrong  []string
}

func (f *farMembers) here() (*tenure, <-chan struct{}) { return nil, nil }
func (f *farMembers) isSealed() bool                   { return false }

func (f *farMembers) elsewhere() (string, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.named < 0 {
		return "", f.moved
	}
	return fmt.Sprintf("10.0.0.%d:7401", f.named), f.moved
}

// name makes the router take the member for the owner.
func (f *farMembers) name(i int) {
	f.named = i
	close(f.moved)
	f.moved = make(chan struct{})
}

func (f *farMembers) pause(most time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Duration(f.random.Int64N(int64(most)))
}

// awake waits while the member stands still, and then says whether it is there.
func (f *farMembers) awake(ctx context.Context, i int) error {
	for {
		f.mu.Lock()
		m := f.all[i]
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
func (f *farMembers) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		defer r.Body.Close()
	}
	var i int
	_, _ = fmt.Sscanf(r.URL.Host, "10.0.0.%d:", &i)
	time.Sleep(f.pause(10 * time.Millisecond))
	if err := f.awake(r.Context(), i); err != nil {
		return nil, err
	}
	f.mu.Lock()
	owns := f.owner == i
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
	if sent != r.ContentLength {
		f.wrong = append(f.wrong, fmt.Sprintf("%s came with %d bytes of %d", r.URL.Path, sent, r.ContentLength))
	}
	if owns = owns && f.owner == i; owns {
		f.done[r.URL.Path]++
	}
	f.mu.Unlock()
	if !owns {
		answer.Header().Set(notOwner, "true")
		unavailable(answer, detailNoOwner)
	}
	time.Sleep(f.pause(10 * time.Millisecond))
	if err := f.awake(r.Context(), i); err != nil { // it went away before it answered
		if r.Context().Err() == nil {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return answer.Result(), nil
}

// become sets the state of a member.
func (f *farMembers) become(i int, state farState) {
	m := &f.all[i]
	if m.state == farStill {
		close(m.awoken)
	}
	if m.state = state; state == farStill {
		m.awoken = make(chan struct{})
	}
}

// disturb changes something at random.
func (f *farMembers) disturb() {
	f.mu.Lock()
	defer f.mu.Unlock()
	i := f.random.IntN(len(f.all))
	switch f.random.IntN(6) {
	case 0:
		f.become(i, farGone)
	case 1:
		f.become(i, farStill)
	case 2:
		f.become(i, farUp)
	case 3: // also one that is gone: it is the owner that stood still
		f.owner = i
	case 4:
		f.owner = -1
	case 5: // the log names an owner, an old one perhaps
		f.name(f.random.IntN(len(f.all)+1) - 1)
	}
}

// settle gives the group an owner, which the log names. The other member stays as it is.
func (f *farMembers) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.owner = f.random.IntN(len(f.all))
	f.become(f.owner, farUp)
	f.name(f.owner)
}

// wake lets all members go on.
func (f *farMembers) wake() {
	for i := range f.all {
		f.become(i, farUp)
	}
}

// newAmong returns a router of a member that owns nothing, and the other members.
func newAmong(random *rand.Rand) (*router, *farMembers) {
	f := &farMembers{random: random, moved: make(chan struct{}), done: map[string]int{}}
	r := newRouter(&Config{Log: slog.New(slog.DiscardHandler)}, f, &http.Client{Transport: f})
	r.counter, _ = noop.Meter{}.Int64Counter("forwarded")
	return r, f
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
func route(seed uint64) (wrong []string, answers map[int]int) {
	random := rand.New(rand.NewPCG(seed, 0))
	r, f := newAmong(random)
	answers = map[int]int{}
	call := func(key string, chooses *rand.Rand) (took time.Duration, answer *httptest.ResponseRecorder) {
		method, body := http.MethodPut, []byte("{}")
		if chooses.IntN(5) == 0 {
			method = http.MethodGet
		}
		if chooses.IntN(5) == 0 { // once a member reads it, it cannot be sent again
			body = make([]byte, maxReplay+2)
		}
		path := "/n/s/schedules/" + key
		answer = httptest.NewRecorder()
		begun := time.Now()
		r.answer(nil, answer, httptest.NewRequest(method, path, bytes.NewReader(body)))
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
		if time.Since(settled) > took+patience && (answer.Code != http.StatusOK || took > 100*time.Millisecond) {
			wrong = append(wrong, fmt.Sprintf("with an owner again, a call took %s: %d %s", took, answer.Code, answer.Body))
		}
		time.Sleep(100 * time.Millisecond)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wake()
	if used := r.slots.Used(); used != 0 {
		wrong = append(wrong, fmt.Sprintf("%d slots are kept", used))
	}
	return append(wrong, f.wrong...), answers
}

// Owners that change, members that are gone or stand still, and a log that names an old owner: a change is
// carried out once at most, its answer is true, and calls find the owner again once there is one. A seed plays
// the same events again; the order of goroutines may differ.
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
			wrong, answers := route(seed)
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
