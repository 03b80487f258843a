package store

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// marks is what the store remembers of watched objects.
type marks struct{ *engine }

// markVersion is the first byte of every mark and of every state of a watch.
const markVersion = 1

// The fields of a mark, and what is set in the state of a watch.
const (
	markUUID  = 1 << iota // the uid is a UUID, in 16 bytes
	markKeys              // the keys follow
	markKnown = 1<<iota - 1

	stateComplete = 1
)

// appendWatchKey makes the row of a watch, or the start of the rows of its marks.
func appendWatchKey(dst []byte, table byte, source string, watch uint64) []byte {
	return binary.BigEndian.AppendUint64(appendSource(dst, table, source), watch)
}

func appendMarkKey(dst []byte, source string, watch uint64, object string) []byte {
	return append(appendWatchKey(dst, tableMark, source, watch), object...)
}

// parseWatched reads a whole row of the table of marks or of states.
func parseWatched(row []byte) (source string, watch uint64, object string, err error) {
	source, rest, err := parseSourced(row)
	if err != nil || len(rest) < 8 {
		return "", 0, "", errRow
	}
	return source, binary.BigEndian.Uint64([]byte(rest[:8])), rest[8:], nil
}

// appendUUID appends a UUID in its usual form as 16 bytes, and reports whether the
// text is one.
func appendUUID(dst []byte, text string) ([]byte, bool) {
	if len(text) != 36 || text[8] != '-' || text[13] != '-' || text[18] != '-' || text[23] != '-' || strings.ContainsAny(text, "ABCDEF") {
		return dst, false
	}
	n := len(dst)
	for _, part := range [...]string{text[:8], text[9:13], text[14:18], text[19:23], text[24:]} {
		var err error
		if dst, err = hex.AppendDecode(dst, []byte(part)); err != nil {
			return dst[:n], false
		}
	}
	return dst, true
}

func uuidText(b []byte) string {
	text := make([]byte, 0, 36)
	for i, part := range [...][]byte{b[:4], b[4:6], b[6:8], b[8:10], b[10:16]} {
		if i > 0 {
			text = append(text, '-')
		}
		text = hex.AppendEncode(text, part)
	}
	return string(text)
}

func appendMark(dst []byte, m *Mark) []byte {
	at := len(dst) + 1
	dst = append(dst, markVersion, 0)
	var is bool
	if dst, is = appendUUID(dst, m.UID); is {
		dst[at] |= markUUID
	} else {
		dst = appendString(dst, m.UID)
	}
	dst = binary.BigEndian.AppendUint64(dst, m.Hash)
	if m.Keys != nil {
		dst[at] |= markKeys
		dst = binary.AppendUvarint(dst, uint64(len(m.Keys)))
		for _, key := range m.Keys {
			dst = appendString(dst, key)
		}
	}
	return dst
}

// decodeMark reads what appendMark wrote and refuses anything else.
func decodeMark(object string, b []byte) (Mark, error) {
	d, flags, err := decodeWatched(b)
	if err != nil {
		return Mark{}, err
	}
	if flags&^markKnown != 0 {
		d.fail(errField)
	}
	m := Mark{Object: object}
	if flags&markUUID == 0 {
		m.UID = d.string()
	} else if uid := d.fixed(16); uid != nil {
		m.UID = uuidText(uid)
	}
	if hash := d.fixed(8); hash != nil {
		m.Hash = binary.BigEndian.Uint64(hash)
	}
	if flags&markKeys != 0 {
		n := d.uvarint()
		if n > uint64(len(d.record)-d.at) { // each takes a byte or more
			d.fail(errShort)
			n = 0
		}
		m.Keys = make([]string, n)
		for i := range m.Keys {
			m.Keys[i] = d.string()
		}
	}
	return m, d.end()
}

func appendState(dst []byte, s *WatchState) []byte {
	flags := byte(0)
	if s.Complete {
		flags = stateComplete
	}
	dst = append(dst, markVersion, flags)
	for _, text := range [...]string{s.Scope, s.Version, s.Revision} {
		dst = appendString(dst, text)
	}
	return dst
}

// decodeState reads what appendState wrote and refuses anything else.
func decodeState(watch uint64, b []byte) (WatchState, error) {
	d, flags, err := decodeWatched(b)
	if err != nil {
		return WatchState{}, err
	}
	if flags&^stateComplete != 0 {
		d.fail(errField)
	}
	s := WatchState{Watch: watch, Complete: flags&stateComplete != 0}
	for _, text := range [...]*string{&s.Scope, &s.Version, &s.Revision} {
		*text = d.string()
	}
	return s, d.end()
}

