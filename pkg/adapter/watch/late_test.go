package watch

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// pageTime is how long the API server has for a page.
const pageTime = 30 * time.Second

// hungAPI is an API server that does not list websites, as an aggregated API that hangs.
type hungAPI struct {
	*server
	mu      sync.Mutex
	hangs   bool
	failure error                    // of a list of websites
	hung    int                      // lists of websites
	listed  map[string]time.Duration // by namespace of the source, since the start
	start   time.Time
}

func (h *hungAPI) List(ctx context.Context, a objects.Account, q objects.Query, turn objects.Turn, each func(*objects.Object) error) (objects.Page, error) {
	h.mu.Lock()
	hangs := h.hangs && q.Resource.Kind == website.Kind
	if hangs {
		h.hung++
	} else if _, ok := h.listed[a.Namespace]; !ok {
		h.listed[a.Namespace] = time.Since(h.start)
	}
	h.mu.Unlock()
	if !hangs {
		return h.server.List(ctx, a, q, turn, each)
	}
	if !pause(ctx, pageTime) {
		return objects.Page{}, context.Cause(ctx)
	}
	return objects.Page{}, h.failure
}

// An aggregated API that hangs, which a hundred namespaces watch, delays the first lists of others by the
// time of one page. They waited for 13 minutes: four lists at once, of 30 s each.
func TestLists_HungAPIDelaysOthersOnce(t *testing.T) {
	for name, failure := range map[string]error{
		"no answer":        fmt.Errorf("kube: %w", &url.Error{Op: "Get", URL: "https://x", Err: context.DeadlineExceeded}),
		"a proxy's answer": errors.New("status 504"),
	} {
		t.Run(name, func(t *testing.T) {
			run(t, own, func(t *testing.T, w *env) { hungAPIDelaysOthersOnce(t, w, failure) })
		})
	}
}

func hungAPIDelaysOthersOnce(t *testing.T, w *env, failure error) {
	w.start()
	api := &hungAPI{server: newServer(), hangs: true, failure: failure, listed: map[string]time.Duration{}, start: time.Now()}
	m, err := New(Config{API: api, Random: func() float64 { return 0.5 }})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for i := range 100 {
		w.add(m, fmt.Sprintf("hung-%d", i), website)
	}
	for i := range 20 {
		w.add(m, fmt.Sprintf("good-%d", i), deployment)
	}
	time.Sleep(20 * time.Minute)
	synctest.Wait()
	api.mu.Lock()
	for i := range 20 {
		if after, ok := api.listed[fmt.Sprintf("good-%d", i)]; !ok || after > pageTime+2*startJitter {
			t.Errorf("good-%d has listed %v, after %s", i, ok, after)
		}
	}
	if api.hung < 20 {
		t.Errorf("%d lists hang: it is not tried any more", api.hung)
	}
	api.hangs, api.start = false, time.Now()
	api.mu.Unlock()
	time.Sleep(2 * time.Minute)
	synctest.Wait()
	for i := range 100 {
		if after, ok := api.listed[fmt.Sprintf("hung-%d", i)]; !ok || after > pageTime+maxUnreachableWait {
			t.Errorf("hung-%d has listed %v, %s after its API worked again", i, ok, after)
		}
	}
}

// add makes a manager watch a resource for a namespace.
func (w *env) add(m *Manager, namespace string, r objects.Resource) {
	w.t.Helper()
	src := sourceOf(schedule.WatchResource{Group: r.Group, Version: r.Version, Kind: r.Kind, Changes: schedule.ChangesMetadata})
	src.UID, src.Namespace = "u-"+namespace, namespace
	q, err := w.q.Set(src)
	if err != nil {
		w.t.Fatal(err)
	}
	m.Set(src, &q.Marks)
}

// longAPI is an API that hung, and answers again when namespace "long" lists: its pages have no end.
type longAPI struct {
	*hungAPI
	back time.Time
}

func (l *longAPI) List(ctx context.Context, a objects.Account, q objects.Query, turn objects.Turn, each func(*objects.Object) error) (objects.Page, error) {
	const hangs = 2 * time.Minute
	if a.Namespace != "long" || time.Since(l.start) < hangs {
		return l.hungAPI.List(ctx, a, q, turn, each)
	}
	l.mu.Lock()
	if l.hangs {
		l.hangs, l.back = false, time.Now()
	}
	l.mu.Unlock()
	if !pause(ctx, pageTime/3) {
		return objects.Page{}, context.Cause(ctx)
	}
	return objects.Page{Version: "1", Continue: "more"}, nil
}

// A long list, the first one after an outage, does not delay the lists of its group for as long as it lasts:
// others list beside it once its first page has come.
func TestLists_LongOneAfterAHangDelaysNone(t *testing.T) {
	run(t, own, func(t *testing.T, w *env) {
		w.start()
		api := &longAPI{hungAPI: &hungAPI{server: newServer(), hangs: true, failure: context.DeadlineExceeded, listed: map[string]time.Duration{}, start: time.Now()}}
		m, err := New(Config{API: api, Random: func() float64 { return 0.5 }})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		w.add(m, "long", website)
		for i := range 20 {
			w.add(m, fmt.Sprintf("hung-%d", i), website)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		api.mu.Lock()
		defer api.mu.Unlock()
		if api.back.IsZero() {
			t.Fatal("the long list has not begun")
		}
		for i := range 20 {
			listed, ok := api.listed[fmt.Sprintf("hung-%d", i)]
			if after := listed - api.back.Sub(api.start); !ok || after > pageTime+maxUnreachableWait {
				t.Errorf("hung-%d has listed %v, %s after its API worked again", i, ok, after)
			}
		}
	})
}

// A refusal of the API server does not say that an API behind it answers again: an account without rights
// gave all turns to the group that hangs, again and again.
func TestLate_RefusalIsNoAnswer(t *testing.T) {
	t.Parallel()
	g := lateGroups{all: map[string]*lateGroup{}}
	g.failed("x", context.DeadlineExceeded, pageTime)
	for _, refusal := range []error{&objects.Forbidden{}, objects.ErrNoSuchKind, objects.ErrGone, errors.New("status 503")} {
		if g.failed("x", refusal, time.Millisecond); g.of("x") == nil {
			t.Errorf("the group is not late any more after %v", refusal)
		}
	}
	if g.answered("x"); g.of("x") != nil {
		t.Error("the group is late after it has answered")
	}
	if g.failed("y", objects.ErrGone, pageTime); g.of("y") != nil {
		t.Error("a group is late that has answered")
	}
}
