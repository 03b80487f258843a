package schedule

import (
	"strings"
	"time"
)

// Scale is which workload of the source's namespace sleeps while there is nothing to
// deliver. Without Mode there is none.
type Scale struct {
	Workload
	Mode                   ScaleMode
	Cooldown, StartTimeout time.Duration
	// Sinkless: no event is sent. The workload finds its work by itself once it is awake.
	Sinkless bool
	// Busy is where a workload without a sink tells whether it works; no Port: nowhere.
	Busy Busy
	// Held is the workload that the status names: one that may be at zero, and that the
	// adapter must scale up before it lets go of it.
	Held Workload
	// Recorded: the status names Workload, and a deleted source waits until it is scaled
	// up. Only then may it sleep.
	Recorded bool
}

// Workload is a workload with the account that scales it. The zero value is none.
type Workload struct {
	APIVersion, Kind, Name string
	Account                string
	Replicas               int32 // while awake
}

// Busy is where each pod of a workload serves its metrics.
type Busy struct {
	Port int32
	Path string
}

// Group is its API group; the version does not matter.
func (w Workload) Group() string {
	group, _, named := strings.Cut(w.APIVersion, "/")
	if !named {
		return ""
	}
	return group
}

// Same reports whether both are the same object.
func (w Workload) Same(o Workload) bool {
	return w.Group() == o.Group() && w.Kind == o.Kind && w.Name == o.Name
}

// ScaleMode is what a source does with its workload.
type ScaleMode string

// The modes.
const (
	ScaleAuto    ScaleMode = "Auto"
	ScaleAwake   ScaleMode = "Awake"
	ScaleObserve ScaleMode = "Observe" // it is counted as if it were scaled
)

// Scales reports whether the source scales its workload.
func (s *Scale) Scales() bool { return s.Mode == ScaleAuto || s.Mode == ScaleAwake }

// ScaleStatus is the state of a workload and its figures since the source exists. The
// zero value is of a source that has none.
type ScaleStatus struct {
	State           string // Asleep, Starting, Awake; "": not known yet
	Since           time.Time
	Starts          int64
	Awake, Observed time.Duration
	LastStart       time.Duration // 0: it was not started yet
	Quiet           Quiet
	Reason, Message string // why it cannot be scaled
	Held            Workload
}

// Quiet is what an observed workload has done while it would have slept: timers in it, for example.
type Quiet struct {
	Runs     int64         // of reconciles; several at one time count as one
	Every    time.Duration // mean time from one to the next; 0: not known yet
	Requeues int64         // reconciles that ended with RequeueAfter, at any time
}
