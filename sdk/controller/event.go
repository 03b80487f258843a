package controller

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/reschedule-dev/reschedule/sdk"
	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// maxBody is more than an object can have: the API server takes 3 MiB in a
// request.
const maxBody = 8 << 20

// errUnreadable marks an event that fails again each time it comes.
var errUnreadable = cloudevent.ErrUnreadable

// event is a CloudEvent: its attributes by name, and its data.
type event struct{ *cloudevent.Event }

// attribute is an attribute by name, "" if there is none.
func (e event) attribute(name string) string {
	if e.Event == nil { // it could not be read
		return ""
	}
	return e.Attributes[name]
}

// key is the key of the delivery, "" for an event that no RescheduleSource sent.
func (e event) key() string { return e.attribute(cloudevent.KeyAttribute) }

// watched reports whether a source that watches made the event.
func (e event) watched() bool {
	return strings.HasPrefix(e.attribute("source"), cloudevent.SourcePrefix)
}

// retried reports whether this delivery has failed before.
func (e event) retried() bool {
	n, err := strconv.Atoi(e.attribute(cloudevent.AttemptAttribute))
	return err == nil && n > 0
}

// answered reports whether the event is an answer of an operator: a timer, which takes no
// other event's place.
func (e event) answered() bool { return strings.HasPrefix(e.attribute("source"), answerSource) }

// priority is the priority of the delivery.
func (e event) priority() (p sdk.Priority) {
	_ = p.UnmarshalText([]byte(e.attribute(cloudevent.PriorityAttribute))) // none is normal
	return p
}

// objectName is the name of an object of a kind, in whatever version.
type objectName struct {
	schema.GroupKind
	types.NamespacedName
}

// causeOf reads the object APIVERSION/KIND/NAMESPACE/NAME whose change led to an event.
func causeOf(text string) (n objectName, ok bool) {
	parts := strings.Split(text, "/")
	if len(parts) < 4 || len(parts) > 5 {
		return n, false
	}
	last := parts[len(parts)-3:]
	if len(parts) == 5 {
		n.Group = parts[0]
	}
	n.Kind, n.Namespace, n.Name = last[0], last[1], last[2]
	return n, true
}

// readEvent reads an event in the binary or the structured mode.
func readEvent(r *http.Request) (event, error) {
	read, err := cloudevent.Read(r, maxBody)
	e := event{read}
	if err == nil && e.attribute("type") == "" {
		err = fmt.Errorf("%w: it has no type; CloudEvents in the binary and the structured mode are read", errUnreadable)
	}
	return e, err
}

// verb is what happened to an object.
type verb string

const (
	added   verb = "add"
	updated verb = "update"
	deleted verb = "delete"
)

// change is the event of an ApiServerSource, or of a RescheduleSource that watches.
type change struct {
	verb
	gvk  schema.GroupVersionKind
	name types.NamespacedName // a cluster-scoped object has no namespace
	// version is the object's at the time of the event, if a source that watches made it.
	version string
	// object is the object as JSON, nil if only its name was sent.
	object, metadata json.RawMessage
}

// apiServerTypes are the events of an ApiServerSource, in its two modes. A
// RescheduleSource that watches sends the second one.
var apiServerTypes = map[string]struct {
	verb
	whole bool
}{
	"dev.knative.apiserver.resource.add":    {added, true},
	"dev.knative.apiserver.resource.update": {updated, true},
	"dev.knative.apiserver.resource.delete": {deleted, true},
	"dev.knative.apiserver.ref.add":         {added, false},
	"dev.knative.apiserver.ref.update":      {updated, false},
	"dev.knative.apiserver.ref.delete":      {deleted, false},
}

// readChange reads an event about an object. It is nil for another event.
func readChange(e event) (*change, error) {
	t, ok := apiServerTypes[e.attribute("type")]
	if !ok {
		return nil, nil
	}
	// An object has its name in its metadata, and may have any other fields. An
	// ObjectReference has its name at the top.
	var object struct {
		APIVersion string
		Kind       string
		Metadata   json.RawMessage
	}
	var name struct{ Namespace, Name, ResourceVersion string }
	err := json.Unmarshal(e.Data, &object)
	if err == nil && t.whole && object.Metadata != nil {
		err = json.Unmarshal(object.Metadata, &name)
	} else if err == nil && !t.whole {
		err = json.Unmarshal(e.Data, &name)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: the data of a %s: %w", errUnreadable, e.attribute("type"), err)
	}
	c := &change{
		verb: t.verb,
		gvk:  schema.FromAPIVersionAndKind(object.APIVersion, object.Kind),
		name: types.NamespacedName{Namespace: name.Namespace, Name: name.Name},
	}
	if e.watched() {
		c.version = name.ResourceVersion
	}
	if t.whole {
		c.object, c.metadata = e.Data, object.Metadata
	}
	if c.gvk.Kind == "" || c.gvk.Version == "" || c.name.Name == "" {
		return nil, fmt.Errorf("%w: the data of a %s has no apiVersion, kind or name", errUnreadable, e.attribute("type"))
	}
	return c, nil
}
