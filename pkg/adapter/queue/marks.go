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

// marks are the bytes of the marks of a source's watched objects, by watch. They count in
// max-bytes of the namespace and for the disk, and not in limits.maxBytes of the source.
type marks struct {
	mu  sync.Mutex
	by  map[uint64]int64
	all int64
}

func (m *marks) sum() int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.all
}

// add adds bytes to a watch and returns how many it added: a watch never has less than 0,
// also when a mark is removed that was not counted because it cannot be read.
func (m *marks) add(watch uint64, bytes int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	before := m.by[watch]
	return m.put(watch, max(0, before+bytes))
}

// set replaces the bytes of a watch, and returns how many it added.
func (m *marks) set(watch uint64, bytes int64) int64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.put(watch, bytes)
}

func (m *marks) put(watch uint64, bytes int64) (more int64) {
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

// MarkedBytes is how many bytes the marks of the source's watched objects have, as max-bytes
// counts them.
func (s *Source) MarkedBytes() int64 { return s.marks.sum() }

// readMarks reads how many bytes the marks of each watch have. A watch whose marks must be
// counted anew has none until then, and no mark is added before.
func (s *Source) readMarks() error {
	states, err := s.q.store.WatchStates(s.uid)
	if err != nil {
		return err
	}
	for i := range states {
		if c, ok := states[i].MarkCount(); ok {
			s.marks.set(c.Watch, c.Bytes)
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

// reserveMarks counts the growth of marks before they are stored, so that concurrent calls
// stay within the ceiling, or refuses it. The caller must call settleMarks later.
func (s *Source) reserveMarks(changes []store.MarkChange) error {
	more := growth(changes)
	if more <= 0 {
		if slices.ContainsFunc(changes, func(c store.MarkChange) bool { return c.State == nil && !c.Remove }) {
			return s.checkSpace(0, 0)
		}
		return nil
	}
	t, c := s.tenant, &s.Spec().Ceilings
	t.reserving.Lock()
	defer t.reserving.Unlock()
	if most := maxBytesForMarks(c.MaxBytes); c.MaxBytes > 0 && t.bytes.Load()+more > most {
		s.refused[slices.Index(quotas[:], ceilingBytes)].Add(1)
		return &schedule.Error{Code: schedule.CodeQuota, Field: fieldWatch, RetryAfter: time.Second, Detail: fmt.Sprintf(
			"%s in config-reschedule: what is remembered of watched objects may fill the bytes of namespace %s up to %d: a 32nd of the %d that the administrator allows it is for keys; watch fewer objects, or let them map to fewer or shorter keys",
			ceilingBytes, t.namespace, most, c.MaxBytes)}
	}
	if err := s.checkSpace(more, t.bytes.Load()+more); err != nil {
		return err
	}
	t.bytes.Add(more)
	return nil
}

// settleMarks replaces the reservation by the actual change, or releases it when nothing
// was stored.
func (s *Source) settleMarks(changes []store.MarkChange, stored bool) {
	actual := int64(0)
	if stored {
		for i := range changes {
			if n := changes[i].Growth(); n != 0 {
				actual += s.marks.add(changes[i].Watch, n)
			}
		}
	}
	s.tenant.bytes.Add(actual - max(growth(changes), 0))
}

// setMarks records how many bytes the marks of a watch have.
func (s *Source) setMarks(watch uint64, bytes int64) {
	s.tenant.bytes.Add(s.marks.set(watch, bytes))
}
