package queue

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Marks are what is remembered of the objects that a source watches. All methods are safe
// for concurrent use. Their bytes count in max-bytes of the namespace and for the disk, and
// not in limits.maxBytes of the source.
type Marks struct {
	s *Source

	mu  sync.Mutex       // guards by and all; no other lock is taken under it
	by  map[uint64]int64 // bytes, by watch
	all int64

	noted bool // at the start there was a note: see follower
}

// Report applies the items as [Source.ScheduleTogether] does, and stores the marks of
// watched objects in the same durable change: when an item is refused, nothing is
// stored. A change may carry the state of the watch instead of a mark. Marks without
// items are stored lazily. The marks are of this source, whatever they name. Their
// growth, by [store.MarkChange.Growth], is refused when the namespace would exceed its
// max-bytes; what they free, the items may use. All items need an event: one that
// inherits a large event may be applied before the others, and stays when a later one
// is refused.
func (m *Marks) Report(items []Item, marks []store.MarkChange) error {
	s, own := m.s, make([]store.MarkChange, len(marks))
	for i, c := range marks {
		if c.State == nil && c.Mark.Object == "" {
			return schedule.Invalid("object", "is empty: a mark needs the name of its object")
		}
		own[i], own[i].Source = c, s.uid
	}
	if len(items) > 0 {
		a := admission{Source: s, together: true, marks: own}
		return a.admit(items, make([]Scheduled, len(items)))
	}
	if len(marks) == 0 {
		return nil
	}
	if err := s.enter(); err != nil {
		return err
	}
	defer s.leave()
	if err := m.reserve(own); err != nil {
		return err
	}
	_, err := s.q.store.ApplyMarked(true, own)
	m.settle(own, err == nil)
	if err != nil {
		return s.q.fatal(err)
	}
	return nil
}

// List is [store.Store.Marks] of this source.
func (m *Marks) List(watch uint64, after string, limit int) (_ []store.Mark, more bool, _ error) {
	if err := m.s.enter(); err != nil {
		return nil, false, err
	}
	defer m.s.leave()
	marks, more, err := m.s.q.store.Marks(m.s.uid, watch, after, limit)
	return marks, more, translated(err)
}

// Get is [store.Store.Mark] of this source.
func (m *Marks) Get(watch uint64, object string) (store.Mark, bool, error) {
	if err := m.s.enter(); err != nil {
		return store.Mark{}, false, err
	}
	defer m.s.leave()
	mark, ok, err := m.s.q.store.Mark(m.s.uid, watch, object)
	return mark, ok, translated(err)
}

// Count is [store.Store.CountMarks] of this source.
func (m *Marks) Count(watch uint64) (n, bytes int64, err error) {
	if err := m.s.enter(); err != nil {
		return 0, 0, err
	}
	defer m.s.leave()
	n, bytes, err = m.s.q.store.CountMarks(m.s.uid, watch)
	return n, bytes, translated(err)
}

// States is [store.Store.WatchStates] of this source.
func (m *Marks) States() ([]store.WatchState, error) {
	if err := m.s.enter(); err != nil {
		return nil, err
	}
	defer m.s.leave()
	states, err := m.s.q.store.WatchStates(m.s.uid)
	return slices.DeleteFunc(states, isNote), translated(err)
}

// SetState is [store.Store.SetWatchState] of this source. From a [store.MarkCount] on,
// the marks of its watch count as it says.
func (m *Marks) SetState(state store.WatchState) error {
	if err := m.s.enter(); err != nil {
		return err
	}
	defer m.s.leave()
	if err := m.s.q.store.SetWatchState(m.s.uid, state); err != nil {
		return translated(err)
	}
	if c, ok := state.MarkCount(); ok {
		m.s.usage.tenant.bytes.Add(m.set(c.Watch, c.Bytes))
	}
	return nil
}

// Remove is [store.Store.RemoveWatch] of this source.
func (m *Marks) Remove(watch uint64) error {
	if err := m.s.enter(); err != nil {
		return err
	}
	defer m.s.leave()
	if err := m.s.q.store.RemoveWatch(m.s.uid, watch); err != nil {
		return translated(err)
	}
	m.s.usage.tenant.bytes.Add(m.set(watch, 0))
	return nil
}

