package store

import (
	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
)

// recordFilter is Pebble's Bloom filter, ten bits a key, over records only: no
// other row is looked up by its whole key, and there are as many of them again.
type recordFilter struct{ bloom.FilterPolicy }

var filterPolicy = recordFilter{bloom.FilterPolicy(10)}

// Name is stored with each table.
func (recordFilter) Name() string { return "reschedule.records.bloom10" }

// MayContain implements pebble.FilterPolicy.
func (f recordFilter) MayContain(t pebble.FilterType, filter, key []byte) bool {
	return len(key) == 0 || key[0] != tableRecord || f.FilterPolicy.MayContain(t, filter, key)
}

// NewWriter implements pebble.FilterPolicy.
func (f recordFilter) NewWriter(t pebble.FilterType) pebble.FilterWriter {
	return recordFilterWriter{f.FilterPolicy.NewWriter(t)}
}

type recordFilterWriter struct{ pebble.FilterWriter }

func (w recordFilterWriter) AddKey(key []byte) {
	if len(key) > 0 && key[0] == tableRecord {
		w.FilterWriter.AddKey(key)
	}
}
