package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// server turns events into runs, and their outcomes into answers.
type server struct {
	options
	log     logr.Logger
	answers answers

	// Of a manager. Without a feeder every event is about the request of its own
	// object, for the only queue.
	feeder *feeder
	feedMu sync.Mutex

	mu     sync.Mutex
	queues []*queue

	stopping atomic.Bool
	logged   sync.Map // what was logged once
}

func newServer(opts []Option) *server {
	s := &server{options: options{concurrency: 1}, log: logr.Discard(), answers: answers{of: map[string]remembered{}}}
	for _, o := range opts {
		o(&s.options)
	}
	if s.replicas {
		s.answers.of = nil
	}
	return s
}

// plan is what an event leads to.
type plan struct {
	key string // of the delivery, "" if a RescheduleSource did not send it
	// time is the event's own. With another delivery of the same event it is the
	// same, also when maxInterval brings it back.
	time string
	fed  *feed
	// known are outcomes without a run.
	known    []target
	outcomes []outcome
	run      []target
	// elsewhere is what comes up under other keys.
	elsewhere []delayed
	// resync is the controller whose objects are to come up.
	resync *queue
}

// ServeHTTP answers an event when the outcome of all that it caused is known
// and, where the answer does not carry it, durable.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "events are sent with POST", http.StatusMethodNotAllowed)
		return
	}
	if s.stopping.Load() {
		answer{outcome: outcome{err: errStopping}}.write(w, "", false)
		return
	}
	e, err := readEvent(r)
	var p *plan
	if err == nil {
		p, err = s.plan(r.Context(), e)
	}
	switch {
	case errors.Is(err, errUnreadable):
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case err != nil:
		s.log.Error(err, "An event is refused, and is to come again", "type", e.typeOrNone())
		answer{outcome: outcome{err: err}}.write(w, "", false)
		return
	}
	a, ok := s.carryOut(r.Context(), p)
	if !ok {
		return // nobody listens any more
	}
	key, steer := p.key, false
	if len(a.of) > 0 && key == "" {
		key, steer = a.of[0].key, true
		s.once("RequeueAfter is lost unless a Broker hands the reply on: give NewManager a client, or send the events through a RescheduleSource")
	}
	a.write(w, key, steer)
}

func (e *event) typeOrNone() string {
	if e == nil {
		return ""
	}
	return e.typ()
}

// once logs a message once in the life of the process.
func (s *server) once(message string, about ...any) {
	if _, before := s.logged.LoadOrStore(fmt.Sprint(message, about), true); !before {
		s.log.Info(message, about...)
	}
}

// carryOut is not ok when ctx ended first.
func (s *server) carryOut(ctx context.Context, p *plan) (answer, bool) {
	if p.resync != nil {
		if err := s.resyncNow(ctx, p.resync); err != nil {
			return answer{outcome: outcome{err: err}}, true
		}
		return answer{outcome: outcome{after: cmp.Or(s.resync.Every, farAway)}}, true
	}
	if len(p.elsewhere) > 0 {
		if err := s.schedule(ctx, p.elsewhere); err != nil {
			return answer{outcome: outcome{err: err}}, true
		}
	}
	if len(p.run) > 0 {
		s.answers.forget(p.key)
	}
	runs := make([]*run, len(p.run))
	for i, t := range p.run {
		var settle func(target, outcome) outcome
		switch {
		case s.client == nil:
		case p.key == "":
			settle = s.settle
		case t.client:
			settle = s.settleFailure
		}
		runs[i] = t.queue.join(t, settle)
	}
	targets, outcomes := p.known, p.outcomes
	for i, r := range runs {
		select {
		case <-r.done:
			targets, outcomes = append(targets, p.run[i]), append(outcomes, r.outcome)
		case <-ctx.Done():
			return answer{}, false
		}
	}
	a := worst(targets, outcomes)
	if a.err == nil && p.fed != nil {
		p.fed.remember()
	}
	if p.key != "" {
		s.answers.keep(p.key, p.time, a)
	}
	return a, true
}

