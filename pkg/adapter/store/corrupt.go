package store

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"
)

// CorruptError is the error of a record that cannot be read. Get returns it, listings
// skip the key, and a Change with Corrupt replaces the record.
type CorruptError struct {
	Source, Key string
	Err         error
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("store: the record of key %q of source %q is corrupt: %v", e.Key, e.Source, e.Err)
}

func (e *CorruptError) Unwrap() error { return e.Err }

// maxPlaces bounds the corrupt places that are distinguished.
const maxPlaces = 10_000

// places are the corrupt places that were met since Open: a block of a file, a
// record, a row. Each is counted and logged once, however often it is read.
type places struct {
	sync.Mutex
	seen map[string]bool
	gaps []span // that scans had to pass over: to find one takes some reads
}

// known is where rows can be read again behind key, nil when that is not known.
func (p *places) known(key []byte) []byte {
	p.Lock()
	defer p.Unlock()
	for i := range p.gaps {
		if p.gaps[i].has(key) {
			return p.gaps[i].to
		}
	}
	return nil
}

// maxGaps bounds the gaps that are remembered.
const maxGaps = 1000

func (p *places) learn(s span) {
	p.Lock()
	defer p.Unlock()
	if len(p.gaps) < maxGaps {
		p.gaps = append(p.gaps, s)
	}
}

// Corrupt is how many corrupt places were met since Open. It counts up to
// 10,000 of them.
func (db *engine) Corrupt() int64 {
	db.places.Lock()
	defer db.places.Unlock()
	return int64(len(db.places.seen))
}

// corruptAt records a corrupt place.
func (db *engine) corruptAt(place string, err error) {
	p := &db.places
	p.Lock()
	defer p.Unlock()
	if p.seen[place] || len(p.seen) >= maxPlaces {
		return
	}
	if p.seen == nil {
		p.seen = map[string]bool{}
	}
	p.seen[place] = true
	const single, member = "stop the adapter and run adapter repair", "this member hands the group over, and takes a copy of another member's view"
	advice := single
	if db.replicated {
		advice = member
	}
	db.log.Error("store: data on the disk are corrupt; other data is served: "+advice, "place", place, "error", firstLine(fmt.Sprint(err))) //nolint:sloglint // one of two constants
}

func (db *engine) corruptRecord(source, key string, err error) *CorruptError {
	return &CorruptError{Source: source, Key: key, Err: err}
}

// undecodable is a record whose block is whole and that makes no sense.
func (db *engine) undecodable(source, key string, err error) *CorruptError {
	db.corruptAt(fmt.Sprintf("the record of key %q of source %q", key, source), err)
	return db.corruptRecord(source, key, err)
}

// skip records that a scan continues behind an invalid row.
func (db *engine) skip(row []byte, err error) { db.corruptAt(fmt.Sprintf("row %q", row), err) }

func isCorrupt(err error) bool {
	var c *CorruptError
	return errors.As(err, &c)
}

// errorLogEvery is the least time between two log lines about the same kind of error.
// With a full disk the engine logs several errors a second, each with a stack, maybe
// to the same disk.
const errorLogEvery = time.Minute

// limited lets one line of a kind through in complainEvery.
type limited struct {
	sync.Mutex
	at      time.Time
	dropped int
}

// logLimited logs the first line of the text, unless it did so just now.
func (db *engine) logLimited(l *limited, level slog.Level, what, text string) {
	l.Lock()
	defer l.Unlock()
	now := time.Now()
	if !l.at.IsZero() && now.Sub(l.at) < errorLogEvery {
		l.dropped++
		return
	}
	db.log.Log(context.Background(), level, what, "error", firstLine(text), "left_out", l.dropped) //nolint:sloglint // each caller gives a constant
	l.at, l.dropped = now, 0
}

// firstLine cuts off the stack that the engine's errors come with.
func firstLine(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	return text[:min(len(text), 500)]
}
