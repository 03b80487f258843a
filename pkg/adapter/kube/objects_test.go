package kube

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authn "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

var (
	watcher = objects.Account{Namespace: "ops", Name: "watcher"}
	sites   = objects.Query{Resource: objects.Resource{Group: "example.com", Version: "v1", Kind: "Site", Plural: "sites", Namespaced: true}}
)

// ignoring handles events, and does nothing.
var ignoring = objects.Handler{
	Begin: func() error { return nil }, Each: func(objects.EventType, *objects.Object) error { return nil }, Idle: func() error { return nil },
}

// served is an API server on a real socket, with TLS and HTTP/2.
type served struct {
	*Objects
	t testing.TB

	mu      sync.Mutex
	answers map[string]http.HandlerFunc // by path
	seen    []*http.Request
	tokens  int
	refused error // of a token
}

func newServed(t testing.TB) *served {
	s := &served{t: t, answers: map[string]http.HandlerFunc{}}
	server := httptest.NewUnstartedServer(s)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	var err error
	s.Objects, err = NewObjects(&rest.Config{
		Host: server.URL, BearerToken: "of the adapter", TLSClientConfig: rest.TLSClientConfig{CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
	}, func(_ context.Context, account cache.ObjectName, r *authn.TokenRequest) (*authn.TokenRequest, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.tokens++
		if len(r.Spec.Audiences) > 0 {
			t.Errorf("a token for %v was requested", r.Spec.Audiences)
		}
		return &authn.TokenRequest{Status: authn.TokenRequestStatus{
			Token: fmt.Sprintf("%s no %d", account, s.tokens), ExpirationTimestamp: metav1.NewTime(time.Now().Add(time.Hour)),
		}}, s.refused
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.clients.lists.CloseIdleConnections)
	return s
}

func (s *served) on(path string, answer http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[path] = answer
}

func (s *served) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	s.seen = append(s.seen, r)
	answer := s.answers[r.URL.Path]
	s.mu.Unlock()
	if r.ProtoMajor != 2 {
		s.t.Errorf("%s came with %s", r.URL, r.Proto)
	}
	if answer == nil {
		problem(w, 404, "not here")
		return
	}
	answer(w, r)
}

func (s *served) last() *http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[len(s.seen)-1]
}

func problem(w http.ResponseWriter, code int, message string) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{Code: int32(code), Message: message})
}

func text(s string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, s) }
}

// A list asks for metadata only, with the token of the account, and hands over object
// by object.
func TestObjects_List(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.on("/apis/example.com/v1/namespaces/ops/sites", text(`{"kind":"PartialObjectMetadataList","metadata":{"resourceVersion":"7","continue":"next"},"items":[
		{"metadata":{"name":"a","namespace":"ops","uid":"u","resourceVersion":"5","generation":3,"creationTimestamp":"2026-01-02T03:04:05Z",
		  "labels":{"x":"y"},"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"o"}],"managedFields":[{"manager":"m","fieldsV1":{"f:a":{}}}]}},
		{"metadata":{"name":"b","annotations":{"big":"`+strings.Repeat("x", maxMetadata)+`"},"labels":{"more":"z"}}},
		{"metadata":{"name":"c"}}]}`))
	q := sites
	q.Namespace, q.Selector, q.Continue = "ops", "x=y", "token"
	var got []*objects.Object
	page, err := s.List(t.Context(), watcher, q, nil, func(o *objects.Object) error { got = append(got, o); return nil })
	if err != nil || page.Version != "7" || page.Continue != "next" || len(got) != 3 {
		t.Fatalf("%+v, %d objects, %v", page, len(got), err)
	}
	a := got[0]
	if a.Path() != "ops/a" || a.UID != "u" || a.Version != "5" || a.Generation != 3 || a.Created.Year() != 2026 || a.Labels["x"] != "y" ||
		len(a.Owners) != 1 || a.Owners[0] != (objects.Owner{APIVersion: "v1", Kind: "Node", Name: "n", UID: "o"}) || a.Metadata["managedFields"] != nil {
		t.Errorf("%+v", a)
	}
	if b := got[1]; !b.TooLarge || b.Name != "b" || b.Metadata != nil || got[2].TooLarge || got[2].Name != "c" {
		t.Errorf("%+v, %+v", b, got[2])
	}
	r := s.last()
	if r.Header.Get("Accept") != "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1" || r.Header.Get("Authorization") != "Bearer ops/watcher no 1" ||
		r.URL.RawQuery != "continue=token&labelSelector=x%3Dy&limit=500" {
		t.Errorf("%s %v", r.URL, r.Header)
	}
}

