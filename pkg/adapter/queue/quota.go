package queue

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// tenant is a namespace with the sums of its sources. The bytes are of entries and of the
// marks of watched objects.
type tenant struct {
	namespace string
	sources   int // guarded by Queue.mu

	reserving sync.Mutex // makes reservations exact; a change that shrinks need not wait
	keys      atomic.Int64
	bytes     atomic.Int64
}

// join counts the source in its namespace. The caller holds Queue.mu.
func (q *Queue) join(s *Source, namespace string) {
	t, ok := q.tenants[namespace]
	if !ok {
		t = &tenant{namespace: namespace}
		q.tenants[namespace] = t
	}
	t.sources++
	t.keys.Add(s.keys.Load())
	t.bytes.Add(s.bytes.Load() + s.marks.sum())
	s.tenant = t
}

// part undoes join. The caller holds Queue.mu, and the source's gate for writing.
func (q *Queue) part(s *Source) {
	t := s.tenant
	t.keys.Add(-s.keys.Load())
	t.bytes.Add(-s.bytes.Load() - s.marks.sum())
	if t.sources--; t.sources == 0 {
		delete(q.tenants, t.namespace)
	}
}

// move counts the source in another namespace: a file of sources may give its uid to
// another name.
func (q *Queue) move(s *Source) {
	s.gate.Lock()
	defer s.gate.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	if namespace := s.Spec().Namespace; namespace != s.tenant.namespace && !s.removed.Load() {
		q.part(s)
		q.join(s, namespace)
	}
}

// hold adds keys and bytes to the sums, or subtracts them.
func (s *Source) hold(keys, bytes int64) {
	s.keys.Add(keys)
	s.bytes.Add(bytes)
	s.tenant.keys.Add(keys)
	s.tenant.bytes.Add(bytes)
}

// reservation is the keys and bytes that a call has counted before they are stored.
type reservation struct{ keys, bytes int64 }

// reserve counts the key's new entry before it is stored, so that concurrent calls
// allOrNone stay within the quotas. A change that does not grow is never refused for
// a quota. The caller must call settle or release later.
func (s *Source) reserve(k *keyState, e *schedule.Entry, settings *schedule.Spec) error {
	more := reservation{bytes: max(e.Size(k.key)-k.stored.Size(k.key)-k.reserved.bytes, 0)}
	if k.storedCount() == 0 && k.reserved.keys == 0 {
		more.keys = 1
	}
	if more == (reservation{}) {
		return s.checkSpace(0, s.tenant.bytes.Load())
	}
	t := s.tenant
	t.reserving.Lock()
	defer t.reserving.Unlock()
	freed := k.freed(more.bytes)
	if quota, detail := s.exceededQuota(more, freed, settings); quota != "" {
		s.refused[slices.Index(quotas[:], quota)].Add(1)
		return &schedule.Error{Code: schedule.CodeQuota, RetryAfter: time.Second, Detail: detail}
	}
	if err := s.checkSpace(more.bytes-freed.now, t.bytes.Load()+more.bytes-freed.all); err != nil {
		return err
	}
	s.hold(more.keys, more.bytes)
	k.reserve(more)
	return nil
}

// freed is how many bytes of marks a change frees, at most the bytes that its keys reserve: of all their
// reserved bytes, and of the bytes reserved now. It is not taken from the namespace's sum before it is stored.
type freed struct{ all, now int64 }

func (k *keyState) freed(bytes int64) freed {
	if k.call == nil {
		return freed{}
	}
	all := min(k.call.freed, k.call.reserved+bytes)
	return freed{all, all - min(k.call.freed, k.call.reserved)}
}

func (k *keyState) reserve(more reservation) {
	k.reserved.keys += more.keys
	k.reserved.bytes += more.bytes
	if k.call != nil {
		k.call.reserved += more.bytes
	}
}

// The quotas, as metrics name them.
const (
	quotaPending   = "limits.maxPending"
	quotaBytes     = "limits.maxBytes"
	ceilingPending = "max-pending"
	ceilingBytes   = "max-bytes"
	diskSpace      = "disk" // 507: the disk is full
)

