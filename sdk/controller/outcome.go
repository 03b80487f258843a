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

// outcome is what a run asks for. The zero value is that it is done.
type outcome struct {
	err   error         // it failed, or asked for a retry
	after time.Duration // again after this, if above zero
	gone  bool          // done, and its object does not exist any more
}

// target is a request of a controller, and its key at the RescheduleSource.
type target struct {
	queue   *queue
	request reconcile.Request
	key     string
}

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

// due is the data of an event that brings back a request, or several.
type due struct {
	Controller string `json:"controller,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name,omitempty"`
	Requests   []due  `json:"requests,omitempty"`
}

func dueOf(ts ...target) due {
	all := make([]due, len(ts))
	for i, t := range ts {
		all[i] = due{Controller: t.queue.name, Namespace: t.request.Namespace, Name: t.request.Name}
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

// answer is the answer to a delivery: the worst of the outcomes that it caused.
type answer struct {
	outcome
	again []target // the targets that are due again
}

// worst combines the outcomes of targets: one failure fails all of them. Without a
// failure the soonest time counts that one of them asks for.
func worst(all []decision) answer {
	a := answer{outcome: outcome{gone: len(all) > 0}}
	for _, d := range all {
		a.gone = a.gone && d.gone
		if a.err == nil {
			a.err = d.err
		}
		if d.after > 0 {
			a.again = append(a.again, d.target)
			if a.after == 0 || d.after < a.after {
				a.after = d.after
			}
		}
	}
	return a
}

// write answers the delivery of a key. The answer that asks for another run is an
// event: without the attribute AfterAttribute a RescheduleSource would keep the event
// that it has.
func (a answer) write(w http.ResponseWriter, key string) {
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
			"source":                  "/controllers/" + d.controller(),
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
