package controller

import (
	"sync"
	"time"
)

// maxAnswers is how many answers are remembered. One that was forgotten costs a
// run.
const maxAnswers = 10_000

// answers are the last answers by key, as long as they are true.
type answers struct {
	mu    sync.Mutex
	of    map[string]remembered // nil: nothing is remembered
	pages uint64
}

type remembered struct {
	page
	answer
	known bool      // nothing has happened since
	time  string    // of the event
	dueAt time.Time // if it is to be due again
}

// page is where the answer to an event is kept.
type page struct {
	key string
	n   uint64
}

// open turns the page of a key. The last answer says what waits under the key,
// as long as nothing took its place; its wait is what is left of it, 0 if its time
// has come. It is known what came of everything before, unless an event is under
// way or failed, or this one may be the one that was the last.
func (a *answers) open(key, eventTime string) (last answer, known bool, next page) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of == nil {
		return answer{}, false, page{}
	}
	a.pages++
	next = page{key, a.pages}
	r, ok := a.of[key]
	for other := range a.of {
		if ok || len(a.of) < maxAnswers {
			break
		}
		delete(a.of, other)
	}
	known = r.known && eventTime != "" && eventTime != r.time
	r.page, r.known = next, false
	a.of[key] = r
	if r.after > 0 {
		r.after = max(time.Until(r.dueAt), 0)
	}
	return r.answer, known, next
}

// keep remembers an answer, if nothing has come up for the key since its page
// was opened.
func (a *answers) keep(p page, eventTime string, is answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r, ok := a.of[p.key]; ok && r.page == p {
		a.of[p.key] = remembered{p, is, true, eventTime, time.Now().Add(is.after)}
	}
}

// forget says that the key waits for something else than an answer has said.
func (a *answers) forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, key)
}
