package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
		if err := child(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// fakeAdapters are adapters within the test, with just enough of the contract
// for a measurement, and with faults.
type fakeAdapters struct {
	t        *testing.T
	late     time.Duration // of deliveries; negative: early
	ready    time.Duration // duration of a start with something stored
	rss      int64         // of one with something stored
	idleCPU  float64       // share of a core
	disk     int64         // of one with something stored
	forget   int           // keys that a kill loses
	failItem bool          // the last item of every bulk call is refused
	stall    time.Duration // of a PUT of a key that is there

	mu     sync.Mutex
	stores map[string]*fakeStore
}

// fakeStore is the data of a fake adapter.
type fakeStore struct {
	pending atomic.Int64
	keys    sync.Map
	dir     string
	written sync.Once
}

func (f *fakeAdapters) start(_ context.Context, c adapterConfig) (*service, time.Duration, error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, 0, err
	}
	f.mu.Lock()
	if f.stores == nil {
		f.stores = map[string]*fakeStore{}
	}
	if f.stores[c.Dir] == nil {
		f.stores[c.Dir] = &fakeStore{dir: c.Dir}
	}
	store := f.stores[c.Dir]
	f.mu.Unlock()

	ready, rss := time.Millisecond, int64(10e6)
	if store.pending.Load() > 0 {
		ready += f.ready
		rss += f.rss
	}
	began := time.Now()
	server := httptest.NewServer(f.handler(store, c.Sink))
	return &service{
		addr: server.Listener.Addr().String(),
		usage: func() (usage, error) {
			now := rss
			if store.pending.Load() > 0 {
				now = 10e6 + f.rss
			}
			return usage{cpu: time.Duration(float64(time.Since(began)) * f.idleCPU), rss: now}, nil
		},
		stop: func() error { server.Close(); return nil },
		kill: func() error {
			server.Close()
			store.pending.Add(-int64(f.forget))
			return nil
		},
	}, ready, nil
}

type fakeRequest struct {
	Key   string
	Delay *string
	DueAt *time.Time
	Event struct{ Data json.RawMessage }
}

func (f *fakeAdapters) handler(store *fakeStore, sink string) http.Handler {
	accept := func(r fakeRequest) {
		store.pending.Add(1)
		store.written.Do(func() {
			file, err := os.Create(filepath.Join(store.dir, "data"))
			if err == nil {
				_, err = file.Write(make([]byte, f.disk))
			}
			if err == nil {
				err = file.Sync() // blocks are allocated late
			}
			if err != nil {
				f.t.Error(err)
			}
			file.Close()
		})
		due := time.Now()
		switch {
		case r.DueAt != nil:
			due = *r.DueAt
		case r.Delay != nil:
			d, err := time.ParseDuration(*r.Delay)
			if err != nil {
				f.t.Errorf("delay %q: %v", *r.Delay, err)
			}
			due = due.Add(d)
		default:
			f.t.Error("a request without a time")
		}
		if time.Until(due) > time.Minute {
			return
		}
		time.AfterFunc(time.Until(due)+f.late, func() {
			request, _ := http.NewRequest(http.MethodPost, "http://"+sink+"/", strings.NewReader(string(r.Event.Data)))
			request.Header.Set("Ce-Reschedulekey", r.Key)
			request.Header.Set("Ce-Id", "1")
			answer, err := http.DefaultClient.Do(request)
			if err != nil {
				return // the test is over
			}
			answer.Body.Close()
			store.pending.Add(-1)
		})
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+sourcePath, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"pending":%d,"due":0,"inFlight":0,"nextDueAt":null}`, store.pending.Load())
	})
	mux.HandleFunc("PUT /"+namespace+"/{source}/schedules/{key}", func(w http.ResponseWriter, r *http.Request) {
		var one fakeRequest
		if err := json.NewDecoder(r.Body).Decode(&one); err != nil {
			f.t.Errorf("PUT: %v", err)
		}
		one.Key = r.PathValue("key")
		if _, known := store.keys.LoadOrStore(one.Key, true); !known {
			accept(one)
			w.WriteHeader(http.StatusCreated)
		} else if f.stall > 0 {
			<-time.After(f.stall)
		}
		fmt.Fprintf(w, `{"key":%q,"result":"created"}`, one.Key)
	})
	mux.HandleFunc("POST /"+namespace+"/{source}/schedules", func(w http.ResponseWriter, r *http.Request) {
		var many struct{ Items []fakeRequest }
		if err := json.NewDecoder(r.Body).Decode(&many); err != nil {
			f.t.Errorf("POST: %v", err)
		}
		var items []string
		for i, one := range many.Items {
			if f.failItem && i == len(many.Items)-1 {
				items = append(items, fmt.Sprintf(`{"key":%q,"status":429,"code":"quota_exceeded","detail":"full"}`, one.Key))
				continue
			}
			accept(one)
			store.keys.Store(one.Key, true)
			items = append(items, fmt.Sprintf(`{"key":%q,"status":201}`, one.Key))
		}
		fmt.Fprintf(w, `{"items":[%s]}`, strings.Join(items, ","))
	})
	return mux
}

// inProcess runs children within the test.
type inProcess struct{}

func (inProcess) server(kind string, config any) (*service, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	handler, err := servers[kind](text)
	if err != nil {
		return nil, err
	}
	s := httptest.NewServer(handler)
	end := func() error { s.Close(); return nil }
	return &service{
		addr: s.Listener.Addr().String(), stop: end, kill: end,
		usage: func() (usage, error) { return usage{cpu: ownCPU()}, nil },
	}, nil
}

func (inProcess) job(ctx context.Context, kind string, config, found any) error {
	if c, ok := config.(pebbleConfig); ok {
		c.Memory = true
		config = c
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	answer, err := jobs[kind](ctx, text)
	if err != nil {
		return err
	}
	if text, err = json.Marshal(answer); err != nil {
		return err
	}
	return json.Unmarshal(text, found)
}

// measured runs one scenario with small numbers against fakes.
func measured(t *testing.T, name string, f *fakeAdapters, change func(*bench)) *report.Result {
	t.Helper()
	f.t = t
	b := &bench{
		dir: t.TempDir(), adapters: f, children: inProcess{}, say: t.Logf,
		redis: redisServer{absent: "not here"}, postgres: postgresServer{absent: "not here"},
		rounds: 2, warm: 5 * time.Millisecond, window: 250 * time.Millisecond, callers: 4, batch: 10, burst: 200,
		pending: 2500, lateRate: 200, lateFor: time.Second, lateRounds: 1, lead: 400 * time.Millisecond,
		sources: []int{1, 3}, sizes: []int{100, 300}, churn: 100 * time.Millisecond, churnWindow: 50 * time.Millisecond,
		settle: time.Second, settleEvery: time.Millisecond, restarts: 2, idle: 60 * time.Millisecond, deliverLimit: 5 * time.Second,
	}
	if change != nil {
		change(b)
	}
	for _, s := range scenarios {
		if s.name == name {
			r, err := b.measure(t.Context(), s, report.Conditions{})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
	}
	t.Fatalf("no scenario %q", name)
	return nil
}

// verdict finds a bar by the beginning of its text.
func verdict(t *testing.T, r *report.Result, wants string) report.Verdict {
	t.Helper()
	for _, bar := range r.Bars {
		if strings.HasPrefix(bar.Wants, wants) {
			t.Logf("%s: %s: %s", bar.Verdict, bar.Wants, bar.Got)
			return bar.Verdict
		}
	}
	t.Fatalf("no bar %q in %+v", wants, r.Bars)
	return ""
}
