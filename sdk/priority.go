package sdk

import (
	"fmt"
	"net/http"

	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// Priority is the rank of a key among the due keys of its source: a key of a higher one is
// delivered first, and within one the oldest. A request lifts a key that waits to its own
// priority and never lowers it. What follows from a run keeps the priority of the run, unless
// its answer sets another ([SetPriority]).
type Priority int

// The priorities.
const (
	LowPriority Priority = iota - 1
	NormalPriority
	HighPriority
)

var priorities = map[Priority]string{LowPriority: "low", NormalPriority: "normal", HighPriority: "high"}

// String is the name of the priority.
func (p Priority) String() string {
	if name, ok := priorities[p]; ok {
		return name
	}
	return fmt.Sprintf("Priority(%d)", int(p))
}

// MarshalText writes the name.
func (p Priority) MarshalText() ([]byte, error) {
	if _, ok := priorities[p]; !ok {
		return nil, fmt.Errorf("priority: %d is not one of LowPriority, NormalPriority, HighPriority", int(p))
	}
	return []byte(p.String()), nil
}

// UnmarshalText reads a name.
func (p *Priority) UnmarshalText(b []byte) error {
	for is, name := range priorities {
		if name == string(b) {
			*p = is
			return nil
		}
	}
	return fmt.Errorf("priority: %.64q is not one of high, normal, low", b)
}

// SetPriority gives the key a priority with the answer that is written to w next, whatever
// that is. It does not lower what was scheduled meanwhile.
func SetPriority(w http.ResponseWriter, p Priority) {
	w.Header().Set(cloudevent.PriorityHeader, p.String())
}
