package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// volume is the sum of the sizes of a source's entries, and their number. The merger
// of the counters adds up its row, which has two numbers as well.
type volume struct{ bytes, entries int64 }

func (v *volume) add(o volume) {
	v.bytes += o.bytes
	v.entries += o.entries
}

func appendVolumeKey(dst []byte, source string) []byte {
	return append(appendTable(dst, tableVolume), source...)
}

func (v volume) append(dst []byte) []byte {
	return binary.AppendVarint(binary.AppendVarint(dst, v.bytes), v.entries)
}

// merge puts the change of a source's row into the batch.
func (v volume) merge(b *pebble.Batch, s *scratch, source string) error {
	if v == (volume{}) {
		return nil
	}
	s.key = appendVolumeKey(s.key[:0], source)
	s.value = v.append(s.value[:0])
	if err := b.Merge(s.key, s.value, nil); err != nil {
		return fmt.Errorf("store: counting: %w", err)
	}
	return nil
}

// loadVolume reads how many bytes the source's entries hold. A row that counts
// another number of entries than the counter is one that cannot be trusted, because an entry
// could not be read when it was replaced: the records are counted anew.
func (db *DB) loadVolume(source string, entries int64) (int64, error) {
	stored, err := db.storedVolume(source)
	if err == nil && stored.entries == entries || err != nil && !pebble.IsCorruptionError(err) {
		return stored.bytes, err
	}
	if entries >= 1_000_000 {
		db.log.Info("counting the stored bytes of a source", "source", source, "entries", entries)
	}
	start := time.Now()
	counted, err := db.countVolume(source)
	if err != nil {
		// What can be counted is better than no start; the next one tries again.
		db.log.Error("the stored bytes of a source cannot be counted to their end", "source", source, "entries", entries, "counted", counted.entries, "error", err)
		return counted.bytes, nil
	}
	counted.entries = entries // a record that cannot be read is an entry too
	db.log.Info("the stored bytes of a source were counted anew", "source", source, "entries", entries, "bytes", counted.bytes, "took", time.Since(start))
	if db.readOnly {
		return counted.bytes, nil
	}
	// A value, not an operand: what is below it does not count any more.
	return counted.bytes, db.write(appendVolumeKey(nil, source), counted.append(nil), true)
}

func (db *DB) storedVolume(source string) (volume, error) {
	value, closer, err := db.db.Get(appendVolumeKey(nil, source))
	if errors.Is(err, pebble.ErrNotFound) {
		return volume{}, nil
	}
	if pebble.IsCorruptionError(err) {
		return volume{entries: -1}, nil // it is counted anew
	}
	if err != nil {
		return volume{}, fmt.Errorf("store: reading the stored bytes of source %q: %w", source, err)
	}
	defer closer.Close()
	v, ok := parseVolume(value)
	if !ok {
		return volume{entries: -1}, nil
	}
	return v, nil
}

func parseVolume(value []byte) (v volume, ok bool) {
	bytes, n := binary.Varint(value)
	if n <= 0 {
		return v, false
	}
	entries, m := binary.Varint(value[n:])
	return volume{bytes, entries}, m > 0 && n+m == len(value)
}

// countVolume adds up the source's records.
func (db *DB) countVolume(source string) (v volume, err error) {
	err = db.eachRecord(source, func(key string, read func() (*schedule.Entry, error)) error {
		e, err := read()
		if err != nil {
			return err
		}
		v.add(volume{bytes: e.Size(key), entries: 1})
		return nil
	})
	return v, err
}

// Bytes implements Store.
func (db *DB) Bytes(source string) (int64, error) {
	if !db.gate.enter() {
		return 0, ErrClosed
	}
	defer db.gate.leave()
	c, err := db.counter(source)
	if err != nil {
		return 0, err
	}
	return max(c.bytes.Load(), 0), nil
}

// volume checks a row of stored bytes. One that counts more entries than there
// are is counted anew by the next start.
func (v *verifier) volume(k, value []byte) error {
	source := string(k[2:])
	stored, ok := parseVolume(value)
	held := v.volumes[source]
	switch {
	case !ok:
		v.problem("stored bytes of source %q: %x is not of this format", source, value)
	case stored.entries > held.entries:
	case stored != held:
		v.problem("source %q has %d entries of %d bytes, its stored bytes say %d of %d",
			source, held.entries, held.bytes, stored.entries, stored.bytes)
	}
	return nil
}
