package adapter

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/reschedule-dev/reschedule/pkg/adapter/backup"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// errSealed ends the start of an adapter whose store takes no changes.
var errSealed = errors.New("the store was sealed")

// sealable is the store of a single adapter, which adapter seal ends.
type sealable struct {
	*store.DB
	end    func() // ends the adapter
	wanted atomic.Bool
	sealed chan error
}

// Seal ends the adapter: calls and deliveries end first, then the store is sealed. It returns once that is on
// stable storage.
func (s *sealable) Seal(ctx context.Context) error {
	if s.wanted.Swap(true) {
		return errors.New("a seal is under way")
	}
	s.end()
	select {
	case err := <-s.sealed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// finish seals the store if that was asked for. Nothing is delivered any more.
func (s *sealable) finish(log func(string, ...any)) {
	if s == nil || !s.wanted.Load() {
		return
	}
	err := s.DB.Seal()
	if err == nil {
		log("the store is sealed: it takes no change any more")
	}
	s.sealed <- err
}

// serveSealed serves back-ups of a sealed store, and nothing else, until ctx ends.
func (a *Adapter) serveSealed(ctx context.Context) (err error) {
	if a.backups, err = backup.Serve(a.disk, a.cfg.DataDir, a.cfg.Log); err == nil {
		a.cfg.Log.Warn("the store is sealed: this adapter answers no call and delivers nothing. It only serves adapter backup: restore the back-up into an empty directory", "dir", a.cfg.DataDir)
		<-ctx.Done()
	}
	return errors.Join(err, a.Stop())
}
