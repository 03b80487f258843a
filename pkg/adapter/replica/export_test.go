package replica

import (
	"context"
	"sync"
)

// Joining is a log in which the first part of a batch goes on with the parts of a batch that was left before it.
type Joining struct {
	Log
	mu   sync.Mutex
	left map[uint64]bool // by number: a batch goes on behind the entry
}

// Read implements Log.
func (l *Joining) Read(ctx context.Context, after uint64) (Page, error) {
	p, err := l.Log.Read(ctx, after)
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range p.Entries {
		e := &p.Entries[i]
		kind, part, err := e.open()
		if err != nil {
			return p, err
		}
		if l.left == nil {
			l.left = map[uint64]bool{}
		}
		if l.left[e.Seq] = kind&lastPart == 0; l.left[e.Seq-1] {
			e.Data = seal(e.Seq, kind&^firstPart, part)
		}
	}
	return p, err
}

// Batches returns the batches of all entries up to the last one, by their last parts.
func Batches(entries map[uint64]string, last uint64) (map[uint64]string, error) {
	all := map[uint64]string{}
	var parts assembly
	for seq := uint64(1); seq <= last; seq++ {
		batch, whole, err := parts.add(&Entry{seq, []byte(entries[seq])})
		if err != nil {
			return nil, err
		}
		if whole {
			all[seq] = string(batch)
		}
	}
	return all, nil
}
