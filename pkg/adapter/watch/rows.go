package watch

import (
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// row is what the store remembers about a part of a resource: all namespaces, or one.
// The state of a resource as a whole stands under its identity, the state of a
// namespace under a hash of both.
type row struct {
	resource  uint64
	namespace string // "" = of the resource as a whole
	// partial: the row of the whole only has the version of a watch of all namespaces,
	// from which the rows of namespaces say what counts.
	partial  bool
	selector string
	version  string // where a watch goes on; of a part of a watch: where its list was
	complete bool   // a list was complete once
}

// mixed is the selector of a row while a list with another selector than before is under way: an absence proves
// no deletion under either of them. No selector of labels has this text.
const mixed = "!"

// id is where the row is stored.
func (w *row) id() uint64 { return rowID(w.resource, w.namespace) }

func rowID(resource uint64, namespace string) uint64 {
	if namespace == "" {
		return resource
	}
	return bits(resource ^ bits(hashOf(namespace)))
}

// state is the row as it is stored. The selector comes last: it is free text.
func (w *row) state() store.WatchState {
	scope := "*|" + w.selector
	switch {
	case w.namespace != "":
		scope = fmt.Sprintf("n|%016x|%s|%s", w.resource, w.namespace, w.selector)
	case w.partial:
		scope = "=|" + w.selector
	}
	return store.WatchState{Watch: w.id(), Scope: scope, Version: w.version, Complete: w.complete}
}

// parseRow reads a stored row; false for one that is not of a resource.
func parseRow(s store.WatchState) (row, bool) {
	w := row{resource: s.Watch, version: s.Version, complete: s.Complete}
	kind, rest, _ := strings.Cut(s.Scope, "|")
	switch kind {
	case "*", "=":
		w.partial, w.selector = kind == "=", rest
		return w, true
	case "n":
		parts := strings.SplitN(rest, "|", 3)
		if len(parts) != 3 {
			return w, false
		}
		resource, err := strconv.ParseUint(parts[0], 16, 64)
		w.resource, w.namespace, w.selector = resource, parts[1], parts[2]
		return w, err == nil
	}
	return w, false
}

// counted is the row of the number and the bytes of the marks of a resource. It changes in
// the batch that changes marks. At a start the queue reads the bytes.
func counted(resource uint64, n, size int64) store.WatchState {
	id := bits(resource ^ bits(hashOf("the number of marks")))
	return store.WatchState{Watch: id, Scope: store.MarkCount{Watch: resource, Marks: n, Bytes: size}.Scope()}
}

// The revision of the sink has a row of its own.
var revisionID = hashOf("the revision that was resynced last")

const revisionScope = "revision"

// rows are the rows of one resource. It is safe for concurrent use.
type rows struct {
	mu     sync.Mutex
	by     map[string]row // by namespace
	memory memory
}

// rowBytes is what a row takes in memory beside its texts.
const rowBytes = 192

// size is what a row takes. Most rows have the selector of the resource.
func (w *row) size() int64 { return int64(rowBytes + len(w.namespace) + len(w.selector)) }

func (r *rows) get(namespace string) (row, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w, ok := r.by[namespace]
	return w, ok
}

// set keeps a row that was reserved.
func (r *rows) set(w row) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.by[w.namespace] = w
}

// reserve makes space for a row, and returns what gives it back.
func (r *rows) reserve(w *row) (undo func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := int64(0)
	if old, ok := r.by[w.namespace]; ok {
		before = old.size()
	}
	more := w.size() - before
	if err := r.memory.grow(more); err != nil {
		return nil, err
	}
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.memory.shrink(more)
	}, nil
}

func (r *rows) remove(namespace string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.by[namespace]; ok {
		r.memory.shrink(w.size())
		delete(r.by, namespace)
	}
}

// release ends the use of the rows.
func (r *rows) release() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.memory.claim.Release()
}

// namespaces are the namespaces that have a row.
func (r *rows) namespaces() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var names []string
	for name := range r.by {
		if name != "" {
			names = append(names, name)
		}
	}
	return names
}

// listed reports that a list was complete once.
func (r *rows) listed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, w := range r.by {
		if w.complete {
			return true
		}
	}
	return false
}

// covers reports what is known about a namespace under a selector. known: a list of it
// was begun, so that a mark without an object is a deletion. complete: it was
// complete, so that an object without a mark is new.
func (r *rows) covers(namespace, selector string) (known, complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.by[""]; ok && !w.partial && w.selector == selector {
		known, complete = true, w.complete
	}
	if w, ok := r.by[namespace]; ok && namespace != "" && w.selector == selector {
		known, complete = true, complete || w.complete
	}
	return known, complete
}
