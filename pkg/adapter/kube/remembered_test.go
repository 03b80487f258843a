package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// What a list or a watch remembers of an answer is bounded, however large the answer makes it. A
// version of 7 MB stayed with its watch, and 200 watches ended the adapter.
func TestObjects_RemembersNoLargeText(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	long := strings.Repeat("7", maxContinue+1)
	const path = "/apis/example.com/v1/sites"
	for _, answer := range []string{
		`{"metadata":{"resourceVersion":"` + long + `"},"items":[]}`,
		`{"metadata":{"resourceVersion":"7","continue":"` + long + `"},"items":[]}`,
		`{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{"name":"a","resourceVersion":"` + long + `"}}]}`,
	} {
		s.on(path, text(answer))
		if page, err := s.List(t.Context(), watcher, sites, nil, func(*objects.Object) error { return nil }); err == nil {
			t.Errorf("%.60s: a token of %d bytes, a version of %d", answer, len(page.Continue), len(page.Version))
		}
	}
	s.on(path, text(`{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"`+long+`"}}}`))
	if err := s.Watch(t.Context(), watcher, sites, ignoring); err == nil {
		t.Error("a bookmark with a version of any length")
	}
}

// A Role may have a name of any length. One of 600 bytes ended the list and the watch of all Roles.
func TestObjects_LongNameStopsNoOthers(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	long := strings.Repeat("<", maxMetadata+1)
	for _, odd := range []string{
		`"name":"` + long + `","namespace":"ops"`, `"name":"a","namespace":"` + long + `"`, `"name":"a","namespace":"ops","uid":"` + long + `"`,
	} {
		s.on("/apis/example.com/v1/sites", text(`{"metadata":{"resourceVersion":"7"},"items":[{"metadata":{`+odd+`,"resourceVersion":"5"}},{"metadata":{"name":"b"}}]}`))
		var got []*objects.Object
		_, err := s.List(t.Context(), watcher, sites, nil, func(o *objects.Object) error { got = append(got, o); return nil })
		if err != nil || len(got) != 2 || got[1].Name != "b" {
			t.Errorf("%.30s: %d objects, %v", odd, len(got), err)
			continue
		}
		// Cut, but still longer than any that can be used.
		if o := got[0]; o.Version != "5" || len(o.Path()) > 2*maxName || len(o.Path()) <= maxName && o.Path() != "ops/a" || len(o.UID) > 0 {
			t.Errorf("%.30s: a path of %d bytes, a uid of %d, version %q", odd, len(o.Path()), len(o.UID), o.Version)
		}
	}
}

// A document of the discovery takes no more memory for its size, and a namespace reads a few at
// once. Forty of 4 MiB took 169 MB before they were decoded, and more then. These have 3 MiB.
func TestObjects_DiscoveryIsBounded(t *testing.T) {
	// Not in parallel: it reads what the process holds.
	calls := 40
	if testing.Short() { // each reads megabytes
		calls = 8
	}
	s := newServed(t)
	s.all = flowcontrol.NewFakeAlwaysRateLimiter()
	s.namespaces.Add(watcher.Namespace, s.all, time.Hour)
	arrived, goOn := make(chan struct{}, calls), make(chan struct{})
	const entry = `{"kind":"Big","verbs":["` // and the rest, up to the bound of one
	// Its end does not come, so that each call holds what it has read.
	document := `{"resources":[` + strings.Repeat(entry+strings.Repeat("x", maxServed/2)+`"]},`, 3<<20/(maxServed/2))
	s.on("/apis/example.com/v1", func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, document)
		w.(http.Flusher).Flush()
		arrived <- struct{}{}
		select {
		case <-goOn:
		case <-r.Context().Done():
		}
	})
	before := heap.WithStacks()
	var ended sync.WaitGroup
	for i := range calls {
		ended.Go(func() {
			_, _ = s.Resolve(t.Context(), watcher, "example.com", "v1", fmt.Sprint("Kind", i)) // none is found
		})
	}
	for range 4 {
		<-arrived
	}
	if s.discovery.Allows(watcher.Namespace, 1) {
		t.Error("a fifth call of the namespace may read at once")
	}
	// Until all of it is read, what the readers are done with is among what the process holds. The calls wait longer.
	for deadline := time.Now().Add(CallTimeout / 2); ; {
		held := heap.WithStacks() - before
		if held <= 6<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("%d calls hold %d KB", calls, held>>10)
			break
		}
	}
	close(goOn)
	ended.Wait()
}

