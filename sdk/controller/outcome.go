package controller

import (
	"crypto/rand"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"
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
}

// due is the data of an event that brings back a request, or several.
type due struct {
	Controller string `json:"controller,omitempty"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name,omitempty"`
	Client     bool   `json:"client,omitempty"` // see target
	Requests   []due  `json:"requests,omitempty"`
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

func (d due) json() []byte {
	b, _ := json.Marshal(d) // it has strings only
	return b
}

// answer is what a sender is told: the worst of the outcomes that its event has
// caused.
type answer struct {
	outcome
	// of are the targets that are to be due again, none if the event says it.
	of []target
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

// write answers the sender. Under key it has the delivery, which is the subject
// of the next one; steer adds what makes of the reply a command for a
// RescheduleSource that it is sent to.
func (a answer) write(w http.ResponseWriter, key string, steer bool) {
	switch {
	case a.err != nil:
		text := a.err.Error()
		http.Error(w, strings.ToValidUTF8(text[:min(len(text), 1024)], ""), http.StatusServiceUnavailable)
	case a.after > 0:
		after := strings.Replace(a.after.String(), "µs", "us", 1) // a header is ASCII
		h := w.Header()
		h.Set("Reschedule-After", after)
		if len(a.of) == 0 { // with the event that it has
			w.WriteHeader(http.StatusNoContent)
			return
		}
		h.Set("Ce-Specversion", "1.0")
		h.Set("Ce-Id", rand.Text())
		h.Set("Ce-Source", "/controllers/"+percentEncode(a.of[0].queue.name))
		h.Set("Ce-Type", dueType)
		h.Set("Ce-Subject", percentEncode(key))
		if steer {
			h.Set("Ce-Reschedulekey", percentEncode(key))
			h.Set("Ce-Rescheduleafter", after)
			h.Set("Ce-Reschedulepolicy", "replace")
		}
		h.Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(dueOf(a.of...).json())
	case a.gone:
		w.Header().Set("Reschedule-After", "never")
		w.WriteHeader(http.StatusNoContent)
	default:
		w.WriteHeader(http.StatusNoContent)
	}
}

// keyed finds the target whose key it is.
func keyed(ts []target, key string) (target, bool) {
	i := slices.IndexFunc(ts, func(t target) bool { return t.key == key })
	if i < 0 {
		return target{}, false
	}
	return ts[i], true
}
