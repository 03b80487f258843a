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

// usage is what a source stores, as quotas count it. Everything is atomic but tenant,
// which changes under the source's gate and Queue.mu, held both, and is read under either.
type usage struct {
	store  store.Store
	tenant *tenant

	keys    atomic.Int64              // entries of keys
	bytes   atomic.Int64              // of all entries, dead letters too
	letters atomic.Int64              // dead letters of all kinds
	kept    atomic.Int64              // dead letters that are kept
	refused [len(quotas)]atomic.Int64 // for each quota, since the start
}

// read reads what is stored of the source, except for how many dead letters are kept.
func (u *usage) read(uid string) error {
	keys, letters, err := u.store.Count(uid)
	if err != nil {
		return err
	}
	bytes, err := u.store.Bytes(uid)
	u.keys.Store(keys)
	u.letters.Store(letters)
	u.bytes.Store(bytes)
	return err
}

// join counts the source in its namespace. The caller holds Queue.mu.
func (q *Queue) join(s *Source, namespace string) {
	t, ok := q.tenants[namespace]
	if !ok {
		t = &tenant{namespace: namespace}
		q.tenants[namespace] = t
	}
	t.sources++
	t.keys.Add(s.usage.keys.Load())
	t.bytes.Add(s.usage.bytes.Load() + s.Marks.Bytes())
	s.usage.tenant = t
}

// part undoes join. The caller holds Queue.mu, and the source's gate for writing.
func (q *Queue) part(s *Source) {
	t := s.usage.tenant
	t.keys.Add(-s.usage.keys.Load())
	t.bytes.Add(-s.usage.bytes.Load() - s.Marks.Bytes())
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
	if namespace := s.Spec().Namespace; namespace != s.usage.tenant.namespace && !s.removed.Load() {
		q.part(s)
		q.join(s, namespace)
	}
}

// hold adds keys and bytes to the sums, or subtracts them.
func (u *usage) hold(keys, bytes int64) {
	u.keys.Add(keys)
	u.bytes.Add(bytes)
	u.tenant.keys.Add(keys)
	u.tenant.bytes.Add(bytes)
}

// reservation is the keys and bytes that a call has counted before they are stored.
type reservation struct{ keys, bytes int64 }

// reserve counts the key's new entry before it is stored, so that concurrent calls
// together stay within the quotas. A change that does not grow is never refused for
// a quota. The caller must call settle or release later.
func (u *usage) reserve(k *keyState, e *schedule.Entry, settings *schedule.Spec) error {
	more := reservation{bytes: max(e.Size(k.key)-k.stored.Size(k.key)-k.reserved.bytes, 0)}
	if k.storedCount() == 0 && k.reserved.keys == 0 {
		more.keys = 1
	}
	t := u.tenant
	if more == (reservation{}) {
		return u.checkSpace(0, t.bytes.Load())
	}
	t.reserving.Lock()
	defer t.reserving.Unlock()
	before, after := k.swap.grown(k.swap.reserved), k.swap.grown(k.swap.reserved+more.bytes)
	grown, sum := after-before, t.bytes.Load()-k.swap.reserved+after
	if quota, detail := u.exceeded(more, grown, sum, settings); quota != "" {
		u.refused[slices.Index(quotas[:], quota)].Add(1)
		return &schedule.Error{Code: schedule.CodeQuota, RetryAfter: time.Second, Detail: detail}
	}
	if err := u.checkSpace(grown, sum); err != nil {
		return err
	}
	u.hold(more.keys, more.bytes)
	k.reserve(more)
	return nil
}

func (k *keyState) reserve(more reservation) {
	k.reserved.keys += more.keys
	k.reserved.bytes += more.bytes
	k.swap.reserved += more.bytes
}

// swap is the bytes of marks that a call frees, which its items may use, and the bytes
// that its items have reserved. Both are in the namespace's sum until the call is stored.
type swap struct{ freed, reserved int64 }

// grown is how many bytes more the namespace has after the call when its items reserve so many.
func (w *swap) grown(reserved int64) int64 { return max(0, reserved-w.freed) }