// plan says what is to be done about an event.
func (s *server) plan(ctx context.Context, e *event) (*plan, error) {
	c, err := readChange(e)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return s.planDue(e)
	}
	if s.feeder == nil {
		key := e.key()
		if key == "" {
			key = c.gvk.Kind + "/" + c.name.Namespace + "/" + c.name.Name
		}
		return &plan{key: e.key(), run: []target{{queue: s.queues[0], request: reconcile.Request{NamespacedName: c.name}, key: key}}}, nil
	}
	fed, err := s.feeder.read(ctx, c, e.retried())
	if err != nil {
		return nil, err
	}
	if len(fed.of) == 0 {
		s.once("Events of a kind that no controller watches are dropped", "kind", c.gvk.String())
	}
	wishes, err := s.feed(fed)
	if err != nil {
		return nil, err
	}
	p := &plan{key: e.key(), time: e.attributes["time"], fed: fed}
	if p.key == "" {
		s.beside(p, wishes)
	} else {
		s.behind(p, c, wishes)
	}
	return p, nil
}

// planDue plans what brings back requests that were run before, or that
// somebody else asked for. Predicates have no say in it.
func (s *server) planDue(e *event) (*plan, error) {
	p := &plan{key: e.key()}
	if p.resync = s.resyncOf(p.key); p.resync != nil {
		return p, nil
	}
	key := cmp.Or(p.key, e.attributes["subject"])
	var d due
	if e.typ() == dueType && len(e.data) > 0 {
		// Data that is not ours is somebody's own, and the key says it all.
		_ = json.Unmarshal(e.data, &d)
	}
	if len(d.Requests) == 0 {
		d.Requests = []due{d}
	}
	for _, d := range d.Requests {
		p.run = append(p.run, s.named(d, key)...)
	}
	if len(p.run) == 0 {
		p.run = s.ofKey(key)
	}
	if len(p.run) == 0 {
		s.once("Events of a type or key that no controller knows are dropped", "type", e.typ(), "key", key)
	}
	return p, nil
}

// feed calls the handlers, and returns what they have enqueued. One event is fed
// at a time, so that this is because of it.
func (s *server) feed(fed *feed) ([]delayed, error) {
	s.feedMu.Lock()
	defer s.feedMu.Unlock()
	queues := s.all()
	ends := make([]func() []wish, len(queues))
	for i, q := range queues {
		ends[i] = q.feed()
	}
	err := fed.call(func() bool {
		for _, q := range queues {
			if q.fed() {
				return true
			}
		}
		return false
	})
	var all []delayed
	for i, q := range queues {
		soonest := map[reconcile.Request]int{}
		for _, w := range ends[i]() {
			at, there := soonest[w.request]
			if !there {
				soonest[w.request] = len(all)
				all = append(all, delayed{q.target(w.request), w.after})
			} else if w.after < all[at].after {
				all[at].after = w.after
			}
		}
	}
	return all, err
}

func (s *server) all() []*queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*queue(nil), s.queues...)
}

// here runs a target, or knows its outcome when it is wanted later only.
func (p *plan) here(d delayed) {
	if d.after == 0 {
		p.run = append(p.run, d.target)
		return
	}
	p.known, p.outcomes = append(p.known, d.target), append(p.outcomes, outcome{after: d.after})
}

// beside plans what comes straight from an ApiServerSource or a Broker.
func (s *server) beside(p *plan, wishes []delayed) {
	for _, d := range wishes {
		if d.after > 0 && s.client != nil {
			p.elsewhere = append(p.elsewhere, d)
		} else {
			p.here(d)
		}
	}
}

