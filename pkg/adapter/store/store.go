package store

import (
	"errors"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// ErrClosed says that the store is closed, or about to be: what was asked for
// did not happen, or may not be durable. It is no fault of the disk.
var ErrClosed = errors.New("store: closed")

// ErrFull says that the disk has no room for more: nothing was changed, and
// the call may be tried again once there is room.
var ErrFull = errors.New("store: disk full")

// ErrLarge says that entries have more bytes than the caller wants.
var ErrLarge = errors.New("store: the entries are large")

// Store keeps entries and their indexes on stable storage. It is safe for
// concurrent use; for one key of one source the caller lets no two Apply
// overlap, since each Change says what the key's entry was before.
type Store interface {
	// ID names the data directory: random, made with it.
	ID() string

	// NextRevision returns a revision that was never returned before, not even
	// before a crash. Now and then it waits for one fsync.
	NextRevision() (uint64, error)

	// Get returns the key's entry, nil when there is none. A *CorruptError says
	// that it is there and cannot be read.
	Get(source, key string) (*schedule.Entry, error)

	// Outline is Get, but leaves out the event of an entry of more than 4 KiB:
	// [schedule.Entry.Omitted]. It will do for the Old of a Change.
	Outline(source, key string) (*schedule.Entry, error)

	// GetAll is Get for many keys: entries[i] is of keys[i]. Unlike as many
	// calls of Get it reads them in the order they are stored in. It returns
	// ErrLarge once they have more than so many bytes, by [schedule.Entry.Size].
	GetAll(source string, keys []string, entries []*schedule.Entry, most int64) error

	// Outlines is Outline for many keys, as GetAll is Get.
	Outlines(source string, keys []string, entries []*schedule.Entry) error

	// Apply makes the changes visible to every later call, all or none, in the
	// order given. They survive a crash once Wait of the returned Commit
	// returned nil; after a crash they are there all or none, and never without
	// the changes that were applied before them. A lazy Apply starts no fsync of
	// its own; one follows within LazySync.
	Apply(lazy bool, changes ...Change) (Commit, error)

	// Room returns ErrFull while the disk has no room for a change that adds
	// growth bytes, by [schedule.Entry.Size], nil otherwise. held is what all
	// sources of the namespace have then: while space is scarce, who holds more
	// than is still free may not grow. Of the space that is kept back to go on
	// with, a change that does not grow may use a part. Ask before an Apply for a
	// request; removals and outcomes need not ask.
	Room(growth, held int64) error

	// Due appends to rows up to limit rows of the source that come after the
	// position, ordered by position, dead letters among them; more says
	// whether there are others behind.
	Due(rows []Row, source string, after Position, limit int) (_ []Row, more bool, err error)

	// List returns up to limit keys with the prefix that come after the given
	// key, in key order, and ends early where their events are large. Dead
	// letters are not listed. An entry that cannot be read has its key and no Entry.
	List(source, prefix, after string, limit int) (_ []Item, more bool, err error)

	// ListDue is List ordered by original due time, then key. It looks at no
	// more than scan rows; next is where to go on, the zero Position when there
	// is nothing behind.
	ListDue(source, prefix string, after Position, limit, scan int) (_ []Item, next Position, err error)

	// Backlog counts what is due at now, without dead letters and keys that skip
	// says true of. It stops counting at limit rows, or, where very many rows do
	// not count, at some multiple of that.
	Backlog(source string, now time.Time, limit int, skip func(key string, revision uint64) bool) (Backlog, error)

	// Expired returns up to limit rows of all sources that come after the given
	// row and whose expiry is not after now, oldest first. next is the soonest
	// expiry of the others, zero when there is none or the limit was reached.
	// Rows of a source that was purged may be among them for a while.
	Expired(now time.Time, after SourceRow, limit int) (_ []SourceRow, next time.Time, err error)

	// Unfinished returns the keys whose entry has an UnfinishedAt.
	Unfinished() ([]SourceRow, error)

	// Count returns how many keys and dead letters the source has.
	Count(source string) (keys, deadLetters int64, err error)

	// Bytes returns the sum of [schedule.Entry.Size] over all entries of the
	// source, dead letters among them.
	Bytes(source string) (int64, error)

	// Sources lists the sources that have anything stored.
	Sources() ([]string, error)

	// Purge removes everything of a source, durably; rows of Expired go in the
	// background. The source may be used again at once and is empty then. No Apply
	// for that source may overlap it.
	Purge(source string) error

	// Clock is the instant that was handed to SetClock last, zero at first: the
	// wall clock was there when the store was last in use. SetClock is lazy.
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

// Change replaces a key's entry. Old is what Get returned, nil for none; New
// is nil to remove it. Corrupt says that Get returned a *CorruptError: the entry
// counts as one that was there, and its index rows go in the background.
type Change struct {
	Source, Key string
	Old, New    *schedule.Entry
	Corrupt     bool
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

// Row is one row of the due index: the key is to be looked at then, if its
// entry still has that revision and time.
type Row struct {
	Position
	Revision uint64
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
	OldestUntriedAt time.Time // the earliest due time of the due keys that are not between two attempts
	NextAt          time.Time // the soonest due time of the keys that are not due
	Partial         bool      // it stopped counting: there may be more
}