// The quotas, as metrics name them.
const (
	quotaPending   = "limits.maxPending"
	quotaBytes     = "limits.maxBytes"
	ceilingPending = "max-pending"
	ceilingBytes   = "max-bytes"
	diskSpace      = "disk" // 507: the disk is full
)

var quotas = [...]string{quotaPending, quotaBytes, ceilingPending, ceilingBytes, diskSpace}

// exceeded returns the quota that the reservation would exceed, "" for none: the
// namespace grows by so many bytes, and has that sum then.
func (u *usage) exceeded(more reservation, grown, sum int64, settings *schedule.Spec) (quota, detail string) {
	c, t := &settings.Ceilings, u.tenant
	switch {
	case more.keys > 0 && c.MaxPending > 0 && t.keys.Load()+more.keys > c.MaxPending:
		return ceilingPending, fmt.Sprintf("%s in config-reschedule: the sources of namespace %s have reached the number of keys that the administrator allows it, %d; replacing an existing one is still possible",
			ceilingPending, t.namespace, c.MaxPending)
	case more.keys > 0 && u.keys.Load()+more.keys > settings.MaxPending:
		return quotaPending, quotaPending + ": the source has reached its number of keys; replacing an existing one is still possible"
	case grown > 0 && c.MaxBytes > 0 && sum > c.MaxBytes:
		return ceilingBytes, fmt.Sprintf("%s in config-reschedule: the sources of namespace %s would store %d bytes more than the administrator allows it, %d; replacing an entry by one that is not larger is still possible",
			ceilingBytes, t.namespace, sum-c.MaxBytes, c.MaxBytes)
	case more.bytes > 0 && settings.MaxBytes > 0 && u.bytes.Load()+more.bytes > settings.MaxBytes:
		return quotaBytes, fmt.Sprintf("%s: the source would store %d bytes more than its %d; replacing an entry by one that is not larger is still possible",
			quotaBytes, u.bytes.Load()+more.bytes-settings.MaxBytes, settings.MaxBytes)
	}
	return "", ""
}

// noSpaceFor reports that there is no space for so many bytes more: in the quotas, or on
// the disk. An outcome that grows is cut short then.
func (u *usage) noSpaceFor(growth int64, settings *schedule.Spec) bool {
	if growth <= 0 {
		return false
	}
	sum := u.tenant.bytes.Load() + growth
	quota, _ := u.exceeded(reservation{bytes: growth}, growth, sum, settings)
	return quota != "" || space(u.store, growth, sum) != nil
}

// unreserve releases the reservation of the key.
func (u *usage) unreserve(k *keyState) {
	u.hold(-k.reserved.keys, -k.reserved.bytes)
	k.reserve(reservation{-k.reserved.keys, -k.reserved.bytes})
}

// release releases the reservations of a call that changes nothing.
func (u *usage) release(keys []keyState) {
	for i := range keys {
		u.unreserve(&keys[i])
	}
}

// settle replaces the key's reservation by the actual change.
func (u *usage) settle(k *keyState) {
	keys := present(k.current) - k.storedCount()
	u.hold(keys-k.reserved.keys, k.current.Size(k.key)-k.stored.Size(k.key)-k.reserved.bytes)
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
func (u *usage) count(c store.Change) {
	keys := present(c.New) - present(c.Old)
	if c.Corrupt {
		keys--
	}
	if schedule.IsDeadLetterKey(c.Key) {
		u.letters.Add(keys)
		if schedule.IsKeptLetterKey(c.Key) {
			u.kept.Add(keys)
		}
		keys = 0
	}
	u.hold(keys, c.New.Size(c.Key)-c.Old.Size(c.Key))
}

// checkSpace refuses a change for which the disk has no space, and counts that.
func (u *usage) checkSpace(growth, held int64) error {
	err := space(u.store, growth, held)
	if err != nil {
		u.refused[slices.Index(quotas[:], diskSpace)].Add(1)
	}
	return err
}

// space refuses growth for which the disk has no space.
func space(s store.Store, growth, held int64) error {
	err := s.Space(growth, held)
	if errors.Is(err, store.ErrFull) {
		return &schedule.Error{Code: schedule.CodeStorageFull, RetryAfter: 10 * time.Second,
			Detail: "the adapter's disk is full: nothing was changed; free some space or delete schedules, then try again"}
	}
	return err
}
