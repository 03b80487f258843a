package controller

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// dueType is that of the events which bring a key back.
const dueType = "dev.reschedule.due"

// outcome is what a run asks for. The zero value is that it is done.
type outcome struct {
	err   error         // it failed, or asked for a retry
	after time.Duration // again after this, if above zero
	gone  bool          // done, and its object is not there any more
	final bool          // done, with an error that no retry mends
}

// target is a request of a controller, and the key that stands for it at a
// RescheduleSource.
type target struct {
	queue   *queue
	request reconcile.Request
	key     string
	// client says that the client counts its failures, also when it is brought
	// back by a delivery: the waits grow as if it were the first that failed.
	client bool
	// revision is what waited under the key before the run, 0 if nothing did; see
	// look.
	revision uint64
}

func (t target) is(other target) bool { return t.queue == other.queue && t.request == other.request }

// isOf says that the target's own object is the one that has changed.
func (t target) isOf(c *change) bool {
	return t.queue.kind.GroupKind() == c.gvk.GroupKind() && t.request.NamespacedName == c.name
}

// due is the data of an event that brings back a request, or several.
type due struct {
	Controller string `json:"controller,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name,omitempty"`
	Client     bool   `json:"client,omitempty"` // see target
	Requests   []due  `json:"requests,omitempty"`
	// Continue is where the list of a resync goes on, Revision which one it is for.
	Continue string `json:"continue,omitempty"`
	Revision string `json:"revision,omitempty"`
}

func dueOf(ts ...target) due {
	all := make([]due, len(ts))
	for i, t := range ts {
		all[i] = due{Controller: t.queue.name, Namespace: t.request.Namespace, Name: t.request.Name, Client: t.client}
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
	b, _ := json.Marshal(d) // it has strings only
	return b
}

// answer is what a sender is told: the worst of the outcomes that its event has
// caused.
type answer struct {
	outcome
	of  []target // those that are to be due again
	due due      // the data of the event that brings the key back, if not these
}

// worst combines the outcomes of targets: a failure fails all of them, else
// the soonest that one of them asks for counts.
func worst(ts []target, outcomes []outcome) answer {
	a := answer{outcome: outcome{gone: len(ts) > 0}}
	for i, o := range outcomes {
		a.gone = a.gone && o.gone
		if a.err == nil {
			a.err = o.err
		}
		if o.after > 0 {
			a.of = append(a.of, ts[i])
			if a.after == 0 || o.after < a.after {
				a.after = o.after
			}
		}
	}
	return a
}

// write answers the sender. The event in the answer says by its attributes too
// when it is to be due: otherwise a RescheduleSource that has sent the delivery
// would keep the event that it has, and a Broker could not hand it to one. It
// names no policy: a source takes from events only those that its spec allows.
func (a answer) write(w http.ResponseWriter, key string) {
	switch {
	case a.err != nil:
		text := a.err.Error()
		http.Error(w, strings.ToValidUTF8(text[:min(len(text), 1024)], ""), http.StatusServiceUnavailable)
	case a.after > 0:
		after := strings.Replace(a.after.String(), "µs", "us", 1) // a header is ASCII
		d := a.due
		if len(a.of) > 0 {
			d = dueOf(a.of...)
		}
		for name, value := range map[string]string{
			"Reschedule-After": after,
			"Content-Type":     "application/json",
			"Ce-Specversion":   "1.0",
			"Ce-Id":            rand.Text(),
			"Ce-Source":        "/controllers/" + cloudevent.PercentEncode(d.controller()),
			"Ce-Type":          dueType,
			"Ce-Subject":       cloudevent.PercentEncode(key),

			"Ce-Reschedulekey":   cloudevent.PercentEncode(key),
			"Ce-Rescheduleafter": after,
		} {
			w.Header().Set(name, value)
		}
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(d.json())
	case a.gone:
		w.Header().Set("Reschedule-After", "never")
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}