var quotas = [...]string{quotaPending, quotaBytes, ceilingPending, ceilingBytes, diskSpace}

// exceededQuota returns the quota that the reservation would exceed, "" for none.
func (s *Source) exceededQuota(more reservation, freed freed, settings *schedule.Spec) (quota, detail string) {
	c, t := &settings.Ceilings, s.tenant
	switch {
	case more.keys > 0 && c.MaxPending > 0 && t.keys.Load()+more.keys > c.MaxPending:
		return ceilingPending, fmt.Sprintf("%s in config-reschedule: the sources of namespace %s have reached the number of keys that the administrator allows it, %d; replacing an existing one is still possible",
			ceilingPending, t.namespace, c.MaxPending)
	case more.keys > 0 && s.keys.Load()+more.keys > settings.MaxPending:
		return quotaPending, quotaPending + ": the source has reached its number of keys; replacing an existing one is still possible"
	case more.bytes > freed.now && c.MaxBytes > 0 && t.bytes.Load()+more.bytes-freed.all > c.MaxBytes:
		return ceilingBytes, fmt.Sprintf("%s in config-reschedule: the sources of namespace %s would store %d bytes more than the administrator allows it, %d; replacing an entry by one that is not larger is still possible",
			ceilingBytes, t.namespace, t.bytes.Load()+more.bytes-freed.all-c.MaxBytes, c.MaxBytes)
	case more.bytes > 0 && settings.MaxBytes > 0 && s.bytes.Load()+more.bytes > settings.MaxBytes:
		return quotaBytes, fmt.Sprintf("%s: the source would store %d bytes more than its %d; replacing an entry by one that is not larger is still possible",
			quotaBytes, s.bytes.Load()+more.bytes-settings.MaxBytes, settings.MaxBytes)
	}
	return "", ""
}

// unreserve releases the reservation of the key.
func (s *Source) unreserve(k *keyState) {
	s.hold(-k.reserved.keys, -k.reserved.bytes)
	k.reserve(reservation{-k.reserved.keys, -k.reserved.bytes})
}

// release releases the reservations of a call that changes nothing.
func (s *Source) release(keys []keyState) {
	for i := range keys {
		s.unreserve(&keys[i])
	}
}

// settle replaces the key's reservation by the actual change.
func (s *Source) settle(k *keyState) {
	keys := present(k.current) - k.storedCount()
	s.hold(keys-k.reserved.keys, k.current.Size(k.key)-k.stored.Size(k.key)-k.reserved.bytes)
	k.reserved = reservation{}
}

// storedCount is 1 if the store has an entry of the key, also one that cannot be read, whose
// size is not known.
func (k *keyState) storedCount() int64 {
	if k.corrupt {
		return 1
	}
	return present(k.stored)
}

func present(e *schedule.Entry) int64 {
	if e == nil {
		return 0
	}
	return 1
}

// count counts an entry that was made, replaced or removed.
func (s *Source) count(c store.Change) {
	keys := present(c.New) - present(c.Old)
	if c.Corrupt {
		keys--
	}
	if schedule.IsDeadLetterKey(c.Key) {
		s.deadLetters.Add(keys)
		if schedule.IsKeptLetterKey(c.Key) {
			s.kept.count.Add(keys)
		}
		keys = 0
	}
	s.hold(keys, c.New.Size(c.Key)-c.Old.Size(c.Key))
}

// checkSpace refuses a change for which the disk has no space, and counts that.
func (s *Source) checkSpace(growth, held int64) error {
	err := s.q.checkSpace(growth, held)
	if err != nil {
		s.refused[slices.Index(quotas[:], diskSpace)].Add(1)
	}
	return err
}

// checkSpace refuses growth for which the disk has no space.
func (q *Queue) checkSpace(growth, held int64) error {
	err := q.store.Space(growth, held)
	if errors.Is(err, store.ErrFull) {
		return &schedule.Error{Code: schedule.CodeStorageFull, RetryAfter: 10 * time.Second,
			Detail: "the adapter's disk is full: nothing was changed; free some space or delete schedules, then try again"}
	}
	return err
}
