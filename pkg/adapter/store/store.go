package store

import (
	"errors"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// ErrClosed is returned when the store is closed or closing: the call had no effect. Of
// [Commit].Wait it means that the effect may not be durable. It is not an error of the disk.
var ErrClosed = errors.New("store: closed")

// ErrFull is returned when the disk is full: nothing was changed, and the call may be
// tried again when there is space.
var ErrFull = errors.New("store: disk full")

// ErrLarge is returned when entries have more bytes than the caller allows.
var ErrLarge = errors.New("store: the entries are large")

// Store keeps entries and their indexes on stable storage. It is safe for
// concurrent use. The caller must not let two Apply of one key overlap, because each
// Change has the key's entry from before.
type Store interface {
	// ID names the data directory: random, made with it.
	ID() string

	// NextRevision returns a revision that was never returned before, not even
	// before a crash. Now and then it waits for one fsync.
	NextRevision() (uint64, error)

	// Get returns the key's entry, nil when there is none, and a *CorruptError when it
	// cannot be read.
	Get(source, key string) (*schedule.Entry, error)

	// Outline is Get, but reads the event only of an entry of at most most bytes, by
	// [schedule.Entry.Size]: [schedule.Event.Omitted]. It is enough for a Change that removes
	// the event, replaces it, or keeps it.
	Outline(source, key string, most int64) (*schedule.Entry, error)

	// GetAll is Get for many keys: entries[i] is of keys[i]. It reads them in the order
	// in which they are stored, which is faster. It returns ErrLarge once they have
	// more than most bytes, by [schedule.Entry.Size].
	GetAll(source string, keys []string, entries []*schedule.Entry, most int64) error

	// Outlines is Outline for many keys, without their events.
	Outlines(source string, keys []string, entries []*schedule.Entry) error

	// Apply makes the changes visible to every later call, all or none, in the
	// order given. They survive a crash once Wait of the returned Commit
	// returned nil; after a crash they are there all or none, and never without
	// the changes that were applied before them. A lazy Apply starts no fsync of
	// its own; one follows within LazySync.
	Apply(lazy bool, changes ...Change) (Commit, error)

	// ApplyMarked is Apply with changes of marks, which are part of the whole: after a
	// crash a mark is there only with the changes that came with it.
	ApplyMarked(lazy bool, marks []MarkChange, changes ...Change) (Commit, error)

	// Marks returns up to limit marks of the watch whose objects come after the given
	// one, in the order of their bytes, and ends early where they are large. A mark
	// that cannot be read is left out.
	Marks(source string, watch uint64, after string, limit int) (_ []Mark, more bool, err error)

	// Mark returns the object's mark, false when there is none or it cannot be read.
	Mark(source string, watch uint64, object string) (Mark, bool, error)

	// CountMarks counts the marks of the watch, and adds up their [Mark.Size]. It reads
	// all of them. One that cannot be read counts with what it takes.
	CountMarks(source string, watch uint64) (n, bytes int64, err error)

	// WatchStates returns the states of the source's watches. A watch that has marks
	// but no state, or one that cannot be read, has a state with nothing but its number.
	WatchStates(source string) ([]WatchState, error)

	// SetWatchState replaces the state of a watch. It is lazy.
	SetWatchState(source string, s WatchState) error

	// RemoveWatch removes the marks and the state of a watch, however many they are.
	// It is lazy. No ApplyMarked for that watch may overlap it.
	RemoveWatch(source string, watch uint64) error

	// Space returns ErrFull while the disk has no space for a change that adds
	// growth bytes, by [schedule.Entry.Size] and [Mark.Size], nil otherwise. held is the
	// bytes that all sources of the namespace have then: while space is scarce, a namespace
	// that holds more than is free may not grow. A change that does not grow, and a namespace
	// that holds little, may use a part of the reserve. Call it before an Apply for a request,
	// not for removals and outcomes.
	Space(growth, held int64) error

	// SpaceForOutcomes reports that the disk has space for what outcomes change. While it does
	// not, start no delivery.
	SpaceForOutcomes() bool

	// Waiting reports that changes wait for space on the disk. Space returns ErrFull then.
	Waiting() bool

	// Due appends to rows up to limit rows of the source with a priority that come after the
	// position, ordered by position. Dead letters are among the high ones. more: there are others behind.
	Due(rows []Row, source string, p schedule.Priority, after Position, limit int) (_ []Row, more bool, err error)

	// List returns up to limit keys with the prefix that come after the given
	// key, in key order, and ends early where their events are large. Dead
	// letters are not listed. An entry that cannot be read has its key and no Entry. Without
	// events they are omitted.
	List(source, prefix, after string, limit int, events bool) (_ []Item, more bool, err error)

	// Letters is List of dead letters: the prefix is of the keys that they are stored
	// under.
	Letters(source, prefix, after string, limit int, events bool) (_ []Item, more bool, err error)

	// ListDue is List ordered by original due time, then key. It reads no more than
	// scan rows. next is the position to continue from, zero at the end.
	ListDue(source, prefix string, after Position, limit, scan int) (_ []Item, next Position, err error)

	// Backlog counts the keys that are due at now, without dead letters and keys for
	// which skip returns true. slack is the source's. It stops at limit rows, or, if very many rows do not
	// count, at some multiple of that.
	Backlog(source string, now time.Time, slack time.Duration, limit int, skip func(key string, revision uint64) bool) (Backlog, error)

	// Expired returns up to limit rows of all sources that come after the given
	// row and whose expiry is not after now, oldest first. next is the soonest
	// expiry of the others, zero when there is none or the limit was reached.
	// Rows of a source that was purged may be among them for a while.
	Expired(now time.Time, after SourceRow, limit int) (_ []SourceRow, next time.Time, err error)

	// Unfinished returns the keys whose entry has an UnfinishedAt.
	Unfinished() ([]SourceRow, error)

	// Count returns how many keys and dead letters the source has.
	Count(source string) (keys, deadLetters int64, err error)

	// Bands returns how many keys the source has of each priority. An entry that could not be read counts as
	// normal.
	Bands(source string) ([schedule.Bands]int64, error)

	// Bytes returns the sum of [schedule.Entry.Size] over all entries of the
	// source, dead letters among them.
	Bytes(source string) (int64, error)

	// Sources lists the sources that have an entry, a mark or the state of a watch.
	Sources() ([]string, error)

	// Purge removes everything of a source, durably; rows of Expired go in the
	// background. The source may be used again at once and is empty then. No Apply
	// for that source may overlap it.
	Purge(source string) error

	// Clock returns the last instant of SetClock, zero at first: the wall clock when
	// the store was last in use. SetClock is lazy.
	Clock() (time.Time, error)
	SetClock(time.Time) error

	// Close makes everything durable and releases the directory. It waits for
	// calls that are under way; later ones return [ErrClosed].
	Close() error
}

// LazySync is how long a lazy Apply may stay without an fsync.
const LazySync = 100 * time.Millisecond

// Commit is an applied set of changes on its way to stable storage.
type Commit interface {
	// Wait returns once the changes are durable. Call it at most once; without
	// it nothing leaks. An error means that durability is unknown: the process must end.
	Wait() error
}

// Change replaces a key's entry. Old is the entry that Get or Outline returned, nil for none;
// New is nil to remove it. An event that stays is not written again. Corrupt: Get returned a *CorruptError. The old entry counts as
// present, and its index rows are removed in the background.
type Change struct {
	Source, Key string
	Old, New    *schedule.Entry
	Corrupt     bool
}

// Mark is what the store remembers of a watched object: what was reported of it last.
type Mark struct {
	Object string // "namespace/name", or "name" of an object without a namespace
	UID    string
	Hash   uint64   // the fingerprint of what counts as a change
	Keys   []string // the keys that the object maps to; nil: its own key
}

// Size is about how many bytes the mark takes, at most.
func (m *Mark) Size() int64 {
	n := len(m.Object) + len(m.UID) + 64
	for _, key := range m.Keys {
		n += len(key) + 2
	}
	return int64(n)
}

// MarkChange replaces the mark of an object, or removes it.
type MarkChange struct {
	Source string
	Watch  uint64 // a number that stays the same for as long as the marks are valid
	Mark   Mark   // to remove it needs no more than the Object
	Remove bool
	// Before is the size of the mark that it replaces or removes, 0 for none. The store
	// does not need it: see Growth.
	Before int64
	// State is stored instead of a mark: a watch goes on exactly behind the changes
	// whose marks are stored with it.
	State *WatchState
}

// Growth is how many bytes more the marks have after the change.
func (c *MarkChange) Growth() int64 {
	switch {
	case c.State != nil:
		return 0
	case c.Remove:
		return -c.Before
	}
	return c.Mark.Size() - c.Before
}

// WatchState is where a watch stands.
type WatchState struct {
	Watch    uint64
	Scope    string // the namespaces and the selector of the last complete list
	Version  string // the resourceVersion to go on from, "" for none
	Complete bool   // a list was read to its end
	Revision string // the sink's revision for which all objects were scheduled last
}

// Position is a place in a source's due order.
type Position struct {
	At  time.Time
	Key string
}

// Before orders positions by time, then key.
func (p Position) Before(o Position) bool {
	if p.At.Equal(o.At) {
		return p.Key < o.Key
	}
	return p.At.Before(o.At)
}

// Row is one row of the due index. It is stale unless the key's entry still has its
// revision and time.
type Row struct {
	Position
	Revision uint64
	Slack    time.Duration     // [schedule.Entry.OwnSlack]; only of rows of the due order
	Priority schedule.Priority // [schedule.Entry.Rank]; only of rows of the due order
}

// SourceRow is a row of an index over all sources.
type SourceRow struct {
	Source string
	Row
}

// Item is a key and its entry, nil when that cannot be read.
type Item struct {
	Key   string
	Entry *schedule.Entry
}

// Backlog counts the keys of a source that are due. An instant is zero when
// there is no such key.
type Backlog struct {
	Due             int       // keys whose due time has come
	Retrying        int       // due keys between two attempts
	OldestAt        time.Time // the earliest due time of the due keys
	OldestUntriedAt time.Time // the earliest end of the slack, if it has come, of the due keys that are not between two attempts
	NextAt          time.Time // the soonest due time of the keys that are not due
	Bands           [schedule.Bands]Band
	Partial         bool // it stopped counting: there may be more
}

// Band is the due keys of one priority, of [schedule.Priorities].
type Band struct {
	Due             int
	OldestUntriedAt time.Time // as in Backlog
}
