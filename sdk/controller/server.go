package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// readTimeout is how long an event may take to come in.
	readTimeout = time.Minute
	// maxOnce is how many different messages are logged once.
	maxOnce = 1000
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

	crowd    crowd
	stopping atomic.Bool
	logged   sync.Map // what was logged once
	lines    atomic.Int64
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
	// last is the answer before, known whether it says all, and page where this one
	// is kept.
	last  answer
	known bool
	page  page

	fed *feed
	run []target
	// decided are targets whose outcome needs no run.
	decided  []target
	outcomes []outcome
	// elsewhere is what comes up under other keys.
	elsewhere []delayed
	// outlives is what the key stands for when its event tells of the deletion of
	// something else.
	outlives []target
	// resync is the controller whose objects are to come up, from there on.
	resync *queue
	from   due
}

// ServeHTTP answers an event when the outcome of all that it caused is known
// and, where the answer does not carry it, durable.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPost:
	case http.MethodGet, http.MethodHead:
		return // for probes: who answers is ready
	default:
		w.Header().Set("Allow", "GET, HEAD, POST")
		http.Error(w, "events are sent with POST", http.StatusMethodNotAllowed)
		return
	}
	if s.stopping.Load() {
		answer{outcome: outcome{err: errStopping}}.write(w, "")
		return
	}
	if s.verify != nil {
		if err := s.verify(r); err != nil {
			s.turnAway(w, err)
			return
		}
	}
	leave, err := s.crowd.enter(r)
	if err != nil {
		retryLater(w, err, time.Second)
		return
	}
	defer leave()
	// The time is for the body only: one that ends later would end a run.
	reading := http.NewResponseController(w)
	_ = reading.SetReadDeadline(time.Now().Add(readTimeout)) // a recorder has none
	e, err := readEvent(r)
	_ = reading.SetReadDeadline(time.Time{})
	var p *plan
	if err == nil {
		p, err = s.plan(r.Context(), e)
	}
	var a answer
	if err == nil {
		a, err = s.carryOut(r.Context(), p)
	}
	switch {
	case errors.Is(err, errUnreadable), errors.Is(err, errUnknownKey):
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	case errors.Is(err, errCrowded):
		retryLater(w, errCrowded, time.Second)
		return
	case err != nil:
		s.log.Error(err, "An event is refused, and is to come again", "type", r.Header.Get("Ce-Type"), "key", r.Header.Get("Ce-Reschedulekey"))
		a = answer{outcome: outcome{err: err}}
	}
	if a.err != nil {
		if s.verify == nil {
			a.err = errUntold
		}
		a.write(w, "")
		return
	}
	key := p.key
	if len(a.of) > 0 && key == "" {
		key = a.of[0].key
		s.once("RequeueAfter is lost unless a Broker hands the reply on: give NewManager a client, or send the events through a RescheduleSource")
	}
	a.write(w, key)
}

// once logs a message once in the life of the process. There is an end to it:
// what it is about comes from outside.
func (s *server) once(message string, about ...any) {
	if s.lines.Load() >= maxOnce {
		return
	}
	if _, before := s.logged.LoadOrStore(fmt.Sprint(message, about), true); !before {
		s.lines.Add(1)
		s.log.Info(message, about...)
	}
}

