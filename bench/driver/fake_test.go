package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/bench/report"
)

func TestMain(m *testing.M) {
	// Children are this binary again.
	if len(os.Args) > 1 && os.Args[1] == "child" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fake starts adapters within the test, with just enough of the contract for a
// measurement, and with faults.
type fake struct {
	late     time.Duration // of deliveries; negative: early
	rss      int64         // of one with something stored, above one with nothing
	idleCPU  float64       // share of a core
	forget   int64         // keys that a kill loses
	failItem bool          // the last item of every bulk call is refused
	stall    time.Duration // of a PUT of a key that is there
	broken   bool          // it does not start

	stores sync.Map // by directory
}

// fakeStore has the data of a fake adapter.
type fakeStore struct {
	pending atomic.Int64
	keys    sync.Map
}

type fakeRequest struct {
	Key   string
	Delay string
	DueAt time.Time
	Event struct{ Data json.RawMessage }
}

func (f *fake) start(_ context.Context, c adapterConfig) (*service, error) {
	if f.broken {
		return nil, errors.New("broken")
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, err
	}
	found, _ := f.stores.LoadOrStore(c.Dir, new(fakeStore))
	store := found.(*fakeStore)
	began := time.Now()
	server := httptest.NewServer(f.handler(store, c.Sink))
	return &service{
		addr: server.Listener.Addr().String(), ready: time.Millisecond,
		usage: func() (usage, error) {
			u := usage{cpu: time.Duration(float64(time.Since(began)) * f.idleCPU), rss: 10e6}
			if store.pending.Load() > 0 {
				u.rss += f.rss
			}
			return u, nil
		},
		stop: func() error { server.Close(); return nil },
		kill: func() error { server.Close(); store.pending.Add(-f.forget); return nil },
	}, nil
}

// accept stores a key and delivers it at its time.
func (f *fake) accept(store *fakeStore, sink string, r fakeRequest) {
	store.keys.Store(r.Key, true)
	store.pending.Add(1)
	if d, err := time.ParseDuration(r.Delay); err == nil {
		r.DueAt = time.Now().Add(d)
	}
	if time.Until(r.DueAt) > time.Minute {
		return
	}
	time.AfterFunc(time.Until(r.DueAt)+f.late, func() {
		deliver(sink, r.Key, r.Event.Data)
		store.pending.Add(-1)
	})
}

func (f *fake) handler(store *fakeStore, sink string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+sourcePath, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"pending":%d}`, store.pending.Load())
	})
	mux.HandleFunc("PUT /default/{source}/schedules/{key}", func(w http.ResponseWriter, r *http.Request) {
		one := fakeRequest{Key: r.PathValue("key")}
		json.NewDecoder(r.Body).Decode(&one)
		if _, known := store.keys.Load(one.Key); known {
			<-time.After(f.stall)
			return
		}
		f.accept(store, sink, one)
		w.WriteHeader(http.StatusCreated)
	})
	mux.HandleFunc("POST /default/{source}/schedules", func(w http.ResponseWriter, r *http.Request) {
		var many struct{ Items []fakeRequest }
		json.NewDecoder(r.Body).Decode(&many)
		for i, one := range many.Items {
			if f.failItem && i == len(many.Items)-1 {
				fmt.Fprint(w, `{"status":429,"code":"quota_exceeded"}`)
				return
			}
			f.accept(store, sink, one)
			fmt.Fprint(w, `{"status":201}`)
		}
	})
	return mux
}

// scenarioOf runs one scenario with small numbers against a fake.
func scenarioOf(t *testing.T, name string, f *fake) *report.Result {
	t.Helper()
	b := &bench{dir: t.TempDir(), start: f.start, say: t.Logf, redis: redisServer{absent: "not here"}, postgres: postgresServer{absent: "not here"}}
	b.sizes = sizes{
		rounds: 2, warm: 5 * time.Millisecond, window: 250 * time.Millisecond, callers: 4, batch: 10, burst: 200,
		pending: 400, lateRate: 200, lateFor: time.Second, lateRounds: 1, lead: 400 * time.Millisecond,
		sources: []int{1, 3}, pendings: []int{100, 300}, churn: 100 * time.Millisecond, churnWindow: 300 * time.Millisecond,
		settle: time.Second, settleEvery: time.Millisecond, restarts: 2, idle: 60 * time.Millisecond, deliverLimit: 5 * time.Second,
	}
	var found *report.Result
	err := b.runAll(t.Context(), regexp.MustCompile(name), func(r *report.Result) error {
		found = r
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// verdict finds a bar by the beginning of its text.
func verdict(t *testing.T, bars []report.Bar, wants string) report.Verdict {
	t.Helper()
	for _, bar := range bars {
		if strings.HasPrefix(bar.Wants, wants) {
			return bar.Verdict
		}
	}
	t.Fatalf("no bar %q in %+v", wants, bars)
	return ""
}
