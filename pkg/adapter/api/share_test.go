package api

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// trickle is a body of which nothing more comes after the first bytes, until it is closed.
type trickle struct {
	first io.Reader
	more  chan struct{}
}

func (r *trickle) Read(b []byte) (int, error) {
	if n, err := r.first.Read(b); err == nil {
		return n, nil
	}
	<-r.more
	return 0, io.ErrUnexpectedEOF
}

// start makes a call that goes on in the background.
func (e *edge) start(method, target, from string, length int64, body io.Reader) <-chan *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, body)
	r.ContentLength, r.RemoteAddr = length, from+":1"
	done := make(chan *httptest.ResponseRecorder, 1)
	go func() {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		done <- w
	}()
	return done
}

// A body counts in the budget by the bytes that have arrived, not by its Content-Length.
func TestSlowBodies_HoldWhatHasArrived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t)
		more := make(chan struct{})
		var slow []<-chan *httptest.ResponseRecorder
		for range 100 {
			slow = append(slow, e.start("PUT", base+"/schedules/slow", "10.0.0.1", 16<<20, &trickle{strings.NewReader("{"), more}))
		}
		synctest.Wait()
		if held := e.bytes.Used(); held != 0 {
			t.Errorf("%d bytes of the budget are held for hundred bytes", held)
		}
		if w := e.body(16<<20, strings.NewReader("{}"+strings.Repeat(" ", 16<<20-2))); w.Code != http.StatusCreated {
			t.Errorf("the largest body: %d %s", w.Code, w.Body)
		}
		close(more)
		for _, done := range slow {
			<-done
		}
		if e.bytes.Used() != 0 || e.shares.Used() != 0 {
			t.Errorf("%d and %d are held at the end", e.bytes.Used(), e.shares.Used())
		}
	})
}

// A peer gets at most a quarter of the memory for requests, and then 503 with Retry-After. Other peers are answered.
func TestPeer_HasAShareOfTheRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, func(c *Config) { c.BudgetWait = 5 * time.Second })
		more := make(chan struct{})
		var flood []<-chan *httptest.ResponseRecorder
		for range 1000 {
			flood = append(flood, e.start("PUT", base+"/schedules/k", "10.0.0.1", 10, &trickle{strings.NewReader("{"), more}))
		}
		synctest.Wait()
		if held := e.shares.Used(); held > defaultRequests/4 {
			t.Errorf("one peer holds %d", held)
		}
		if w := <-e.start("PUT", base+"/schedules/k", "10.0.0.2", 2, strings.NewReader("{}")); w.Code >= 300 {
			t.Errorf("another peer: %d %s", w.Code, w.Body)
		}
		late := <-e.start("PUT", base+"/schedules/k", "10.0.0.1", 2, strings.NewReader("{}"))
		if late.Code != http.StatusServiceUnavailable || late.Header().Get("Retry-After") == "" {
			t.Errorf("the same peer: %d %s", late.Code, late.Body)
		}
		close(more)
		for _, done := range flood {
			<-done
		}
		if w := <-e.start("PUT", base+"/schedules/k", "10.0.0.1", 2, strings.NewReader("{}")); w.Code >= 300 {
			t.Errorf("the same peer afterwards: %d %s", w.Code, w.Body)
		}
	})
}

// A request with large headers is refused at once without memory for it: one that waits is not counted.
func TestLargeHeaders_DoNotWaitUncounted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, func(c *Config) { c.Requests, c.BudgetWait = 64<<10, time.Hour })
		all := e.shares.Claim("another", "source")
		all.TryGrow(64 << 10)
		start := time.Now()
		w := e.do("GET", base, "", "X-Large", strings.Repeat("x", 8<<10))
		if w.Code != http.StatusServiceUnavailable || time.Since(start) > 0 {
			t.Errorf("%d after %s", w.Code, time.Since(start))
		}
	})
}