// carryOut does what is planned. That a run failed is in the answer.
func (s *server) carryOut(ctx context.Context, p *plan) (answer, error) {
	if p.resync != nil {
		return s.resyncNow(ctx, p.resync, p.from)
	}
	if len(p.elsewhere) > 0 {
		if err := s.schedule(ctx, p.elsewhere); err != nil {
			return answer{}, err
		}
	}
	if p.key == "" && s.client != nil {
		for i := range p.run {
			if err := s.look(ctx, &p.run[i]); err != nil {
				return answer{}, err
			}
		}
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
	targets, outcomes := p.decided, p.outcomes
	for i, r := range runs {
		select {
		case <-r.done:
			targets, outcomes = append(targets, p.run[i]), append(outcomes, r.outcome)
		case <-ctx.Done():
			if s.replicas {
				for i, r := range runs {
					p.run[i].queue.leave(r)
				}
			}
			// Whoever listens is not told that it is done.
			return answer{}, fmt.Errorf("the request ended before the run of %s: %w", p.run[i].key, context.Cause(ctx))
		}
	}
	a := worst(targets, outcomes)
	if a.err == nil {
		s.succeeded(p, &a)
	}
	return a, nil
}

// succeeded remembers what has come of a plan, and says what else is to come.
func (s *server) succeeded(p *plan, a *answer) {
	if p.fed != nil {
		p.fed.remember()
	}
	s.answers.keep(p.page, p.time, *a)
	if a.after == 0 && !a.gone && len(p.outlives) > 0 {
		// To the source the event is the end of the key, for maxInterval too. It is to
		// have another one.
		a.after, a.of = time.Millisecond, p.outlives
	}
}

// plan says what is to be done about an event.
func (s *server) plan(ctx context.Context, e event) (*plan, error) {
	c, err := readChange(e)
	if err != nil {
		return nil, err
	}
	p := &plan{key: e.key(), time: e.Attributes["time"]}
	if p.key != "" {
		p.last, p.known, p.page = s.answers.open(p.key, p.time)
	}
	switch {
	case c == nil:
		err = s.planDue(p, e)
	case s.feeder == nil:
		key := cmp.Or(p.key, c.gvk.Kind+"/"+c.name.Namespace+"/"+c.name.Name)
		p.run = []target{{queue: s.queues[0], request: reconcile.Request{NamespacedName: c.name}, key: key}}
	default:
		err = s.planChange(ctx, p, c, e.retried())
	}
	return p, err
}

// planDue plans what brings back requests that were run before, or that
// somebody else asked for. Predicates have no say in it, the namespaces of the
// manager's cache do.
func (s *server) planDue(p *plan, e event) error {
	key := cmp.Or(p.key, e.Attributes["subject"])
	var d due
	if e.typ() == dueType && len(e.Data) > 0 {
		// Data that is not ours is somebody's own, and the key says it all.
		_ = json.Unmarshal(e.Data, &d)
	}
	if is, err := s.planResync(p, d); is {
		return err
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
		return s.unknownKey(key)
	}
	return nil
}

// errUnknownKey marks a key that is due and of which nobody can say what it
// stands for. Who has scheduled it made a mistake and is to hear of it.
var errUnknownKey = errors.New("this operator does not know the key")

func (s *server) unknownKey(key string) error {
	var known []string
	for _, q := range s.all() {
		switch {
		case q.prefix == "":
			known = append(known, "Kind/namespace/name", "namespace/name", "name")
		default:
			known = append(known, q.prefix+"/namespace/name")
		}
	}
	return fmt.Errorf("%w %q: its keys are %s, in the namespaces of the manager's cache", errUnknownKey, key, strings.Join(known, ", "))
}

// planChange plans what an ApiServerSource tells.
func (s *server) planChange(ctx context.Context, p *plan, c *change, retried bool) error {
	// What was seen last is of use only while it is known what came of it.
	fed, err := s.feeder.read(ctx, c, retried || p.key != "" && !p.known)
	if err != nil {
		return err
	}
	if len(fed.of) == 0 {
		s.once("Events of a kind that no controller watches are dropped", "kind", c.gvk.String())
	}
	wishes, err := s.feed(fed)
	if err != nil {
		return err
	}
	p.fed = fed
	wishes = slices.DeleteFunc(wishes, func(d delayed) bool { return !s.covers(d.target) })
	if p.key == "" {
		s.beside(p, wishes)
		return nil
	}
	return s.behind(ctx, p, c, wishes)
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
	in := fed.feeder.informers
	_ = in.failed() // of before
	err := fed.call(func() (n int) {
		for _, q := range queues {
			n += q.fed()
		}
		return n
	})
	if err == nil {
		err = in.failed()
	}
	var all []delayed
	for i, q := range queues {
		wishes := ends[i]()
		if fed.bare && q.kind.GroupKind() == fed.of[0].kind.GroupKind() {
			// Predicates cannot know it by its name. That it is not there any more is what
			// its reconciler finds.
			wishes = append(wishes, wish{request: reconcile.Request{NamespacedName: fed.of[0].name}})
		}
		soonest := map[reconcile.Request]int{}
		for _, w := range wishes {
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
	p.decide(d.target, outcome{after: d.after})
}

// decide settles what comes of a target without a run: the sooner of what is
// said of it.
func (p *plan) decide(t target, o outcome) {
	if i := slices.IndexFunc(p.decided, t.is); i >= 0 {
		if o.after < p.outcomes[i].after {
			p.outcomes[i] = o
		}
		return
	}
	p.decided, p.outcomes = append(p.decided, t), append(p.outcomes, o)
}

// has says whether anything is planned for a target under the key of the event.
func (p *plan) has(t target) bool {
	return slices.ContainsFunc(p.run, t.is) || slices.ContainsFunc(p.decided, t.is)
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
// key, and that must not be lost when predicates let it pass by, or handlers
// map it to others: what the last answer has asked for lasts. If that may not be
// all, the objects that the key stands for are looked at as when an operator
// starts.
func (s *server) behind(ctx context.Context, p *plan, c *change, wishes []delayed) error {
	for _, d := range wishes {
		self := len(wishes) == 1 && d.isOf(c)
		if s.client == nil || d.key == p.key || self {
			p.here(d)
		} else {
			p.elsewhere = append(p.elsewhere, d)
		}
	}
	own := s.ofKey(p.key)
	if s.client != nil { // then each has a key of its own
		own = slices.DeleteFunc(own, func(t target) bool { return t.key != p.key })
	}
	for _, t := range p.last.of {
		if !slices.ContainsFunc(p.run, t.is) && !p.deletes(t, c) {
			p.here(delayed{t, p.last.after})
		}
	}
	for _, t := range own {
		if c.verb == deleted && !p.deletes(t, c) {
			p.outlives = append(p.outlives, t)
		}
		switch {
		case p.has(t):
		case p.deletes(t, c):
			p.decide(t, outcome{gone: true})
		case p.known, t.isOf(c):
		default:
			if err := s.arrive(ctx, p, t); err != nil {
				return err
			}
		}
	}
	return nil
}

// deletes says that the event tells of the end of the target's object.
func (p *plan) deletes(t target, c *change) bool { return p.fed.verb == deleted && t.isOf(c) }

// arrive runs a target if its predicates let pass what its object is now, as they
// do when a resident operator starts.
func (s *server) arrive(ctx context.Context, p *plan, t target) error {
	if t.queue.kind.Empty() {
		p.run = append(p.run, t)
		return nil
	}
	fed, err := s.feeder.read(ctx, &change{verb: updated, gvk: t.queue.kind.GroupVersionKind, name: t.request.NamespacedName}, true)
	if err != nil {
		return err
	}
	wishes, err := s.feed(fed)
	if slices.ContainsFunc(wishes, func(d delayed) bool { return t.is(d.target) }) {
		p.run = append(p.run, t)
	}
	return err
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
			if !s.covers(t) {
				return nil
			}
			return []target{t}
		}
	}
	return nil
}

// covers says whether a target is in the namespaces of the manager's cache.
func (s *server) covers(t target) bool {
	if !t.queue.covers(t.request) {
		s.once("What is not in the namespaces of the manager's cache is not reconciled", "controller", t.queue.name)
		return false
	}
	return true
}

// ofKey are the targets that a key Kind/namespace/name or
// controller/namespace/name stands for.
func (s *server) ofKey(key string) []target {
	parts := strings.Split(key, "/")
	queues := s.all()
	if s.feeder == nil { // a handler without a manager takes every kind, and none
		parts = append([]string{"any", ""}[:max(3-len(parts), 0)], parts...)
	}
	if len(parts) != 3 || parts[0] == "" || parts[2] == "" {
		return nil
	}
	request := reconcile.Request{NamespacedName: types.NamespacedName{Namespace: parts[1], Name: parts[2]}}
	var ofKind, ofName []target
	for _, q := range queues {
		switch t := q.target(request); {
		case !s.covers(t):
		case q.prefix == "":
			return []target{{queue: q, request: request, key: key}}
		case q.kind.Kind == parts[0]:
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
// for the answer, so that only a client can keep it.
func (s *server) stray(q *queue, w wish) {
	t := q.target(w.request)
	lost := func(err error) {
		if err != nil {
			s.log.Error(err, "A request that no event led to is lost", "key", t.key)
		}
	}
	switch {
	case s.client != nil:
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
			defer cancel()
			lost(s.schedule(ctx, []delayed{{t, w.after}}))
		}()
	case w.after > 0:
		lost(errors.New("it is wanted later, and there is no client"))
	default:
		r := q.join(t, nil)
		go func() {
			<-r.done
			if r.after > 0 {
				lost(errors.New("it is wanted again later, and there is no client"))
			}
			lost(r.err)
		}()
	}
}
