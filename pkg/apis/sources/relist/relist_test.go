package relist

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// server is an API server with one ConfigMap. A watch of it ends at once when the server is put back, and one from a
// version that is not there yet gets no event.
type server struct {
	mu      sync.Mutex
	version int
	status  int // of lists, 0 = 200
	asked   []string
	back    chan struct{}
	open    chan struct{} // a value for each watch
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	query := r.URL.Query()
	s.asked = append(s.asked, r.URL.RequestURI())
	version, status, back := s.version, s.status, s.back
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	object := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"ops","uid":"u","resourceVersion":"%d"}}`, version)
	switch {
	case query.Has("sendInitialEvents"): // it does not stream lists
		w.WriteHeader(http.StatusUnprocessableEntity)
		_, _ = fmt.Fprint(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Invalid","code":422}`)
	case !query.Has("watch") && status != 0:
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Forbidden","code":%d}`, status)
	case !query.Has("watch"):
		_, _ = fmt.Fprintf(w, `{"apiVersion":"v1","kind":"ConfigMapList","metadata":{"resourceVersion":"%d"},"items":[%s]}`, version, object)
	default:
		if from, err := strconv.Atoi(query.Get("resourceVersion")); err == nil && from <= version { // else all is withheld
			_, _ = fmt.Fprintf(w, `{"type":"BOOKMARK","object":%s}`, object)
		}
		w.(http.Flusher).Flush()
		s.open <- struct{}{}
		select {
		case <-back:
		case <-r.Context().Done():
		}
	}
}

// putBack makes the server older, and ends its watches.
func (s *server) putBack(version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
	close(s.back)
	s.back = make(chan struct{})
}

func start(t *testing.T, version int) (*server, dynamic.ResourceInterface) {
	t.Helper()
	s := &server{version: version, back: make(chan struct{}), open: make(chan struct{}, 10)}
	web := httptest.NewServer(s)
	t.Cleanup(web.Close)
	t.Cleanup(web.CloseClientConnections)
	config := &rest.Config{Host: web.URL}
	config.Wrap(Transport)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return s, client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("ops")
}

// An informer had the state that etcd lost until its process was restarted: it went on from a version that the API
// server did not have any more, and got no event.
func TestInformer_EtcdIsPutBack(t *testing.T) {
	t.Parallel()
	s, client := start(t, 1000)
	seen := make(chan string, 10)
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}, &unstructured.Unstructured{}, 0, nil)
	version := func(o any) { seen <- o.(*unstructured.Unstructured).GetResourceVersion() }
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: version, UpdateFunc: func(_, o any) { version(o) }}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { informer.RunWithContext(ctx) })
	defer running.Wait()
	defer cancel()
	for _, want := range []string{"1000", "7"} {
		select {
		case got := <-seen:
			if got != want {
				t.Fatalf("the informer has version %s, want %s", got, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the informer does not see version %s", want)
		}
		<-s.open
		s.putBack(7)
	}
}

// A watch is refused only for a version that is newer than the newest one, and asks for a list with its own selectors:
// the right may be for one name.
func TestWatch_ExpiredWhenNewerThanTheNewest(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		from          string
		list          int
		expired, fine bool
	}{
		{from: "11", expired: true}, {from: "10", fine: true}, {from: "9", fine: true}, {from: "x", fine: true},
		{from: "", list: 403, fine: true}, {from: "0", list: 403, fine: true}, // nothing to compare
		{from: "9", list: 403},
	} {
		s, client := start(t, 10)
		s.status = c.list
		w, err := client.Watch(t.Context(), metav1.ListOptions{ResourceVersion: c.from, FieldSelector: "metadata.name=a", LabelSelector: "b=c"})
		if err == nil {
			w.Stop()
		}
		if apierrors.IsResourceExpired(err) != c.expired || (err == nil) != c.fine {
			t.Errorf("from %q, lists answer %d: %v", c.from, c.list, err)
		}
		if list, _, _ := strings.Cut(s.asked[0], "&resourceVersion"); c.expired && list != "/api/v1/namespaces/ops/configmaps?fieldSelector=metadata.name%3Da&labelSelector=b%3Dc&limit=1" {
			t.Errorf("the list was %s", list)
		}
	}
}
