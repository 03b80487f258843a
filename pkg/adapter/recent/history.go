package recent

import (
	"container/heap"
	"slices"
	"strings"
	"sync"
	"time"
)

// HistoryBytes is the most that a history takes.
const HistoryBytes = 12 << 20

// Outcome is the end of an attempt to deliver a key.
type Outcome struct {
	At       time.Time
	Result   string // schedule.Disposition
	Cause    string // what the delivered event names as its cause, "" for nothing
	Status   int    // of the sink's answer; 0 when there was none
	Attempt  uint32 // the attempt counter that the event carried
	Lateness time.Duration
	Duration time.Duration
}

// What is counted of an outcome, with its place in the order of the namespace, and of a
// key with its place in the map.
const (
	outcomeBytes = 208
	placeBytes   = 16 // the part that is the place
	keyBytes     = 256
	// perKey is how many outcomes of one key are kept.
	perKey = 50
	// maxCause bounds the cause.
	maxCause = 256
)

// History is the last outcomes of all keys. It is safe for concurrent use.
type History struct {
	mu    sync.Mutex
	most  int
	used  int
	start time.Time
	keys  map[keyName]*chain
	of    map[string]*namespace
	order byUse
}

type keyName struct{ source, key string }

// chain is the outcomes of one key, oldest first.
type chain struct {
	name     keyName
	outcomes []Outcome
	// stalePlaces is how many of the key's places in the namespace's order are of outcomes
	// that were dropped for newer ones of the same key.
	stalePlaces int
	since       time.Time // when the newest outcome was dropped that is not there any more
}

// namespace is the order in which the outcomes of a namespace came.
type namespace struct {
	name  string
	used  int
	first int // index of the oldest in places
	// places has a chain for each outcome, oldest first.
	places []*chain
	since  time.Time // as chain.since
	index  int       // in History.order
}

// NewHistory returns an empty history of at most so many bytes.
func NewHistory(most int, now time.Time) *History {
	return &History{most: most, start: now, keys: map[keyName]*chain{}, of: map[string]*namespace{}}
}

// Add adds an outcome of a key.
func (h *History) Add(ns, source, key string, o Outcome) {
	if len(o.Cause) > maxCause {
		o.Cause = o.Cause[:maxCause]
	}
	o.Cause = strings.Clone(strings.ToValidUTF8(o.Cause, "")) // the event that it is part of is not kept
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.of[ns]
	if n == nil {
		n = &namespace{name: strings.Clone(ns), since: h.start}
		h.of[n.name] = n
		heap.Push(&h.order, n)
	}
	c := h.keys[keyName{source, key}]
	if c == nil {
		c = &chain{name: keyName{source, strings.Clone(key)}}
		h.keys[c.name] = c
		h.count(n, keyBytes+len(key))
	}
	if len(c.outcomes) >= perKey {
		c.since = c.outcomes[0].At
		h.count(n, placeBytes-outcomeBytes-len(c.outcomes[0].Cause))
		c.outcomes = append(c.outcomes[:0], c.outcomes[1:]...)
		c.stalePlaces++
	}
	c.outcomes = append(c.outcomes, o)
	n.places = append(n.places, c)
	h.count(n, outcomeBytes+len(o.Cause))
	for h.used > h.most {
		h.drop(h.order[0])
	}
}

func (h *History) count(n *namespace, bytes int) {
	n.used += bytes
	h.used += bytes
	heap.Fix(&h.order, n.index)
}

// drop drops the oldest outcome of a namespace.
func (h *History) drop(n *namespace) {
	c := n.places[n.first]
	n.places[n.first] = nil
	if n.first++; n.first > 1024 && n.first > len(n.places)/2 {
		n.places = append(n.places[:0:0], n.places[n.first:]...)
		n.first = 0
	}
	freed := placeBytes
	if c.stalePlaces > 0 { // its outcome is gone, for a newer one of the key
		c.stalePlaces--
	} else {
		n.since = c.outcomes[0].At
		freed = outcomeBytes + len(c.outcomes[0].Cause)
		c.outcomes = append(c.outcomes[:0], c.outcomes[1:]...)
	}
	if len(c.outcomes) == 0 {
		delete(h.keys, c.name)
		freed += keyBytes + len(c.name.key)
	}
	h.count(n, -freed)
	if n.first == len(n.places) && n.used == 0 {
		heap.Remove(&h.order, n.index)
		delete(h.of, n.name)
	}
}

// Get returns the outcomes of a key that are known, newest first, and since when all of
// them are.
func (h *History) Get(ns, source, key string) ([]Outcome, time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	since := h.start
	if n := h.of[ns]; n != nil {
		since = n.since
	}
	c := h.keys[keyName{source, key}]
	if c == nil {
		return nil, since
	}
	if c.since.After(since) {
		since = c.since
	}
	found := make([]Outcome, 0, len(c.outcomes))
	for _, o := range slices.Backward(c.outcomes) {
		found = append(found, o)
	}
	return found, since
}

// byUse is a heap of namespaces; the namespace that has the most is the first. Its order and its
// index differ from the heap of package listener, and the rest is container/heap's interface:
// one heap for both would be longer.
type byUse []*namespace

func (b byUse) Len() int           { return len(b) }
func (b byUse) Less(i, j int) bool { return b[i].used > b[j].used }
func (b byUse) Swap(i, j int) {
	b[i], b[j] = b[j], b[i]
	b[i].index, b[j].index = i, j
}

// Push implements heap.Interface.
func (b *byUse) Push(x any) {
	n := x.(*namespace)
	n.index = len(*b)
	*b = append(*b, n)
}

// Pop implements heap.Interface.
func (b *byUse) Pop() any {
	last := len(*b) - 1
	n := (*b)[last]
	(*b)[last] = nil
	*b = (*b)[:last]
	return n
}