// Bytes is how many bytes the marks have, as max-bytes counts them.
func (m *Marks) Bytes() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all
}

// add adds bytes to a watch and returns how many it added: a watch never has less than 0,
// also when a mark is removed that was not counted because it cannot be read.
func (m *Marks) add(watch uint64, bytes int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.by[watch]
	return m.put(watch, max(0, before+bytes))
}

// set replaces the bytes of a watch, and returns how many it added.
func (m *Marks) set(watch uint64, bytes int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put(watch, bytes)
}

// put is set under the lock.
func (m *Marks) put(watch uint64, bytes int64) (more int64) {
	more = bytes - m.by[watch]
	m.all += more
	if bytes == 0 {
		delete(m.by, watch)
		return more
	}
	if m.by == nil {
		m.by = map[uint64]int64{}
	}
	m.by[watch] = bytes
	return more
}

// read reads how many bytes the marks of each watch have. A watch whose marks must be
// counted anew has none until then, and no mark is added before.
func (m *Marks) read() error {
	states, err := m.s.q.store.WatchStates(m.s.uid)
	if err != nil {
		return err
	}
	m.noted = slices.ContainsFunc(states, isNote)
	for i := range states {
		if c, ok := states[i].MarkCount(); ok {
			m.set(c.Watch, c.Bytes)
		}
	}
	return nil
}

// maxBytesForMarks is how many of the namespace's bytes there may be when marks grow. The rest
// is for keys: deliveries free it, and the end of an object, which frees its mark, has to
// schedule a key first.
func maxBytesForMarks(ceiling int64) int64 { return ceiling - ceiling/32 }

// fieldWatch is what a refusal for marks blames.
const fieldWatch = "spec.watch"

// MarksRefused reports that a report was refused because of its marks, which no delivery
// frees bytes for.
func MarksRefused(err error) bool {
	var refused *schedule.Error
	return errors.As(err, &refused) && refused.Code == schedule.CodeQuota && refused.Field == fieldWatch
}

// growth is how many bytes more the marks have after the changes.
func growth(changes []store.MarkChange) (bytes int64) {
	for i := range changes {
		bytes += changes[i].Growth()
	}
	return bytes
}

// reserve counts the growth of marks before they are stored, so that concurrent calls
// stay within the ceiling, or refuses it. The caller must call settle later.
func (m *Marks) reserve(changes []store.MarkChange) error {
	more, usage := growth(changes), &m.s.usage
	if more <= 0 {
		if slices.ContainsFunc(changes, func(c store.MarkChange) bool { return c.State == nil && !c.Remove }) {
			return usage.checkSpace(0, 0)
		}
		return nil
	}
	t, c := usage.tenant, &m.s.Spec().Ceilings
	t.reserving.Lock()
	defer t.reserving.Unlock()
	if most := maxBytesForMarks(c.MaxBytes); c.MaxBytes > 0 && t.bytes.Load()+more > most {
		usage.refused[slices.Index(quotas[:], ceilingBytes)].Add(1)
		return &schedule.Error{Code: schedule.CodeQuota, Field: fieldWatch, RetryAfter: time.Second, Detail: fmt.Sprintf(
			"%s in config-reschedule: what is remembered of watched objects may fill the bytes of namespace %s up to %d: a 32nd of the %d that the administrator allows it is for keys; watch fewer objects, or let them map to fewer or shorter keys",
			ceilingBytes, t.namespace, most, c.MaxBytes)}
	}
	if err := usage.checkSpace(more, t.bytes.Load()+more); err != nil {
		return err
	}
	t.bytes.Add(more)
	return nil
}

// settle replaces the reservation by the actual change, or releases it when nothing
// was stored.
func (m *Marks) settle(changes []store.MarkChange, stored bool) {
	actual := int64(0)
	if stored {
		for i := range changes {
			if n := changes[i].Growth(); n != 0 {
				actual += m.add(changes[i].Watch, n)
			}
		}
	}
	m.s.usage.tenant.bytes.Add(actual - max(growth(changes), 0))
}
