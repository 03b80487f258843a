package cloudevent

import "time"

// The vocabulary of a RescheduleSource. The adapter is another module, which this
// one must not import, and has the same names in its own package cloudevent. The
// tests of this module run the real adapter, so that a difference fails them.
const (
	// DueType is the type of the event of a key that has no event of its own.
	DueType = "dev.reschedule.due"

	// KeyAttribute, RevisionAttribute, DueAtAttribute and AttemptAttribute are in each
	// delivery.
	KeyAttribute      = "reschedulekey"
	RevisionAttribute = "reschedulerevision"
	DueAtAttribute    = "rescheduledueat"
	AttemptAttribute  = "rescheduleattempt"

	// PriorityAttribute is in a delivery whose priority is not normal. PriorityHeader is in an
	// answer that sets the priority.
	PriorityAttribute = "reschedulepriority"
	PriorityHeader    = "Reschedule-Priority"

	// CauseAttribute is in a delivery that a change of another object led to.
	CauseAttribute = "reschedulecause"

	// SourcePrefix begins the source attribute of the events that a source makes itself.
	SourcePrefix = "/apis/sources.reschedule.dev/"

	// AfterAttribute is in an event that is an answer: the key is due again after this
	// time, with this event.
	AfterAttribute = "rescheduleafter"

	// AfterHeader is in an answer: the key is due again after this time, or, with Never,
	// not again until it is scheduled.
	AfterHeader = "Reschedule-After"
	Never       = "never"

	// HeaderPrefix comes before the name of an attribute in the binary mode.
	HeaderPrefix = "Ce-"
)

// MaxWait is the longest wait that a RescheduleSource takes: 100 years.
const MaxWait = 876600 * time.Hour
