package replica

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrFenced is returned where the log has another owner, or another head, than the caller
// thought: nothing was changed. Any other error of a change, but ErrTooLarge, means that its outcome is unknown.
var ErrFenced = errors.New("replica: another member owns the group")

// ErrGap is returned where the log does not have the next entry of a view any more.
var ErrGap = errors.New("replica: the log does not reach back to this view: it needs a copy of another member's view")

// ErrSetBack is the error of a log that lacks what this member has promised to others.
var ErrSetBack = errors.New("replica: the disk of this member went back to an earlier state, as of a snapshot of its volume: what it promised since is lost")

// Format is the form of what members write into the log: heads, entries and the batches in them, marks and reports. A
// change that another program would misread makes the next number. Each claim has it, and a member that finds another
// one in a claim ends with ErrFormat, before it reads an entry.
const Format = 1

// ErrFormat is the error of a log whose claim has another Format.
var ErrFormat = errors.New("replica: the log is of another version of this program")

// check refuses a log that was claimed by a program with another format.
func (s *State) check() error {
	if s.Epoch == 0 || s.Owner.Format == Format {
		return nil
	}
	return fmt.Errorf("%w: its owner's claim has format %d, and this program has format %d: run one version on all members", ErrFormat, s.Owner.Format, Format)
}

// Owner is what a member writes when it claims the group.
type Owner struct {
	Member  string `json:"member"`  // "": the group was released
	Address string `json:"address"` // where other members forward calls to
	Claim   string `json:"claim"`   // differs with each attempt
	// Clock is the member by whose wall clock the group's clock went last, and Held how far
	// it was held back at most.
	Clock string        `json:"clock"`
	Held  time.Duration `json:"held"`
	// Format is the [Format] of the member's program, also in a release.
	Format int `json:"format"`
}

// State is who owns the group, and how far the log is. A revision counts the changes of the log.
type State struct {
	Epoch int64 // the revision of the last claim or release; 0: there was none
	Owner Owner
	Head  int64     // the revision of the last append, renewal, claim or release
	Last  uint64    // the number of the newest entry at the Head
	Wall  time.Time // the group's clock when that was sent
}

// Entry is one entry of the log. Numbers begin at 1 and have no gaps.
type Entry struct {
	Seq  uint64
	Data []byte
}

// Page is a part of the log as this member has it.
type Page struct {
	Entries  []Entry
	More     bool
	Revision int64 // where to follow the log from, if there is no more
}

// Log is the log of a group, as one member reaches it. It is safe for concurrent use.
// A change that has returned is part of what this member reads from then on. wall is the
// group's clock, which the head shows.
type Log interface {
	// Append adds an entry if the epoch is the current one and there is no entry with that
	// number. It may be repeated with the same arguments. added is false if an earlier
	// attempt has added it: that says nothing about when. Its error is ErrTooLarge for an entry
	// that it will never take; it takes MaxEntry.
	Append(ctx context.Context, epoch int64, seq uint64, data []byte, wall time.Time) (added bool, err error)
	// Renew moves the head if the epoch is the current one.
	Renew(ctx context.Context, epoch int64, last uint64, wall time.Time) error
	// Claim makes the owner the next one if epoch and head are still as seen, and returns the
	// new epoch.
	Claim(ctx context.Context, seen State, next Owner, wall time.Time) (epoch int64, err error)
	// Release gives the group to the first member that claims it. next has no member.
	Release(ctx context.Context, epoch int64, next Owner, wall time.Time) error

	// Read returns entries behind the given number, in order.
	Read(ctx context.Context, after uint64) (Page, error)
	// State returns the state as this member has it.
	State(ctx context.Context) (State, error)
	// Follow sends the newest state when it has changed behind the revision, until ctx ends. What
	// did not change may be zero; several changes may come as one. Read returns the entries up to
	// State.Last. The channel is closed then, and when the log cannot be followed any more.
	Follow(ctx context.Context, revision int64) <-chan State

	// Mark records that the member has its view on disk up to the number. A mark without an answer may come true
	// later, but not after a later mark. Marks returns the marks of all members that have one.
	Mark(ctx context.Context, member string, seq uint64) error
	Marks(ctx context.Context) (map[string]uint64, error)
	// Report records what the other members must know of this one. Reports returns the newest report
	// of each member, by what a majority has.
	Report(ctx context.Context, member string, r Report) error
	Reports(ctx context.Context) (map[string]Report, error)
	// Size is how many bytes the log takes on this member's disk.
	Size() int64
	// Trim removes the entries up to the number.
	Trim(ctx context.Context, seq uint64) error
}

// Report is what a member says about itself.
type Report struct {
	Seq  uint64 `json:"seq"`  // what it has applied
	Hash uint64 `json:"hash"` // View.Chain at Seq
	// Copies: it takes a copy of a view that it has space for, or reads what the log has behind the copy. The log
	// is kept meanwhile. Beat differs in each report.
	Copies bool  `json:"copies,omitempty"`
	Beat   int64 `json:"beat"`
}

// View is the state to which one member applies the log.
type View interface {
	// Applied is the number of the last entry that was applied.
	Applied() uint64
	// Chain is Applied, and a hash over all batches that were applied up to there, with their numbers.
	// Two views with the same entries have the same hash.
	Chain() (applied, hash uint64)
	// Apply applies the batch whose last part is the entry. The entries between Applied and this
	// one have nothing else to apply.
	Apply(seq uint64, batch []byte) error
	// Flush returns once everything that was applied before is on disk.
	Flush() error
}

// Promise is what a member's log has promised to other members.
type Promise int

const (
	// Nothing is the promise of a log that has not voted. Such a log is as good as none.
	Nothing Promise = iota
	// OwnVote is a vote for itself alone: nothing was accepted. The first start was cut off before
	// another member had voted, or that member has lost its disk.
	OwnVote
	// More is a vote for another member, or something that was accepted.
	More
)
