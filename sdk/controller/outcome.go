package controller

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk"
	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// outcome is what a run asks for. The zero value is that it is done.
type outcome struct {
	err   error         // it failed, or asked for a retry
	after time.Duration // again after this, if above zero
	gone  bool          // done, and its object does not exist any more
}

// target is a request of a controller, and its key at the RescheduleSource.
type target struct {
	queue    *queue
	request  reconcile.Request
	key      string
	failures int // its runs in a row that failed while another request of the key had a timer
	priority int // of its run; of a decision, of what follows
}

// priorityOf is a source's priority as controller-runtime has it, and bandOf is the way back.
func priorityOf(p sdk.Priority) int { return -handler.LowPriority * int(p) }

func bandOf(priority int) sdk.Priority { return sdk.Priority(cmp.Compare(priority, 0)) }

func (t target) is(other target) bool { return t.queue == other.queue && t.request == other.request }

// isOf reports whether the change is of the target's own object.
func (t target) isOf(c *change) bool {
	return t.queue.kind.GroupKind() == c.gvk.GroupKind() && t.request.NamespacedName == c.name
}

// delayed is a target that runs after a while, or now if that is 0.
type delayed struct {
	target
	after time.Duration
}

// due is the data of an event that brings back a request, or several. A key has one
// time: the soonest of its requests. At is when one of the others is due, an instant,
// because callers may move the key.
type due struct {
	Controller string    `json:"controller,omitempty"`
	Namespace  string    `json:"namespace,omitempty"`
	Name       string    `json:"name,omitempty"`
	At         time.Time `json:"at,omitzero"`
	Failures   int       `json:"failures,omitempty"`
	Requests   []due     `json:"requests,omitempty"`

	after time.Duration // what is left until At
}

// dueOf is the data of an event that is due at the soonest time of one of the requests.
func dueOf(ds ...delayed) due {
	all := make([]due, len(ds))
	first := slices.MinFunc(ds, func(a, b delayed) int { return cmp.Compare(a.after, b.after) })
	for i, d := range ds {
		all[i] = due{Controller: d.queue.name, Namespace: d.request.Namespace, Name: d.request.Name, Failures: d.failures}
		if d.after > first.after {
			all[i].At = time.Now().Add(d.after).UTC()
		}
	}
	if len(all) == 1 {
		return all[0]
	}
	return due{Requests: all}
}

// controller is the name of the first one.
func (d due) controller() string {
	if len(d.Requests) > 0 {
		d = d.Requests[0]
	}
	return d.Controller
}

func (d due) json() []byte {
	b, _ := json.Marshal(d) // its instants are at most 100 years ahead
	return b
}

// answerSource begins the source attribute of an answer.
const answerSource = "/controllers/"

// answer is the answer to a delivery: what the outcomes that it caused come to.
type answer struct {
	outcome
	again []delayed // the targets that are due again
	// priority is the priority of what follows: of targets that share a key, the highest. nil
	// keeps the priority of the delivery.
	priority *int
	// doubts are the runs in a row for an event that says nothing new, but may have taken the
	// place of an event about another object.
	doubts int
}

// combine makes one answer of the outcomes of targets. Without a timer one failure fails
// the delivery, and the source retries it. A timer outlives the failures of others: then
// each target has a time of its own, as in queues of their own, and the soonest is the
// key's. A failed one comes back after a back-off that doubles from a second to 1000, and
// one that is done after resync, if it is of the key: maxInterval does not count for a key
// with a timer.
func combine(all []decision, resync time.Duration, ofKey func(target) bool) answer {
	a := answer{outcome: outcome{gone: len(all) > 0}}
	timer := slices.ContainsFunc(all, func(d decision) bool { return d.after > 0 })
	for _, d := range all {
		a.gone = a.gone && d.gone
		switch {
		case d.after > 0:
			a.add(delayed{d.target, d.after})
		case d.err != nil && timer:
			wait := backOff(d.failures)
			d.failures++
			a.add(delayed{d.target, wait})
		case d.err != nil:
			a.err = cmp.Or(a.err, d.err)
			a.lift(d.priority)
		case timer && resync > 0 && !d.gone && ofKey(d.target): // 0 is never
			d.priority = handler.LowPriority // as of a resync
			a.add(delayed{d.target, resync})
		}
	}
	return a
}

// backOff doubles from a second to 1000.
func backOff(n int) time.Duration { return min(time.Second<<min(n, 10), 1000*time.Second) }

// add adds a target that is due again.
func (a *answer) add(d delayed) {
	a.lift(d.priority)
	a.again = append(a.again, d)
	if len(a.again) == 1 || d.after < a.after {
		a.after = d.after
	}
}

// lift raises the priority of what follows to the priority of one more target.
func (a *answer) lift(priority int) {
	if a.priority == nil || *a.priority < priority {
		a.priority = &priority
	}
}

// write answers the delivery of a key with a priority. The answer that asks for another run is an
// event: without the attribute AfterAttribute a RescheduleSource would keep the event
// that it has.
func (a answer) write(w http.ResponseWriter, key string, delivered sdk.Priority) {
	if a.priority != nil && bandOf(*a.priority) != delivered {
		sdk.SetPriority(w, bandOf(*a.priority))
	}
	switch {
	case a.err != nil:
		text := a.err.Error()
		http.Error(w, strings.ToValidUTF8(text[:min(len(text), 1024)], ""), http.StatusServiceUnavailable)
	case a.after > 0:
		after := strings.Replace(a.after.String(), "µs", "us", 1) // a header is ASCII
		d := dueOf(a.again...)
		w.Header().Set(cloudevent.AfterHeader, after)
		w.Header().Set("Content-Type", "application/json")
		for name, value := range map[string]string{
			"specversion":             "1.0",
			"id":                      rand.Text(),
			"source":                  answerSource + d.controller(),
			"type":                    cloudevent.DueType,
			"subject":                 key,
			cloudevent.KeyAttribute:   key,
			cloudevent.AfterAttribute: after,
		} {
			w.Header().Set(cloudevent.HeaderPrefix+name, cloudevent.PercentEncode(value))
		}
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(d.json())
	case a.gone:
		w.Header().Set(cloudevent.AfterHeader, cloudevent.Never)
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}
