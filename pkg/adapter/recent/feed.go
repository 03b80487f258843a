package recent

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// The bounds of all feeds: feeds×ringBytes.
const (
	FeedBytes = maxFeeds * ringBytes
	maxFeeds  = 64
	ringBytes = 256 << 10
	// eventBytes is what an event takes beside its key.
	eventBytes = 288 // with the slack of a slice that grows
	// linger is how long a feed stays after its last follower.
	linger = 5 * time.Minute
)

// Kind is the kind of an event.
type Kind string

// The kinds.
const (
	Scheduled Kind = "scheduled"
	Started   Kind = "started"
	Ended     Kind = "outcome"
)

// Event is something that happened to a key.
type Event struct {
	Seq      uint64
	Kind     Kind
	Key      string
	At       time.Time
	Revision uint64    // of Scheduled
	DueAt    time.Time // of Scheduled
	Attempt  uint32    // of Started and Ended
	Result   string    // of Ended
	Status   int       // of Ended
}

// Feeds are the feeds of the sources that are followed. It is safe for concurrent use.
type Feeds struct {
	mu    sync.Mutex
	feeds map[*FeedRef]*Feed
}

// NewFeeds returns no feeds.
func NewFeeds() *Feeds { return &Feeds{feeds: map[*FeedRef]*Feed{}} }

// FeedRef is the place of a source's feed, empty while the source has no follower.
type FeedRef struct{ feed atomic.Pointer[Feed] }

// Feed returns the feed, nil without a follower.
func (r *FeedRef) Feed() *Feed { return r.feed.Load() }

// Feed is the last events of one source.
type Feed struct {
	mu        sync.Mutex
	events    []Event // oldest first
	used      int
	next      uint64 // the number of the next event
	first     uint64 // the number of the feed's first event
	ended     bool
	more      chan struct{} // closed when there is another event, or the end
	followers int           // of Feeds.mu
	left      time.Time     // when the last follower left
}

// Add adds an event; it sets its number.
func (f *Feed) Add(e Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e.Seq = f.next
	f.next++
	f.events = append(f.events, e)
	for f.used += eventBytes + len(e.Key); f.used > ringBytes; {
		f.used -= eventBytes + len(f.events[0].Key)
		f.events[0] = Event{}
		f.events = f.events[1:]
	}
	close(f.more)
	f.more = make(chan struct{})
}

// Follower reads a feed from some place on.
type Follower struct {
	all  *Feeds
	ref  *FeedRef
	feed *Feed
	at   uint64 // the number of the next event
}

// Follow returns a follower of the source with the ref, nil if there are too many feeds. after is
// the number of the last event that the follower has; ok is false when events after it are
// not known any more, or it is none of this feed. Without resume the follower begins with
// the next event.
func (a *Feeds) Follow(ref *FeedRef, after uint64, resume bool) (w *Follower, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := a.feeds[ref]
	if f == nil {
		if !a.evictIfFull() {
			return nil, false
		}
		// At random: an event of an older feed is not taken for one of this feed, whatever queue or process it was of.
		first := 1 + rand.Uint64N(1<<62)
		f = &Feed{next: first, first: first, more: make(chan struct{})}
		a.feeds[ref] = f
		ref.feed.Store(f)
	}
	f.followers++
	f.mu.Lock()
	defer f.mu.Unlock()
	w = &Follower{all: a, ref: ref, feed: f, at: f.next}
	if !resume {
		return w, true
	}
	oldest := f.next - uint64(len(f.events))
	ok = after >= f.first-1 && after+1 >= oldest && after < f.next
	if ok {
		w.at = after + 1
	} else {
		w.at = oldest
	}
	return w, ok
}

// evictIfFull ends the feed that was left longest ago if there are maxFeeds. It reports
// whether one more feed may be added. The caller holds the lock.
func (a *Feeds) evictIfFull() bool {
	var oldest *FeedRef
	for ref, f := range a.feeds {
		if f.followers == 0 && (oldest == nil || f.left.Before(a.feeds[oldest].left)) {
			oldest = ref
		}
	}
	if len(a.feeds) < maxFeeds {
		return true
	}
	if oldest == nil {
		return false
	}
	a.end(oldest)
	return true
}

// end ends a feed. The caller holds the lock.
func (a *Feeds) end(ref *FeedRef) {
	f := a.feeds[ref]
	delete(a.feeds, ref)
	ref.feed.Store(nil)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.ended {
		f.ended = true
		close(f.more)
	}
	f.events = nil
}

// End ends the feed of a source that was removed.
func (a *Feeds) End(ref *FeedRef) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.feeds[ref] != nil {
		a.end(ref)
	}
}

// Tidy ends the feeds whose last follower left long ago. It is called now and then.
func (a *Feeds) Tidy() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for ref, f := range a.feeds {
		if f.followers == 0 && time.Since(f.left) >= linger {
			a.end(ref)
		}
	}
}

// Next appends up to limit events that follow. Without any it returns a channel that is
// closed when there are more. slow: the follower has fallen behind what is known; ended:
// the feed has ended.
func (w *Follower) Next(dst []Event, limit int) (_ []Event, more <-chan struct{}, slow, ended bool) {
	f := w.feed
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ended {
		return dst, nil, false, true
	}
	oldest := f.next - uint64(len(f.events))
	if w.at < oldest {
		return dst, nil, true, false
	}
	ahead := f.events[w.at-oldest:]
	ahead = ahead[:min(len(ahead), limit)]
	w.at += uint64(len(ahead))
	return append(dst, ahead...), f.more, false, false
}

// Last is the number of the last event that the follower has.
func (w *Follower) Last() uint64 { return w.at - 1 }

// Close ends the following.
func (w *Follower) Close() {
	w.all.mu.Lock()
	defer w.all.mu.Unlock()
	if w.feed.followers--; w.feed.followers == 0 {
		w.feed.left = time.Now()
	}
}
