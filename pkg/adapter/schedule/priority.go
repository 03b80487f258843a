package schedule

// Priority is the rank of a key among the due keys of its source: a key of a higher one is delivered first, and
// within one the oldest. As in controller-runtime's priority queue a request lifts a key that waits and never lowers
// it, and an occurrence that follows from a run keeps the priority of the run.
type Priority int8

// The priorities. Bands is how many there are.
const (
	LowPriority Priority = iota - 1
	NormalPriority
	HighPriority

	Bands = int(HighPriority-LowPriority) + 1
)

// Priorities are all of them, the highest first: Priorities[i].Band() is i.
var Priorities = [Bands]Priority{HighPriority, NormalPriority, LowPriority}

var priorityNames = [Bands]string{"high", "normal", "low"}

// PriorityAttribute is the extension of an event that tells its priority, if that is not normal, and of an event
// that comes in with one.
const PriorityAttribute = "reschedulepriority"

// Band is its place in [Priorities].
func (p Priority) Band() int { return int(HighPriority - p) }

func (p Priority) String() string { return priorityNames[p.Band()] }

// ParsePriority reads a priority's name.
func ParsePriority(field, s string) (Priority, error) {
	for _, p := range Priorities {
		if s == p.String() {
			return p, nil
		}
	}
	return NormalPriority, Invalid(field, "%.64q is not one of high, normal, low", s)
}

// Rank is the priority in which the entry is delivered. Dead letters go to another sink, with slots of their own: keys
// of a high priority must not hold them up.
func (e *Entry) Rank() Priority {
	if e.DeadLetter != nil {
		return HighPriority
	}
	return e.Priority
}