// A watch hands over events as they come, calls idle before it waits, and ends with
// the stream.
func TestObjects_Watch(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	goOn := make(chan struct{})
	s.on("/apis/example.com/v1/sites", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"type":"ADDED","object":{"kind":"PartialObjectMetadata","metadata":{"name":"a","resourceVersion":"8"}}}`+"\n"+
			`{"type":"DELETED","object":{"metadata":{"name":"b","resourceVersion":"9"}}}`+"\n")
		w.(http.Flusher).Flush()
		<-goOn
		_, _ = io.WriteString(w, `{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"10"}}}`)
	})
	q := sites
	q.Version = "7"
	var got []string
	err := s.Watch(t.Context(), watcher, q, objects.Handler{
		Begin: func() error {
			got = append(got, "begin")
			return nil
		},
		Each: func(e objects.EventType, o *objects.Object) error {
			got = append(got, string(e)+" "+o.Name+o.Version)
			return nil
		},
		Idle: func() error {
			if len(got) == 4 {
				got = append(got, "idle")
				close(goOn)
			}
			return nil
		},
	})
	if err != nil || strings.Join(got, ", ") != "begin, ADDED a8, begin, DELETED b9, idle, begin, BOOKMARK 10" {
		t.Errorf("%q, %v", got, err)
	}
	if p := s.last().URL.Query(); p.Get("watch") != "true" || p.Get("allowWatchBookmarks") != "true" || p.Get("resourceVersion") != "7" ||
		len(p.Get("timeoutSeconds")) != 3 || p.Get("timeoutSeconds") < "300" || p.Get("timeoutSeconds") > "600" {
		t.Errorf("%v", p)
	}
}

// Events that arrived together are handed over together: there is no idle between them,
// also when they fill a buffer.
func TestObjects_WatchBurstIsOne(t *testing.T) {
	t.Parallel()
	const event = `{"type":"MODIFIED","object":{"metadata":{"name":"a","resourceVersion":"8"}}}` + "\n"
	for _, n := range []int{1, 2, oneRead / len(event), 2 * oneRead / len(event), 10 * oneRead / len(event)} {
		events, idles := 0, []int{}
		err := newReader(strings.NewReader(strings.Repeat(event, n)), func() error { return nil }, func() error {
			idles = append(idles, events)
			return nil
		}).watch(func(objects.EventType, *objects.Object) error {
			events++
			return nil
		})
		if err != nil || !slices.Equal(idles, []int{0, n}) {
			t.Errorf("%d events: idle after %v: %v", n, idles, err)
		}
	}
}

// Each kind of failure has its error.
func TestObjects_Errors(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	each := func(*objects.Object) error { return nil }
	list := func() error { _, err := s.List(t.Context(), watcher, sites, nil, each); return err }
	watch := func() error {
		return s.Watch(t.Context(), watcher, sites, ignoring)
	}
	const path = "/apis/example.com/v1/sites"
	s.on(path, func(w http.ResponseWriter, _ *http.Request) { problem(w, 410, "expired") })
	if err := list(); !errors.Is(err, objects.ErrGone) {
		t.Error(err)
	}
	s.on(path, text(`{"type":"ERROR","object":{"kind":"Status","metadata":{},"code":410,"message":"too old"}}`))
	if err := watch(); !errors.Is(err, objects.ErrGone) {
		t.Error(err)
	}
	s.on(path, nil)
	if err := list(); !errors.Is(err, objects.ErrNoSuchKind) {
		t.Error(err)
	}
	s.on(path, func(w http.ResponseWriter, _ *http.Request) { problem(w, 403, "no") })
	var denied *objects.Forbidden
	if err := watch(); !errors.As(err, &denied) || denied.Verb != "watch" || denied.Resource != "sites.example.com" ||
		!strings.Contains(err.Error(), "kubectl auth can-i watch sites.example.com -A --as=system:serviceaccount:ops:watcher") {
		t.Error(err)
	}
	s.on(path, func(w http.ResponseWriter, _ *http.Request) { problem(w, 500, strings.Repeat("x", 10_000)) })
	if err := list(); err == nil || len(err.Error()) > 400 {
		t.Error(err)
	}
	for _, broken := range []string{`{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"}}`, `[]`, `{"items":[]}`, ``} {
		s.on(path, text(broken))
		if err := list(); err == nil {
			t.Errorf("%s: no error", broken)
		}
	}
	s.mu.Lock()
	s.refused = apierrors.NewNotFound(corev1.Resource("serviceaccounts"), "watcher")
	s.mu.Unlock()
	s.Objects.tokens.drop(watcher)
	if err := list(); !errors.As(err, &denied) || !strings.Contains(err.Error(), "service account ops/watcher has no token") {
		t.Error(err)
	}
}