// decodeWatched reads the version and the byte of flags.
func decodeWatched(b []byte) (*decoder, byte, error) {
	if len(b) < 2 {
		return nil, 0, errShort
	}
	if b[0] != markVersion {
		return nil, 0, fmt.Errorf("its version is %d, this program reads %d", b[0], markVersion)
	}
	return &decoder{record: b, at: 2}, b[1], nil
}

// addMarks puts the changes of marks into the batch.
func (db *marks) addMarks(b *pebble.Batch, s *scratch, marks []MarkChange) (err error) {
	for i := range marks {
		c := &marks[i]
		if err := checkNames(c.Source, "-"); err != nil {
			return err
		}
		if c.State != nil {
			s.key, s.value = appendWatchKey(s.key[:0], tableWatch, c.Source, c.Watch), appendState(s.value[:0], c.State)
			if err := b.Set(s.key, s.value, nil); err != nil {
				return fmt.Errorf("store: writing the state of a watch of source %q: %w", c.Source, err)
			}
			continue
		}
		if c.Mark.Object == "" {
			return errors.New("store: a watched object has no name")
		}
		s.key = appendMarkKey(s.key[:0], c.Source, c.Watch, c.Mark.Object)
		if c.Remove {
			err = b.Delete(s.key, nil)
		} else {
			s.value = appendMark(s.value[:0], &c.Mark)
			err = b.Set(s.key, s.value, nil)
		}
		if err != nil {
			return fmt.Errorf("store: marking object %q of source %q: %w", c.Mark.Object, c.Source, err)
		}
	}
	return nil
}

// markPageBytes bounds a page of marks: each list and each resync that waits holds one, and a mark may
// have 64 keys of 512 bytes.
const markPageBytes = 64 << 10

// Marks implements Store.
func (db *marks) Marks(source string, watch uint64, after string, limit int) (marks []Mark, more bool, err error) {
	prefix := appendWatchKey(nil, tableMark, source, watch)
	lower := prefix
	if after != "" {
		lower = append(appendMarkKey(nil, source, watch, after), end)
	}
	held := 0
	err = db.eachMark(lower, successor(prefix), func(it *scan) (bool, error) {
		if len(marks) >= limit || held >= markPageBytes {
			more = true
			return false, nil
		}
		m, err := db.markAt(it, string(it.Key()[len(prefix):]))
		if err == nil && m != nil {
			marks = append(marks, *m)
			held += len(it.Key()) + it.valueLen() + 16*len(m.Keys)
		}
		return true, err
	})
	return marks, more, err
}

// eachMark calls visit for each row that can be read, until it returns false.
func (db *marks) eachMark(lower, upper []byte, visit func(*scan) (bool, error)) (err error) {
	it, err := db.scan(db.db, lower, upper)
	if err != nil {
		return err
	}
	defer it.done(&err)
	for ok := it.First(); ok; ok = it.Next() {
		if ok, err := visit(it); !ok || err != nil {
			return err
		}
	}
	return nil
}

