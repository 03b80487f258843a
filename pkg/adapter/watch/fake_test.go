package watch

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// server is an API server in memory, with its history.
type server struct {
	mu       sync.Mutex
	version  int
	kinds    map[string]objects.Resource // by kind
	live     map[string]*object          // by kind/path
	history  []event
	floor    int           // versions before it are compacted
	changed  chan struct{} // closed at the next change
	page     int           // objects of a page
	forbids  func(verb string, q objects.Query) bool
	down     bool
	lags     int  // so many calls of Newest are answered from an older state
	shuffled bool // lists are out of order
	onPage   func(n int) error
	onWatch  func()            // before a watch is open
	finding  func(kind string) // called by Resolve
	asked
	open int
	drop chan struct{} // closed to end all watches with an error
	uids int
}

// asked is how often what was asked for, since the start.
type asked struct {
	pages    int // of lists
	lists    int // calls for a first page
	watches  int // opened
	resolves int // calls to find a kind
}

type object struct {
	kind, namespace, name, uid string
	version                    int
	stamp                      int // of what counts
	generation                 int64
	labels                     map[string]any
	owners                     []any
	created                    time.Time
	metadata                   map[string]any // more of it
}

type event struct {
	version int
	t       objects.EventType
	o       object
}

var (
	website    = objects.Resource{Group: "example.com", Version: "v1", Kind: "Website", Plural: "websites", Namespaced: true}
	deployment = objects.Resource{Group: "apps", Version: "v1", Kind: "Deployment", Plural: "deployments", Namespaced: true}
	node       = objects.Resource{Version: "v1", Kind: "Node", Plural: "nodes"}
)

func newServer() *server {
	s := &server{version: 100, kinds: map[string]objects.Resource{}, live: map[string]*object{}, changed: make(chan struct{}), drop: make(chan struct{}), page: 3}
	for _, r := range []objects.Resource{website, deployment, node, namespaceResource} {
		s.kinds[r.Kind] = r
	}
	return s
}

func (o *object) path() string {
	if o.namespace == "" {
		return o.name
	}
	return o.namespace + "/" + o.name
}

func (o *object) read() *objects.Object {
	m := map[string]any{
		"name": o.name, "uid": o.uid, "resourceVersion": strconv.Itoa(o.version), "creationTimestamp": o.created.Format(time.RFC3339),
		"annotations": map[string]any{"stamp": strconv.Itoa(o.stamp)},
	}
	if o.namespace != "" {
		m["namespace"] = o.namespace
	}
	if o.generation > 0 {
		m["generation"] = o.generation
	}
	if o.labels != nil {
		m["labels"] = o.labels
	}
	if o.owners != nil {
		m["ownerReferences"] = o.owners
	}
	maps.Copy(m, o.metadata)
	return objects.FromMetadata(m)
}

// put makes an object or changes it. count: what counts changes too.
func (s *server) put(kind, path string, counts bool, change ...func(*object)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, t := s.live[kind+"/"+path], objects.Modified
	if o == nil {
		namespace, name, ok := strings.Cut(path, "/")
		if !ok {
			namespace, name = "", path
		}
		s.uids++
		t = objects.Added
		o = &object{kind: kind, namespace: namespace, name: name, uid: fmt.Sprintf("00000000-0000-4000-8000-%012d", s.uids), generation: 1, created: time.Now()}
		s.live[kind+"/"+path] = o
		counts = true
	}
	c := *o
	if counts {
		c.stamp = s.version + 1
		c.generation++
	}
	for _, f := range change {
		f(&c)
	}
	s.store(t, &c)
	s.live[kind+"/"+path] = &c
}

func (s *server) store(t objects.EventType, o *object) {
	s.version++
	o.version = s.version
	s.history = append(s.history, event{s.version, t, *o})
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *server) remove(kind, path string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.live[kind+"/"+path]; o != nil {
		c := *o
		delete(s.live, kind+"/"+path)
		s.store(objects.Deleted, &c)
	}
}

// compact forgets the history.
func (s *server) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor = s.version
}

// restore puts the state back to a version, as of a back-up of etcd, and ends all watches.
func (s *server) restore(version int) {
	s.cut()
	s.set(func() {
		s.history = slices.DeleteFunc(s.history, func(e event) bool { return e.version > version })
		s.version, s.floor, s.live = version, min(s.floor, version), map[string]*object{}
		for _, e := range s.history {
			if key := e.o.kind + "/" + e.o.path(); e.t == objects.Deleted {
				delete(s.live, key)
			} else {
				s.live[key] = &e.o
			}
		}
	})
}

// cut ends all watches with an error.
func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.drop)
	s.drop = make(chan struct{})
}

func (s *server) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// listed is how many lists there were.
func (s *server) listed() (n int) {
	s.set(func() { n = s.lists })
	return n
}

var errDown = errors.New("connection refused")

func (s *server) check(verb string, a objects.Account, q objects.Query) error {
	switch {
	case s.down:
		return errDown
	case s.kinds[q.Resource.Kind].Plural != q.Resource.Plural, s.kinds[q.Resource.Kind].Namespaced != q.Resource.Namespaced:
		return objects.ErrNoSuchKind
	case s.forbids != nil && s.forbids(verb, q):
		return &objects.Forbidden{Account: a, Verb: verb, Resource: q.Resource.Name(), Namespace: q.Namespace}
	}
	return nil
}