// One object without an end does not fill the memory.
func TestObjects_EndlessOneFillsNoMemory(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.on("/apis/example.com/v1/sites", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"items":[{"metadata":{"annotations":{"a":"`)
		for range 2 * maxObject / (64 << 10) {
			if _, err := io.WriteString(w, strings.Repeat("x", 64<<10)); err != nil {
				return
			}
		}
	})
	if _, err := s.List(t.Context(), watcher, sites, nil, nil); !errors.Is(err, errObjectSize) {
		t.Error(err)
	}
}

// A token that is not taken any more is requested anew, once.
func TestObjects_TokenRefused(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.on("/apis/example.com/v1/sites", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer ops/watcher no 2" {
			problem(w, 401, "who?")
			return
		}
		_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"},"items":[]}`)
	})
	if _, err := s.List(t.Context(), watcher, sites, nil, nil); err != nil {
		t.Error(err)
	}
}

// Kinds are found by discovery, remembered, and forgotten when they are gone.
func TestObjects_Resolve(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	if _, err := s.Resolve(t.Context(), watcher, "example.com", "v1", "Site"); !errors.Is(err, objects.ErrNoSuchKind) {
		t.Error(err)
	}
	s.kinds.Remove("/apis/example.com/v1#Site") // its time is over
	s.on("/apis/example.com/v1", text(`{"resources":[{"name":"sites","kind":"Site","namespaced":true,"verbs":["list","watch"]},
		{"name":"sites/status","kind":"Site","verbs":["get"]},{"name":"reviews","kind":"Review","verbs":["create"]}]}`))
	s.on("/apis/example.com", text(`{"preferredVersion":{"version":"v1"}}`))
	s.on("/api/v1", text(`{"resources":[{"name":"nodes","kind":"Node","verbs":["list","watch"]}]}`))
	for _, version := range []string{"v1", ""} {
		if r, err := s.Resolve(t.Context(), watcher, "example.com", version, "Site"); err != nil || r != sites.Resource {
			t.Errorf("%+v, %v", r, err)
		}
	}
	if r, err := s.Resolve(t.Context(), watcher, "", "", "Node"); err != nil || r.Namespaced || r.Plural != "nodes" || r.Version != "v1" {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := s.Resolve(t.Context(), watcher, "example.com", "v1", "Review"); !errors.Is(err, objects.ErrNoSuchKind) {
		t.Errorf("a kind that cannot be watched: %v", err)
	}
	s.on("/apis/example.com/v1", nil)
	if _, err := s.List(t.Context(), watcher, sites, nil, nil); !errors.Is(err, objects.ErrNoSuchKind) {
		t.Error(err)
	}
	if _, err := s.Resolve(t.Context(), watcher, "example.com", "v1", "Site"); !errors.Is(err, objects.ErrNoSuchKind) {
		t.Errorf("a kind that is gone is remembered: %v", err)
	}
}

// A kind that is added to a group version that is known already is found.
func TestObjects_ResolveALateKind(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.on("/apis/example.com/v1", text(`{"resources":[{"name":"sites","kind":"Site","namespaced":true,"verbs":["list","watch"]}]}`))
	if _, err := s.Resolve(t.Context(), watcher, "example.com", "v1", "Site"); err != nil {
		t.Error(err)
	}
	s.on("/apis/example.com/v1", text(`{"resources":[{"name":"sites","kind":"Site","namespaced":true,"verbs":["list","watch"]},
		{"name":"zones","kind":"Zone","verbs":["list","watch"]}]}`))
	if r, err := s.Resolve(t.Context(), watcher, "example.com", "v1", "Zone"); err != nil || r.Plural != "zones" {
		t.Errorf("%+v, %v", r, err)
	}
}

// Without a version a kind is found that the preferred version of its group lacks.
func TestObjects_ResolveInEachVersion(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.on("/apis/example.com", text(`{"preferredVersion":{"version":"v2"},"versions":[{"version":"v2"},{"version":"v1"}]}`))
	s.on("/apis/example.com/v2", text(`{"resources":[{"name":"sites","kind":"Site","namespaced":true,"verbs":["list","watch"]}]}`))
	s.on("/apis/example.com/v1", text(`{"resources":[{"name":"zones","kind":"Zone","verbs":["list","watch"]}]}`))
	if r, err := s.Resolve(t.Context(), watcher, "example.com", "", "Zone"); err != nil || r.Version != "v1" || r.Namespaced {
		t.Errorf("%+v, %v", r, err)
	}
	before := len(s.seen)
	for range 3 {
		if _, err := s.Resolve(t.Context(), watcher, "example.com", "", "Absent"); !errors.Is(err, objects.ErrNoSuchKind) {
			t.Error(err)
		}
	}
	if n := len(s.seen) - before; n != 3 {
		t.Errorf("%d calls for a kind that does not exist", n)
	}
}

// A token is used for 80 % of its life.
func TestAccountTokens_RenewedInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var i issuer
		tokens := newAccountTokens(i.answer, nil)
		get := func() string {
			token, err := tokens.get(t.Context(), watcher)
			if err != nil {
				t.Error(err)
			}
			return token
		}
		first := get()
		time.Sleep(47 * time.Minute)
		if get() != first {
			t.Error("renewed before 80 % of an hour")
		}
		time.Sleep(2 * time.Minute)
		if get() == first || i.issued != 2 {
			t.Errorf("not renewed after 80 %% of an hour, %d were issued", i.issued)
		}
	})
}

