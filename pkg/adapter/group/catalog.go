package group

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// catalog is the set of sources. Each member has all of them; a tenure takes them when it begins, and each change from
// then on.
type catalog struct {
	log   *slog.Logger
	owner *owner

	// setting is held while a tenure gets the settings of a source, and while a source is taken out of wanted: of two
	// settings the newest stays, and a removed source does not come back. It is taken before mu, and waits for the disk.
	setting sync.Mutex
	mu      sync.Mutex                // guards wanted, for a moment
	wanted  map[string]*schedule.Spec // by uid
}

// sources are the sources that are in force.
func (c *catalog) sources() []*schedule.Spec {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.wanted))
}

// SetSource puts a source in force.
func (c *catalog) SetSource(s *schedule.Spec) error {
	c.mu.Lock()
	c.wanted[s.UID] = s
	c.mu.Unlock()
	t := c.owner.current() // a tenure that begins meanwhile takes the source from wanted
	if t == nil {
		return nil
	}
	return ignoreTenureEnd(c.setIn(t, s.UID))
}

// setIn gives the tenure the source's newest settings.
func (c *catalog) setIn(t *tenure, uid string) error {
	c.setting.Lock()
	defer c.setting.Unlock()
	c.mu.Lock()
	s := c.wanted[uid]
	c.mu.Unlock()
	if s == nil {
		return nil // it was removed
	}
	return t.set(s)
}

// RemoveSource removes a source. Only the owner purges; the others drop the source.
func (c *catalog) RemoveSource(uid string) error {
	c.setting.Lock()
	c.mu.Lock()
	delete(c.wanted, uid)
	c.mu.Unlock()
	c.setting.Unlock()
	t := c.owner.current()
	if t == nil {
		c.log.Info("source removed; its schedules are purged by the owner", "uid", uid)
		return nil
	}
	return ignoreTenureEnd(t.remove(uid))
}

// ignoreTenureEnd leaves out an error that the end of a tenure explains: the next one sets all sources.
func ignoreTenureEnd(err error) error {
	var refused *schedule.Error
	if errors.Is(err, store.ErrNotOwner) || errors.Is(err, store.ErrUnknown) || errors.Is(err, store.ErrClosed) || errors.As(err, &refused) {
		return nil
	}
	return err
}