// Resolve implements objects.API.
func (s *server) Resolve(_ context.Context, _ objects.Account, _, _, kind string) (objects.Resource, error) {
	if s.finding != nil {
		s.finding(kind)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.kinds[kind]
	s.resolves++
	switch {
	case s.down:
		return r, errDown
	case !ok:
		return r, objects.ErrNoSuchKind
	}
	return r, nil
}

func (s *server) in(o *object, q objects.Query) bool {
	if o.kind != q.Resource.Kind || q.Namespace != "" && o.namespace != q.Namespace {
		return false
	}
	if q.Selector == "" {
		return true
	}
	name, value, _ := strings.Cut(q.Selector, "=")
	return o.labels[name] == value
}

// at is the objects of a version, in order.
func (s *server) at(version int, q objects.Query) []object {
	live := map[string]object{}
	for _, e := range s.history {
		if e.version > version {
			break
		}
		if e.t == objects.Deleted {
			delete(live, e.o.path()+"|"+e.o.kind)
		} else {
			live[e.o.path()+"|"+e.o.kind] = e.o
		}
	}
	var all []object
	for _, o := range live {
		if s.in(&o, q) {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b object) int { return strings.Compare(a.path(), b.path()) })
	return all
}

// List implements objects.API. A token is "version|path".
func (s *server) List(_ context.Context, a objects.Account, q objects.Query, _ objects.Turn, each func(*objects.Object) error) (objects.Page, error) {
	s.mu.Lock()
	version, after := s.version, ""
	if q.Continue != "" {
		var text string
		text, after, _ = strings.Cut(q.Continue, "|")
		version, _ = strconv.Atoi(text)
	} else {
		s.lists++
	}
	s.pages++
	n, onPage := s.pages, s.onPage
	err := s.check("list", a, q)
	if err == nil && version < s.floor {
		err = objects.ErrGone
	}
	var page []object
	next := objects.Page{Version: strconv.Itoa(version)}
	if err == nil {
		for _, o := range s.at(version, q) {
			if o.path() <= after && after != "" {
				continue
			}
			if len(page) == s.page {
				next.Continue = strconv.Itoa(version) + "|" + page[len(page)-1].path()
				break
			}
			page = append(page, o)
		}
		if s.shuffled {
			slices.Reverse(page)
		}
	}
	s.mu.Unlock()
	if err == nil && onPage != nil {
		err = onPage(n)
	}
	if err != nil {
		return objects.Page{}, err
	}
	for i := range page {
		if err := each(page[i].read()); err != nil {
			return objects.Page{}, err
		}
	}
	return next, nil
}

// Newest implements objects.API.
func (s *server) Newest(_ context.Context, a objects.Account, q objects.Query) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	version := s.version
	if s.lags > 0 {
		s.lags--
		version -= 2
	}
	return strconv.Itoa(version), s.check("list", a, q)
}

// Watch implements objects.API. A stream lives for five minutes, with a bookmark each
// minute. From a future version it says nothing up to there.
func (s *server) Watch(ctx context.Context, a objects.Account, q objects.Query, h objects.Handler) error {
	s.mu.Lock()
	err := s.check("watch", a, q)
	version, _ := strconv.Atoi(q.Version)
	if err == nil && version < s.floor {
		err = objects.ErrGone
	}
	if err != nil {
		s.mu.Unlock()
		return err
	}
	s.watches++
	s.open++
	drop, onWatch := s.drop, s.onWatch
	s.mu.Unlock()
	if onWatch != nil {
		onWatch()
	}
	defer s.set(func() { s.open-- })
	end := time.After(5 * time.Minute)
	if err := h.Idle(); err != nil { // the client waits for the first event, also for one that is there
		return err
	}
	for {
		s.mu.Lock()
		changed := s.changed
		events := s.since(version, q)
		now := s.version
		s.mu.Unlock()
		for _, e := range events {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			o := e.o
			o.version = e.version
			if err := h.Begin(); err != nil {
				return err
			}
			if err := h.Each(e.t, o.read()); err != nil {
				return err
			}
		}
		version = max(version, now)
		if err := h.Idle(); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
			if version > now {
				continue
			}
			if err := h.Begin(); err != nil {
				return err
			}
			if err := h.Each(objects.Bookmark, &objects.Object{Version: strconv.Itoa(version)}); err != nil {
				return err
			}
		case <-drop:
			return errDown
		case <-end:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// since are the events after a version, as a watch with the selector sees them.
func (s *server) since(version int, q objects.Query) []event {
	before := map[string]bool{} // objects that the watch has
	if q.Selector != "" {
		for _, o := range s.at(version, q) {
			before[o.path()] = true
		}
	}
	plain := q
	plain.Selector = ""
	first, _ := slices.BinarySearchFunc(s.history, version+1, func(e event, v int) int { return e.version - v })
	var events []event
	for _, e := range s.history[first:] {
		if !s.in(&e.o, plain) {
			continue
		}
		if q.Selector != "" {
			matches, had := s.in(&e.o, q) && e.t != objects.Deleted, before[e.o.path()]
			before[e.o.path()] = matches
			switch {
			case !matches && !had:
				continue
			case !matches:
				e.t = objects.Deleted
			case !had:
				e.t = objects.Added
			default:
				e.t = objects.Modified
			}
		}
		events = append(events, e)
	}
	return events
}