// The body of an unauthenticated caller counts for the caller's address, not for the source.
func TestStrangers_TakeNothingFromASource(t *testing.T) {
	t.Parallel()
	for user, want := range map[string]string{"": unauthenticatedNamespace, "a user": "default"} {
		e := newEdge(t, func(c *Config) { c.Guard = &watchman{user: user} })
		var held []string
		e.ingest = func(context.Context, ingest.Source, http.Header, []byte, access.Judge) ([]queue.Item, error) {
			for _, namespace := range []string{unauthenticatedNamespace, "default"} {
				if c := e.bytes.Claim(namespace, "other"); !c.TryGrow(e.cfg.Budget - 256<<10) {
					held = append(held, namespace)
				} else {
					c.Release()
				}
			}
			return nil, nil
		}
		e.do("POST", base, strings.Repeat("x", 64<<10))
		if !slices.Equal(held, []string{want}) {
			t.Errorf("caller %q: held by %q", user, held)
		}
	}
}

// large is a source whose keys have events of 255 KiB, and that tells how many lists and reads are under way.
type large struct {
	*fake
	mu        sync.Mutex
	now, most int
	gate      chan struct{}
}

func (l *large) enter() func() {
	l.mu.Lock()
	l.now++
	l.most = max(l.most, l.now)
	l.mu.Unlock()
	<-l.gate
	return func() {
		l.mu.Lock()
		l.now--
		l.mu.Unlock()
	}
}

func (l *large) Get(string) (schedule.View, bool, error) {
	defer l.enter()()
	return l.view("k"), true, nil
}

func (l *large) List(queue.ListOptions) ([]schedule.View, string, error) {
	defer l.enter()()
	return []schedule.View{l.view("k")}, "", nil
}

// A read claims memory before it reads, so that many reads at once stay within the budget, and all are answered.
func TestReads_TakeTheirShareBeforeTheyRead(t *testing.T) {
	t.Parallel()
	for target, most := range map[string]int{"/schedules": 32 << 20 / chunkBytes, "/schedules/k": 32 << 20 / entryBytes, "/schedules?order=due&prefix=k": 1} {
		synctest.Test(t, func(t *testing.T) {
			e := newEdge(t, func(c *Config) { c.BudgetWait = time.Minute })
			e.put(t, "k", `{"event":{"data":"`+strings.Repeat("x", 255<<10)+`"}}`)
			l := &large{fake: e.fake, gate: make(chan struct{})}
			e.lookup = func(string, string) (source, letters, bool) { return l, nil, true }
			var all []<-chan *httptest.ResponseRecorder
			for i := range 120 {
				all = append(all, e.start("GET", base+target, fmt.Sprintf("10.0.0.%d", i), 0, http.NoBody))
			}
			synctest.Wait()
			if l.most > most || l.most == 0 {
				t.Errorf("%s: %d at a time, want at most %d", target, l.most, most)
			}
			close(l.gate)
			for _, done := range all {
				if w := <-done; w.Code != http.StatusOK || w.Body.Len() < 255<<10 {
					t.Errorf("%s: %d, %d bytes", target, w.Code, w.Body.Len())
				}
			}
			if e.bytes.Used() != 0 || e.scans.Used() != 0 {
				t.Errorf("%s: %d and %d are held at the end", target, e.bytes.Used(), e.scans.Used())
			}
		})
	}
}

// The answer to a bulk call is complete even when it is sent in several pieces, because its changes are already made.
func TestBulkAnswer_LongOneIsComplete(t *testing.T) {
	t.Parallel()
	e := newEdge(t)
	var items []string
	for i := range 40 {
		items = append(items, fmt.Sprintf(`{"key":"k%d","event":{"data":%q}}`, i, strings.Repeat("x", 4<<10)))
	}
	w := e.do("POST", base+"/schedules", `{"items":[`+strings.Join(items, ",")+`]}`)
	var answer struct{ Items []any }
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil || w.Code != http.StatusOK || len(answer.Items) != 40 || w.Body.Len() < 4*streamBytes {
		t.Errorf("%d, %d items in %d bytes: %v", w.Code, len(answer.Items), w.Body.Len(), err)
	}
}

// A buffer above pooledBytes does not return to its pool, because the pools are outside the budget.
func TestPools_KeepNothingLarge(t *testing.T) {
	t.Parallel()
	d := decoders.New().(*decoder)
	d.buf = *bytes.NewBuffer(make([]byte, pooledBytes+1))
	d.scratch = make([]byte, pooledBytes+1)
	d.batch.items = make([]queue.Item, pooledItems+1)
	d.clear() // another test may take it once it is free
	if d.buf.Cap() > pooledBytes || d.scratch != nil || d.batch.items != nil {
		t.Errorf("kept: %d bytes of body, %d of scratch, %d items", d.buf.Cap(), cap(d.scratch), cap(d.batch.items))
	}
}

