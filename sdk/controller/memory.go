package controller

import (
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// maxAnswers is how many answers are remembered. One that was forgotten costs a
	// run.
	maxAnswers = 10_000
	// maxObjects is how many bytes of objects, in JSON, are remembered. One that was
	// forgotten costs a run.
	maxObjects = 16 << 20
)

// answerMemory has the last answer to each key, for as long as it is true.
type answerMemory struct {
	mu      sync.Mutex
	byKey   map[string]rememberedAnswer // nil: nothing is remembered
	counter uint64
}

type rememberedAnswer struct {
	version uint64 // of the last event of the key
	answer
	known bool      // nothing has happened to the key since
	time  string    // of the event
	at    time.Time // of the answer

	// What a delivery scheduled under other keys, and failed after that.
	event     string // its id, which a retry has too
	scheduled []string
}

// begin returns the last answer to a key, when an event of the key begins, and the
// version under which the next answer is kept. The last answer says what waits under
// the key, as long as no other event took its place; its waits are what is left of them,
// 0 if their time has come. It is known to be everything, unless an event of the key is
// under way or failed, or this event may be the same one again.
func (m *answerMemory) begin(key, eventTime string) (last answer, known bool, version uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byKey == nil {
		return answer{}, false, 0
	}
	m.counter++
	r, ok := m.byKey[key]
	for other := range m.byKey {
		if ok || len(m.byKey) < maxAnswers {
			break
		}
		delete(m.byKey, other)
	}
	known = r.known && eventTime != "" && eventTime != r.time
	r.version, r.known = m.counter, false
	m.byKey[key] = r
	passed := time.Since(r.at)
	r.after, r.again = max(r.after-passed, 0), slices.Clone(r.again)
	for i := range r.again {
		r.again[i].after = max(r.again[i].after-passed, 0)
	}
	return r.answer, known, r.version
}

// keep remembers an answer, if no event of the key began after this version.
func (m *answerMemory) keep(key string, version uint64, eventTime string, a answer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r, ok := m.byKey[key]; ok && r.version == version {
		m.byKey[key] = rememberedAnswer{version: version, answer: a, known: true, time: eventTime, at: time.Now()}
	}
}

// unscheduled are the targets that no delivery of the event has scheduled yet.
func (m *answerMemory) unscheduled(key, event string, ds []delayed) []delayed {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.byKey[key]
	if event == "" || r.event != event {
		return ds
	}
	return slices.DeleteFunc(ds, func(d delayed) bool { return slices.Contains(r.scheduled, d.key) })
}

// schedule notes what a delivery of the event scheduled.
func (m *answerMemory) schedule(key, event string, ds []delayed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.byKey[key]
	if !ok {
		return
	}
	if r.event != event {
		r.event, r.scheduled = event, nil
	}
	for _, d := range ds {
		r.scheduled = append(r.scheduled, d.key)
	}
	m.byKey[key] = r
}

// forget drops the answer to a key that was scheduled by a call since.
func (m *answerMemory) forget(key string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.byKey, key)
}

// objectMemory has the objects that were seen last. They are the old objects of
// updates.
type objectMemory struct {
	mu    sync.Mutex
	byKey map[objectKey]rememberedObject // nil: nothing is remembered
	bytes int
}

type rememberedObject struct {
	client.Object
	bytes   int
	version string // of the event
}

type objectKey struct {
	kind
	types.NamespacedName
}

// last is the object that was seen last, nil if none was, and the version in its event.
func (m *objectMemory) last(k objectKey) (client.Object, string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.byKey[k].Object, m.byKey[k].version
}

// keep remembers the objects of an event whose runs all went well. The objects of a
// failed event are news when it comes again.
func (m *objectMemory) keep(f *feed) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byKey == nil {
		return
	}
	for _, item := range f.objects {
		k := objectKey{item.kind, item.name}
		last, ok := m.byKey[k]
		if ok && f.verb != deleted && older(item.new, last) {
			continue
		}
		m.drop(k)
		if f.verb == deleted {
			continue
		}
		for other := range m.byKey {
			if m.bytes+item.bytes <= maxObjects {
				break
			}
			m.drop(other)
		}
		m.byKey[k] = rememberedObject{item.new, item.bytes, f.version}
		m.bytes += item.bytes
	}
}

// drop forgets an object, under the lock.
func (m *objectMemory) drop(k objectKey) {
	m.bytes -= m.byKey[k].bytes
	delete(m.byKey, k)
}
