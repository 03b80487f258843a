package store

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// sizeLog refuses batches that are too large. It takes one when it is let.
type sizeLog struct {
	sizes []int
	let   chan struct{}
}

func (l *sizeLog) Append(batch []byte) error {
	<-l.let
	l.sizes = append(l.sizes, len(batch)>>10)
	if len(batch) > 2<<20 {
		return ErrTooLarge
	}
	return nil
}
func (l *sizeLog) Valid() bool { return true }

// MostDisks implements store.Log.
func (*sizeLog) MostDisks(func(Disk) bool) bool { return true }

// Full implements store.Log.
func (*sizeLog) Full() bool { return false }

// A large batch was merged with the batches that waited before it, so that innocent calls shared its refusal.
func TestMerge_LargeBatchStaysAlone(t *testing.T) {
	t.Parallel()
	db, err := pebble.Open("", &pebble.Options{FS: vfs.NewMem()})
	must(t, err)
	defer db.Close()
	synctest.Test(t, func(t *testing.T) {
		log := &sizeLog{let: make(chan struct{})}
		g := &grouped{log: log, waiting: make(chan *submission), stop: make(chan struct{})}
		g.work.Go(g.run)
		results := make([]error, 5)
		for i, kilobytes := range []int{1, 100, 100, 3000, 10} {
			go func() {
				b := db.NewBatch()
				results[i] = errors.Join(b.Set([]byte("k"), make([]byte, kilobytes<<10), nil), g.commit(b))
			}()
			synctest.Wait()
		}
		close(log.let)
		synctest.Wait()
		if want := []int{1, 200, 3000, 10}; !slices.Equal(log.sizes, want) {
			t.Errorf("%v, want %v", log.sizes, want)
		}
		for i, err := range results {
			if refused := errors.Is(err, ErrTooLarge); refused != (i == 3) || err != nil && !refused {
				t.Errorf("call %d: %v", i, err)
			}
		}
		close(g.stop)
		g.work.Wait()
	})
}