// A watch that has read a large event keeps nothing of it while it waits: each of
// thousands of watches of one object kept 0.8 MB after one change.
func TestObjects_WatchKeepsNoLargeEvent(t *testing.T) {
	// Not in parallel: it reads what the process holds.
	const watches = 50
	event := `{"type":"MODIFIED","object":{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 256<<10) + `"}}}}` + "\n" +
		`{"type":"MODIFIED","object":{"metadata":{"name":"second"}}}` + "\n"
	before := heap.WithStacks()
	var idle, ended sync.WaitGroup
	goOn := make(chan struct{})
	idle.Add(watches)
	for range watches {
		ended.Go(func() {
			events, last := 0, ""
			err := newReader(strings.NewReader(event), ignoring.Begin, func() error {
				if events > 0 {
					idle.Done()
					<-goOn
				}
				return nil
			}).watch(func(_ objects.EventType, o *objects.Object) error {
				events++
				last = o.Name
				return nil
			})
			if err != nil || events != 2 || last != "second" {
				t.Errorf("%d events, the last of %q: %v", events, last, err)
			}
		})
	}
	idle.Wait()
	if held := (heap.WithStacks() - before) / watches; held > 64<<10 {
		t.Errorf("a watch that waits holds %d KB", held>>10)
	}
	close(goOn)
	ended.Wait()
}

