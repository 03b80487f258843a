package watch

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

// observed is an object, reduced to what a decision reads.
type observed struct {
	path, uid, version string
	created            time.Time
	hash               uint64
	own                bool     // the target is the object's own key
	targets            []target // none: the object does not match
}

func (s *observed) mark() store.Mark {
	m := store.Mark{Object: s.path, UID: s.uid, Hash: s.hash}
	if !s.own {
		m.Keys = make([]string, len(s.targets))
		for i, t := range s.targets {
			m.Keys[i] = t.key
		}
	}
	return m
}

// verb is what happened to an object, as its event says.
type verb string

const (
	added   verb = "add"
	updated verb = "update"
	deleted verb = "delete"
)

// decision is what an observed object leads to.
type decision struct {
	verb    verb
	targets []target    // to schedule
	mark    *store.Mark // to store, nil: none
	remove  bool        // the mark
	more    int64       // objects that have a mark
}

// decide compares an observed object with the mark of the object, nil when it has none. gone:
// the object was deleted, and this is its last state.
func decide(kind string, before *store.Mark, now *observed, gone bool) decision {
	old := marked(kind, before)
	mark := now.mark()
	switch {
	case gone:
		return decision{verb: deleted, targets: union(now.targets, old), remove: before != nil, more: -present(before)}
	case len(now.targets) == 0 && before == nil:
		return decision{}
	case len(now.targets) == 0: // it matched, and does not any more
		return decision{verb: updated, targets: forget(old), remove: true, more: -1}
	case before == nil, before.UID != now.uid:
		return decision{verb: added, targets: union(now.targets, forget(old)), mark: &mark, more: 1 - present(before)}
	case before.Hash == now.hash && slices.Equal(before.Keys, mark.Keys):
		return decision{}
	}
	return decision{verb: updated, targets: union(now.targets, forget(old)), mark: &mark}
}

func present(m *store.Mark) int64 {
	if m == nil {
		return 0
	}
	return 1
}

// marked are the targets of a mark.
func marked(kind string, m *store.Mark) []target {
	switch {
	case m == nil:
		return nil
	case m.Keys == nil:
		return []target{{key: keyOfPath(kind, m.Object), uid: m.UID}}
	}
	targets := make([]target, len(m.Keys))
	for i, key := range m.Keys {
		targets[i].key = key
	}
	return targets
}

// forget removes the uids: they may be of objects that were replaced.
func forget(targets []target) []target {
	for i := range targets {
		targets[i].uid = ""
	}
	return targets
}

// union is a, and the keys of b that are not in a.
func union(a, b []target) []target {
	all := slices.Clone(a)
	for _, t := range b {
		if !slices.ContainsFunc(all, func(o target) bool { return o.key == t.key }) {
			all = append(all, t)
		}
	}
	return all
}

// item asks for the key of a target after the delay. It is an event: it brings an
// occurrence forward or merges into it, and changes no counter.
func item(t target, delay time.Duration, p schedule.Priority, event *schedule.Event, reason string) queue.Item {
	return queue.Item{Key: t.key, Request: schedule.Request{
		Delay: &delay, Policy: schedule.Earliest, Priority: p, Event: event, UID: t.uid, UIDIfNone: t.hearsay, Reason: reason, Ingested: true,
	}}
}

// reference is the data of an event: a core/v1 ObjectReference.
type reference struct {
	Kind            string `json:"kind,omitempty"`
	Namespace       string `json:"namespace,omitempty"`
	Name            string `json:"name,omitempty"`
	UID             string `json:"uid,omitempty"`
	APIVersion      string `json:"apiVersion,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

// ownEvent is the event of a change of the object itself, as ApiServerSource sends it
// in Reference mode.
func ownEvent(src *schedule.Spec, r objects.Resource, s *observed, v verb) *schedule.Event {
	namespace, name := namespaceOf(s.path), s.path[strings.LastIndexByte(s.path, '/')+1:]
	data, err := json.Marshal(reference{
		Kind: r.Kind, Namespace: namespace, Name: name, UID: s.uid, APIVersion: r.APIVersion(), ResourceVersion: s.version,
	})
	if err != nil { // it has strings only
		panic(err)
	}
	return &schedule.Event{
		Source:  src.EventSource(),
		Type:    "dev.knative.apiserver.ref." + string(v),
		Subject: "/apis/" + r.APIVersion() + "/namespaces/" + namespace + "/" + plural(r.Kind) + "/" + name,
		Extensions: map[string]any{
			"kind": r.Kind, "apiversion": r.APIVersion(), "name": name, "namespace": namespace,
		},
		DataContentType: "application/json", Data: data,
	}
}

// plural guesses the name of a resource as ApiServerSource does for its subjects.
func plural(kind string) string {
	s := strings.ToLower(kind)
	switch {
	case strings.HasSuffix(s, "endpoints"):
		return s
	case strings.HasSuffix(s, "s"):
		return s + "es"
	case strings.HasSuffix(s, "y"):
		return strings.TrimSuffix(s, "y") + "ies"
	}
	return s + "s"
}

// causedEvent is the event of a change that was found through an owner or an
// expression. Its subject is the key. final: the object of the key is not there.
func causedEvent(r objects.Resource, s *observed, final bool) *schedule.Event {
	path := s.path
	if !strings.Contains(path, "/") {
		path = "/" + path
	}
	e := &schedule.Event{
		Type:       schedule.DefaultEventType,
		Extensions: map[string]any{schedule.CauseAttribute: r.APIVersion() + "/" + r.Kind + "/" + path},
	}
	if final {
		e.Extensions[schedule.FinalAttribute] = true
	}
	return e
}