// behind plans the delivery of a RescheduleSource. What it leads to beside its
// own key comes up under keys of its own, if there is a client.
//
// The event may have taken the place of an occurrence that waited under the
// key. When predicates let it pass by, or handlers map it to others, that must
// not be lost: the key's own request is answered for as it was the last time,
// or run. It is run as well when the event is the one of the last time: then the
// source wants a run, and there is nothing new that predicates could see.
func (s *server) behind(p *plan, c *change, wishes []delayed) {
	here := map[string]bool{}
	for _, d := range wishes {
		self := len(wishes) == 1 && d.queue.gvk.GroupKind() == c.gvk.GroupKind() && d.request.NamespacedName == c.name
		if s.client == nil || d.key == p.key || self {
			here[d.key] = true
			p.here(d)
		} else {
			p.elsewhere = append(p.elsewhere, d)
		}
	}
	own, ok := keyed(s.ofKey(p.key), p.key)
	last, known := s.answers.last(p.key, p.time)
	switch {
	case ok && here[own.key], !ok && len(here) > 0:
	case ok && p.fed.verb == deleted && own.queue.gvk.GroupKind() == c.gvk.GroupKind() && own.request.NamespacedName == c.name:
		p.known, p.outcomes = append(p.known, own), append(p.outcomes, outcome{gone: true})
	case known && last.after > 0:
		for _, t := range last.of {
			p.known, p.outcomes = append(p.known, t), append(p.outcomes, last.outcome)
		}
	case known:
	case ok:
		p.run = append(p.run, own)
	}
}

// named is the target that data names, if there is such a controller.
func (s *server) named(d due, key string) []target {
	if d.Name == "" {
		return nil
	}
	for _, q := range s.all() {
		if q.name == d.Controller {
			t := q.target(reconcile.Request{NamespacedName: types.NamespacedName{Namespace: d.Namespace, Name: d.Name}})
			t.client = d.Client
			if q.prefix == "" {
				t.key = key
			}
			return []target{t}
		}
	}
	return nil
}

// ofKey are the targets that a key Kind/namespace/name or
// controller/namespace/name stands for.
func (s *server) ofKey(key string) []target {
	parts := strings.Split(key, "/")
	if len(parts) != 3 || parts[0] == "" || parts[2] == "" {
		return nil
	}
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: parts[1], Name: parts[2]}}
	var ofKind, ofName []target
	for _, q := range s.all() {
		switch t := q.target(request); {
		case q.prefix == "": // a handler without a manager takes every kind
			return []target{{queue: q, request: request, key: key}}
		case q.gvk.Kind == parts[0]:
			ofKind = append(ofKind, t)
		case q.name == parts[0]:
			ofName = append(ofName, t)
		}
	}
	if len(ofKind) > 0 {
		return ofKind
	}
	return ofName
}

// stray runs what was enqueued by something else than an event. Nobody waits
// for the answer, so that only a client can keep what is wanted later.
func (s *server) stray(q *queue, w wish) {
	t := q.target(w.request)
	lost := func(err error) {
		s.log.Error(err, "A request that no event led to is lost", "key", t.key)
	}
	if w.after > 0 {
		if s.client == nil {
			lost(errors.New("it is wanted later, and there is no client"))
			return
		}
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
			defer cancel()
			if err := s.schedule(ctx, []delayed{{t, w.after}}); err != nil {
				lost(err)
			}
		}()
		return
	}
	var settle func(target, outcome) outcome
	if s.client != nil {
		settle = s.settle
	}
	r := q.join(t, settle)
	go func() {
		<-r.done
		if r.err != nil || r.after > 0 && settle == nil {
			lost(errors.Join(r.err, errors.New("nothing brings it back")))
		}
	}()
}

// maxAnswers is how many answers are remembered. One that was forgotten costs a
// run.
const maxAnswers = 10_000

// answers are the last answers by key.
type answers struct {
	mu sync.Mutex
	of map[string]remembered
}

type remembered struct {
	answer
	time  string    // of the event
	dueAt time.Time // if it is to be due again
}

// keep remembers an answer, if it is no failure.
func (a *answers) keep(key, eventTime string, is answer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, key)
	if is.err != nil || a.of == nil {
		return
	}
	for other := range a.of {
		if len(a.of) < maxAnswers {
			break
		}
		delete(a.of, other)
	}
	a.of[key] = remembered{is, eventTime, time.Now().Add(is.after)}
}

func (a *answers) forget(key string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.of, key)
}

// last is the last answer under the key, as it is now. It is not known any more
// when its time has come, nor for the event that it was the answer to.
func (a *answers) last(key, eventTime string) (answer, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r, ok := a.of[key]
	ok = ok && (eventTime == "" || eventTime != r.time)
	if ok && r.after > 0 {
		r.after = time.Until(r.dueAt)
		ok = r.after > 0
	}
	return r.answer, ok
}
