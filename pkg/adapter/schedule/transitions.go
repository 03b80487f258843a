package schedule

// State is where a key stands.
type State string

// The states that callers see.
const (
	Waiting  State = "waiting"
	Due      State = "due"      // its time has come: queued, or between two attempts
	InFlight State = "inFlight" // being delivered, and nothing waits behind it
)

// The states that callers see as others: absent is a 404, behind is waiting or
// due with inFlight true, leaving is a 404 while the older delivery is still out.
const (
	Absent  State = "absent"
	Behind  State = "behind"  // a newer occurrence waits for an older delivery to end
	Leaving State = "leaving" // deleted, or expired, while a delivery is under way
)

// Transition is a step that a key may take.
type Transition struct {
	From State
	On   string
	To   State
	Note string
}

// Transitions are all the steps there are: what is not here cannot happen.
var Transitions = []Transition{
	{Absent, "schedule", Waiting, "201 created"},
	{Waiting, "schedule", Waiting, "replaced, merged or kept, as the policy says"},
	{Waiting, "time comes", Due, "never before dueAt by the adapter's clock"},
	{Waiting, "cancel", Absent, "DELETE"},
	{Waiting, "expire", Absent, "expiresAt, within 5 s"},
	{Due, "start", InFlight, "at most one delivery of a key at a time"},
	{Due, "schedule", Waiting, "as from waiting: due and between two attempts count as waiting"},
	{Due, "cancel", Absent, "DELETE"},
	{Due, "expire", Absent, "expiresAt, retries included"},
	{InFlight, "succeed", Absent, "2xx"},
	{InFlight, "succeed", Waiting, "2xx with Reschedule-After, or maxInterval, or a calendar, or the time of an event that a restart cut off"},
	{InFlight, "fail", Due, "retried after the back-off or Reschedule-After; dueAt stays"},
	{InFlight, "give up", Absent, "rejected, or retries used up: dead letter, kept or dropped"},
	{InFlight, "give up", Waiting, "maxInterval; a calendar; rejected with Reschedule-After; or as on succeed after a restart"},
	{InFlight, "expire", Absent, "failed after its expiresAt"},
	{InFlight, "schedule", Behind, "201 created: nothing waited"},
	{InFlight, "cancel", Leaving, "nothing of the answer has an effect"},
	{InFlight, "restart", Due, "delivered again, under the same id"},
	{Behind, "schedule", Behind, "as from waiting"},
	{Behind, "succeed", Waiting, "Reschedule-After: the sooner time, the newer event"},
	{Behind, "fail", Waiting, "no retry of the older occurrence after a PUT, an event that replaces it, or its expiresAt; else the sooner of retry and event, at a distance of a second at most"},
	{Behind, "give up", Waiting, "the older occurrence is a dead letter, kept or dropped, the newer stays; rejected with Reschedule-After: the sooner time"},
	{Behind, "cancel", Leaving, "DELETE"},
	{Behind, "expire", Leaving, "the newer occurrence expired"},
	{Behind, "restart", Waiting, "due when the older one was, if an event came in behind it, and once more at the event's time"},
	{Leaving, "schedule", Behind, "201 created: the key had no entry"},
	{Leaving, "answer", Absent, "after a DELETE whatever the answer"},
	{Leaving, "succeed", Waiting, "Reschedule-After or maxInterval, after an expiry only"},
	{Leaving, "give up", Waiting, "maxInterval; rejected with Reschedule-After; after an expiry only"},
	{Leaving, "restart", Absent, ""},
}