// markAt decodes the mark that the scan is at, nil if it is corrupt.
func (db *marks) markAt(it *scan, object string) (*Mark, error) {
	value, err := it.ValueAndErr()
	if err != nil {
		if pebble.IsCorruptionError(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("store: reading marks: %w", err)
	}
	m, err := decodeMark(object, value)
	if err != nil {
		db.skip(it.Key(), err)
		return nil, nil
	}
	return &m, nil
}

// Mark implements Store.
func (db *marks) Mark(source string, watch uint64, object string) (Mark, bool, error) {
	if !db.gate.enter() {
		return Mark{}, false, ErrClosed
	}
	defer db.gate.leave()
	row := appendMarkKey(nil, source, watch, object)
	value, closer, err := db.db.Get(row)
	switch {
	case errors.Is(err, pebble.ErrNotFound), pebble.IsCorruptionError(err): // the engine has logged what is corrupt
		return Mark{}, false, nil
	case err != nil:
		return Mark{}, false, fmt.Errorf("store: reading the mark of object %q of source %q: %w", object, source, err)
	}
	defer closer.Close()
	m, err := decodeMark(object, value)
	if err != nil {
		db.skip(row, err)
		return Mark{}, false, nil
	}
	return m, true, nil
}

// CountMarks implements Store.
func (db *marks) CountMarks(source string, watch uint64) (n, bytes int64, err error) {
	prefix := appendWatchKey(nil, tableMark, source, watch)
	err = db.eachMark(prefix, successor(prefix), func(it *scan) (bool, error) {
		object := string(it.Key()[len(prefix):])
		m, err := db.markAt(it, object)
		n++
		if m == nil {
			m = &Mark{Object: object}
			bytes += int64(it.valueLen())
		}
		bytes += m.Size()
		return true, err
	})
	return n, bytes, err
}

func (db *marks) countMarks(prefix []byte) (n int64, err error) {
	err = db.eachMark(prefix, successor(prefix), func(*scan) (bool, error) {
		n++
		return true, nil
	})
	return n, err
}

// WatchStates implements Store.
func (db *marks) WatchStates(source string) (states []WatchState, err error) {
	prefix := appendSource(nil, tableWatch, source)
	err = db.eachMark(prefix, successor(prefix), func(it *scan) (bool, error) {
		s, err := db.stateAt(it)
		if err == nil && s != nil {
			states = append(states, *s)
		}
		return true, err
	})
	if err != nil {
		return nil, err
	}
	known := map[uint64]bool{}
	for _, s := range states {
		known[s.Watch] = true
	}
	watches, err := db.markedWatches(source)
	if err != nil {
		return nil, err
	}
	for _, watch := range watches {
		if !known[watch] {
			states = append(states, WatchState{Watch: watch})
		}
	}
	return states, nil
}

// stateAt decodes the state that the scan is at, nil if it is corrupt.
func (db *marks) stateAt(it *scan) (*WatchState, error) {
	value, err := it.ValueAndErr()
	if err != nil {
		if pebble.IsCorruptionError(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("store: reading the states of watches: %w", err)
	}
	_, watch, object, err := parseWatched(it.Key())
	var s WatchState
	if err == nil && object != "" {
		err = errRow
	}
	if err == nil {
		s, err = decodeState(watch, value)
	}
	if err != nil {
		db.skip(it.Key(), err)
		return nil, nil
	}
	return &s, nil
}

// markedWatches are the watches of the source that have a mark. It jumps from the
// first mark of one to the next one's.
func (db *marks) markedWatches(source string) (watches []uint64, err error) {
	prefix := appendSource(nil, tableMark, source)
	it, err := db.scan(db.db, prefix, successor(prefix))
	if err != nil {
		return nil, err
	}
	defer it.done(&err)
	for ok := it.First(); ok; {
		_, watch, _, err := parseWatched(it.Key())
		if err != nil {
			db.skip(it.Key(), err)
			ok = it.Next()
			continue
		}
		watches = append(watches, watch)
		ok = it.SeekGE(successor(appendWatchKey(nil, tableMark, source, watch)))
	}
	return watches, nil
}

// SetWatchState implements Store.
func (db *marks) SetWatchState(source string, s WatchState) error {
	if err := checkNames(source, "-"); err != nil {
		return err
	}
	return db.applyLazily(func(b *pebble.Batch) error {
		return b.Set(appendWatchKey(nil, tableWatch, source, s.Watch), appendState(nil, &s), nil)
	})
}

// fewMarks is how many marks are removed one by one. A range is quicker for many, but after each new one the next
// read, of any source, goes through all ranges that are in memory: 6 ms when there were 10,000. A source that changes
// what it watches, with few objects or none, could make as many in seconds.
const fewMarks = 1000

// RemoveWatch implements Store.
func (db *marks) RemoveWatch(source string, watch uint64) error {
	if err := checkNames(source, "-"); err != nil {
		return err
	}
	return db.applyLazily(func(b *pebble.Batch) error {
		if err := db.removeMarks(b, appendWatchKey(nil, tableMark, source, watch)); err != nil {
			return err
		}
		return b.Delete(appendWatchKey(nil, tableWatch, source, watch), nil)
	})
}

// removeMarks removes the marks with the prefix, by a batch that is empty so far.
func (db *marks) removeMarks(b *pebble.Batch, prefix []byte) (err error) {
	it, err := db.scan(db.db, prefix, successor(prefix))
	if err != nil {
		return err
	}
	defer it.done(&err)
	ok := it.First()
	for n := 0; ok && n < fewMarks && it.gap == nil; ok = it.Next() {
		if err := b.Delete(it.Key(), nil); err != nil {
			return err
		}
		n++
	}
	if !ok && it.gap == nil {
		return nil
	}
	b.Reset() // there are more, or some cannot be read
	return b.DeleteRange(prefix, successor(prefix), nil)
}

// applyLazily fills a batch and applies it.
func (db *marks) applyLazily(fill func(*pebble.Batch) error) error {
	if !db.gate.enter() {
		return ErrClosed
	}
	defer db.gate.leave()
	if err := db.usable(); err != nil {
		return err
	}
	b := db.db.NewBatch()
	if err := fill(b); err != nil {
		b.Close()
		return fmt.Errorf("store: changing a watch: %w", err)
	}
	_, err := db.commit(b, true)
	return err
}