// stream is the body of an answer, which ends with its request.
type stream struct{ *io.PipeReader }

func (s stream) RoundTrip(r *http.Request) (*http.Response, error) {
	context.AfterFunc(r.Context(), func() { _ = s.CloseWithError(r.Context().Err()) })
	return &http.Response{StatusCode: http.StatusOK, Body: s}, nil
}

// listAnswer answers every call with a list.
type listAnswer struct{}

func (listAnswer) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(`{"metadata":{"resourceVersion":"7"},"items":[]}`))}, nil
}

// longTurn is a turn that others have for long.
type longTurn struct{ of time.Duration }

func (t longTurn) Without(ctx context.Context, wait func() error) error {
	if err := wait(); err != nil {
		return err
	}
	select {
	case <-time.After(t.of):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A list that gave its turn away while it waited for a token waits for the next turn as long as others have it:
// a page's time begins after that. A start with many lists failed each of them once.
func TestObjects_PageDoesNotCountTheWaitForATurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i issuer
		c, err := NewObjects(&rest.Config{Host: "http://127.0.0.1:1"}, i.answer, nil)
		if err != nil {
			t.Fatal(err)
		}
		c.clients.lists = &http.Client{Transport: listAnswer{}}
		if _, err := c.List(t.Context(), watcher, sites, longTurn{2 * pageTimeout}, func(*objects.Object) error { return nil }); err != nil {
			t.Error(err)
		}
	})
}

// A document of the discovery that does not end holds its slot for as long as a call may take.
func TestObjects_DiscoveryEndsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i issuer
		c, err := NewObjects(&rest.Config{Host: "http://127.0.0.1:1"}, i.answer, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.Pipe()
		c.clients.watches = &http.Client{Transport: stream{body}}
		start := time.Now()
		if _, err := c.Resolve(t.Context(), watcher, "example.com", "v1", "Site"); err == nil || time.Since(start) != CallTimeout {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		if !c.discovery.Allows(watcher.Namespace, 4) {
			t.Error("its slot is not free")
		}
	})
}

// A watch ends when the rest of an event takes long to arrive, also byte by byte: it has the turn
// of a watch that reads. One whose events are far apart goes on.
func TestObjects_WatchEndsWithASlowEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var i issuer
		c, err := NewObjects(&rest.Config{Host: "http://127.0.0.1:1"}, i.answer, nil)
		if err != nil {
			t.Fatal(err)
		}
		body, api := io.Pipe()
		c.clients.watches = &http.Client{Transport: stream{body}}
		events, ended := 0, make(chan error, 1)
		h := ignoring
		h.Each = func(objects.EventType, *objects.Object) error {
			events++
			time.Sleep(time.Minute) // it is stored
			return nil
		}
		go func() { ended <- c.Watch(t.Context(), watcher, sites, h) }()
		write := func(text string) bool {
			_, err := io.WriteString(api, text)
			synctest.Wait()
			return err == nil
		}
		const event = `{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}`
		write(event + "\n" + event + "\n")
		write(event[:30])
		time.Sleep(arrival / 2)
		write(event[30:] + "\n")
		time.Sleep(3 * time.Minute)
		if !write(event[:9]) || events != 3 {
			t.Errorf("%d events: %v", events, <-ended)
		}
		began := time.Now()
		for write(" ") {
			time.Sleep(time.Second)
		}
		if err := <-ended; !errors.Is(err, errSlow) || time.Since(began) > arrival+2*time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
	})
}