// A body that takes long to decode needs a turn; while all are taken it waits, and is refused with the reason.
func TestLongBodies_TakeTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t)
		var held []*budget.Claim
		for range max(1, runtime.GOMAXPROCS(0)/2) {
			turn, err := e.writing.Take(t.Context(), "other", "source")
			must(t, err)
			held = append(held, turn)
		}
		item := `{"key":"%s","event":{"data":"` + strings.Repeat("x", budget.LongBytes) + `"}}`
		put := strings.Replace(item, `"key":"%s",`, "", 1)
		bulk := `{"items":[` + fmt.Sprintf(item, "a") + `,` + fmt.Sprintf(item, "b") + `]}`
		for _, long := range []struct{ method, target, body string }{{"PUT", base + "/schedules/k", put}, {"POST", base + "/schedules", bulk}} {
			start := time.Now()
			w := e.do(long.method, long.target, long.body)
			if w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), "processor") || time.Since(start) != budget.TurnWait {
				t.Errorf("%s while others compute: %d %s after %s", long.method, w.Code, w.Body, time.Since(start))
			}
		}
		if w := e.do("PUT", base+"/schedules/k", "{}"); w.Code != http.StatusCreated {
			t.Errorf("a short body: %d %s", w.Code, w.Body)
		}
		for i := range held {
			held[i].Release()
		}
		if w := e.do("POST", base+"/schedules", bulk); w.Code != http.StatusOK {
			t.Errorf("a long body afterwards: %d %s", w.Code, w.Body)
		}
		if w := e.do("PUT", base+"/schedules/k", put); w.Code >= 300 {
			t.Errorf("and another one: a turn was not given back: %d %s", w.Code, w.Body)
		}
	})
}

// claiming is a source whose changes read so many bytes of large entries.
type claiming struct {
	*fake
	bytes int64
}

func (c *claiming) Schedule(key string, r *schedule.Request, claim queue.ClaimMemory) (queue.Scheduled, error) {
	if err := claim(c.bytes); err != nil {
		return queue.Scheduled{}, err
	}
	return c.fake.Schedule(key, r, nil)
}

// A long write waits for memory without its turn, so that a namespace without memory holds up no other.
func TestMemory_IsWaitedForWithoutATurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, func(c *Config) { c.BudgetWait = time.Minute })
		e.lookup = func(namespace, _ string) (source, letters, bool) {
			if namespace == "greedy" {
				return &claiming{e.fake, 4 << 20}, nil, true
			}
			return e.fake, nil, true
		}
		rest := e.bytes.Claim("greedy", "other")
		if !rest.TryGrow(e.bytes.Total()/2 - 4<<20) {
			t.Fatal("the share of a namespace is smaller")
		}
		body := `{"event":{"data":"` + strings.Repeat("x", budget.LongBytes) + `"}}`
		var waiting []<-chan *httptest.ResponseRecorder
		for i := range max(1, runtime.GOMAXPROCS(0)/2) {
			waiting = append(waiting, e.start("PUT", fmt.Sprintf("/greedy/s/schedules/k%d", i), "10.0.0.1", int64(len(body)), strings.NewReader(body)))
		}
		synctest.Wait()
		start := time.Now()
		if w := e.do("PUT", base+"/schedules/k", body); w.Code != http.StatusCreated || time.Since(start) > 0 {
			t.Errorf("the neighbour: %d %s after %s", w.Code, w.Body, time.Since(start))
		}
		rest.Release()
		for _, done := range waiting {
			if w := <-done; w.Code != http.StatusCreated {
				t.Errorf("with memory: %d %s", w.Code, w.Body)
			}
		}
		// Nor does a call go on without a turn, or keep what it claimed.
		turn, err := e.writing.Take(t.Context(), "other", "source")
		must(t, err)
		turn.Release()
		if e.bytes.Used() != 0 {
			t.Errorf("%d bytes are held at the end", e.bytes.Used())
		}
	})
}