// The calls of one namespace do not wait behind all calls of the others, which each make
// as many as they may: ten of them made a call of another one wait for a minute.
func TestObjects_CallsTakeTurnsByNamespace(t *testing.T) {
	crowded(t, nil, func(ctx context.Context, c *Objects) {
		for range 5 {
			began := time.Now()
			if err := c.wait(ctx, "calm"); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took > 250*time.Millisecond {
				t.Errorf("a call waited %s", took)
			}
			time.Sleep(time.Second)
		}
	})
}

// crowded runs a test while ten namespaces make as many calls as they may, in fake time.
func crowded(t *testing.T, request TokenRequester, test func(ctx context.Context, c *Objects)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c, err := NewObjects(&rest.Config{Host: "http://127.0.0.1:1"}, request, nil)
		if err != nil {
			t.Fatal(err)
		}
		ctx, end := context.WithCancel(t.Context())
		defer end()
		for n := range 10 {
			for range 1000 {
				go func() {
					for c.wait(ctx, fmt.Sprint("busy-", n)) == nil {
					}
				}()
			}
		}
		time.Sleep(5 * time.Minute)
		test(ctx, c)
	})
}

// A list does not wait behind other calls of its namespace for the limit of all calls either:
// the lists of all namespaces waited with it for a minute.
func TestObjects_ListPassesOwnCalls(t *testing.T) {
	refused := func(context.Context, cache.ObjectName, *authn.TokenRequest) (*authn.TokenRequest, error) {
		return nil, errors.New("no token")
	}
	crowded(t, refused, func(ctx context.Context, c *Objects) {
		began := time.Now()
		if _, err := c.List(ctx, objects.Account{Namespace: "busy-0", Name: "a"}, sites, nil, nil); err == nil {
			t.Error("the list has no token, and succeeded")
		}
		if took := time.Since(began); took > 250*time.Millisecond {
			t.Errorf("a list waited %s", took)
		}
	})
}

// lent records what was waited for without the turn.
type lent struct{ times int }

func (l *lent) Without(_ context.Context, wait func() error) error {
	l.times++
	return wait()
}

// A list waits for a token without its turn, behind others of its namespace or for an account
// that is made again and again. With a token it keeps its turn.
func TestObjects_ListWaitsForATokenWithoutTurn(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	valid := "Bearer ops/watcher no 1"
	s.on("/apis/example.com/v1/sites", func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != valid {
			problem(w, 401, "who?")
			return
		}
		_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"},"items":[]}`)
	})
	for _, step := range []struct {
		what, valid string
		waits       int
	}{{"no token", "1", 1}, {"a token", "1", 0}, {"a token of an account that is gone", "2", 1}} {
		valid = "Bearer ops/watcher no " + step.valid
		var turn lent
		if _, err := s.List(t.Context(), watcher, sites, &turn, nil); err != nil || turn.times != step.waits {
			t.Errorf("%s: %d times without the turn, want %d; %v", step.what, turn.times, step.waits, err)
		}
	}
}

// A list does not wait behind the other calls of its namespace: it has the one turn of all
// lists, and lists of other namespaces waited with it for a minute.
func TestObjects_ListKeepsNoOtherWaiting(t *testing.T) {
	t.Parallel()
	s := newServed(t)
	s.on("/apis/example.com/v1/sites", text(`{"metadata":{"resourceVersion":"7"},"items":[]}`))
	busy := flowcontrol.NewTokenBucketRateLimiter(0.001, 1)
	busy.Accept()
	s.namespaces.Add(watcher.Namespace, busy, time.Hour)
	if page, err := s.List(t.Context(), watcher, sites, nil, func(*objects.Object) error { return nil }); err != nil || page.Version != "7" {
		t.Errorf("%+v, %v", page, err)
	}
}
