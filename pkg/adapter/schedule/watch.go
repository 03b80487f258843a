package schedule

import "time"

// Watch is the settings of spec.watch: the objects whose changes schedule keys.
type Watch struct {
	// Account is the ServiceAccount, in the source's namespace, that lists and watches.
	Account string
	// OwnNamespace watches the source's namespace only; Namespaces is then "".
	OwnNamespace bool
	// Namespaces is a label selector in its text form; "" = all namespaces.
	Namespaces string
	Resources  []WatchResource

	ResyncOnRevision bool
	ResyncOver       *time.Duration // the time over which a resync is spread; nil: ten keys a second

	// Revision is the latest ready revision of a sink that is a Knative Service; "" = unknown.
	Revision string
	// Generation is the generation of the RescheduleSource, for the report of the watch.
	Generation int64
	// Since is when the RescheduleSource was created: younger objects are scheduled at once.
	Since time.Time
}

// WatchResource is one kind to watch, and the keys that its changes schedule.
type WatchResource struct {
	Group, Version, Kind string
	Selector             string // a label selector in its text form; "" = all objects
	// OwnerGroup and OwnerKind name the owners whose keys are scheduled; an OwnerKind
	// of "" = the object's own key.
	OwnerGroup, OwnerKind string
	Key                   string // CEL over object, "" = none
	Changes               Changes
	Priority              Priority // of its changes
}

// Changes says which differences of a watched object are a change.
type Changes string

// The kinds of changes.
const (
	ChangesSpec     Changes = "Spec"     // generation, deletionTimestamp, uid
	ChangesMetadata Changes = "Metadata" // all metadata except resourceVersion and managedFields
	ChangesAny      Changes = "Any"      // resourceVersion
)

// CauseAttribute is the extension of an event that names the object whose change
// scheduled the key of another one.
const CauseAttribute = "reschedulecause"

// FinalAttribute is the extension, true, of an event of a watch for a key whose object the source watches too
// and does not know: it was deleted. A success ends the key, unless a caller scheduled it.
const FinalAttribute = "reschedulefinal"
