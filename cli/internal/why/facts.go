package why

import (
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// Facts is what was found. A nil part is unknown.
type Facts struct {
	Now             time.Time
	Namespace, Name string
	// Missing says that the API server has no such source.
	Missing bool
	Source  *Source
	Adapter *Adapter
	// Refusal is the answer of the schedule API if that was an error.
	Refusal *Refusal
	Counts  *sdk.Counts

	// Key is the key in question; "" asks about the source.
	Key string
	// Record is the key as the schedule API shows it. With a key, nil says that it is
	// absent. Without one it is the key that has the most trouble: a retrying one, or the
	// one that is in flight for longest.
	Record *sdk.Schedule
	// StartedAt is when the delivery of the record began that is under way; zero: unknown.
	StartedAt time.Time
	// Ahead are the keys of its priority that became due before the record.
	Ahead *Ahead
	// History is the last outcomes of the key.
	History sdk.History
	// DeadLetter is the key's dead letter that is kept, or without a key the newest one.
	DeadLetter *sdk.DeadLetter

	Measured
}

// Ahead is how many keys became due before another one; with More there may be more.
type Ahead struct {
	Keys int
	More bool
}

// Measured is what only the metrics of the adapter show.
type Measured struct {
	// Unmeasured is why they were not read, so that all else is unknown; "" if they were.
	Unmeasured string
	// QuotaRefused is how many changes of this source were refused since the adapter
	// started, by the name of the quota, such as limits.maxPending.
	QuotaRefused map[string]int64
	// StorageFull says that less is free on the adapter's disk than it keeps back, and that
	// the namespace holds too much to use a part of that: changes that grow are answered 507.
	StorageFull bool
	// Paused says that no delivery starts, because the disk has no space for its outcome.
	Paused bool
	// NamespaceFull says that the disk is nearly full and that the namespace of the source
	// holds its share: changes of the namespace that grow are answered with 507.
	NamespaceFull bool
	// StoredKeys and StoredBytes are what quotas count of the source, 0 = unknown.
	StoredKeys, StoredBytes int64
	// NamespaceLimits are what the sources of the namespace share, nil = unknown.
	NamespaceLimits *NamespaceLimits
	// Lost are the events that were given up and are not kept.
	Lost Lost
	// Unreadable is how many stored records the adapter could not read.
	Unreadable int64
}

// Source is the source object.
type Source struct {
	Conditions   []Condition
	Suspended    bool
	Deleting     bool
	SinkURI      string
	Timeout      time.Duration // spec.delivery.timeout, 0 = unknown
	MaxInFlight  int64         // 0 = unknown
	MaxPerSecond int64         // 0 = no limit
	MaxPending   int64         // 0 = unknown
	MaxBytes     int64         // 0 = unknown
	When         string        // spec.ingest.when
	Workload     *Workload     // of spec.scale
}

// Workload is what the source object says of the workload of spec.scale.
type Workload struct {
	Kind, Name   string
	Mode         string
	Cooldown     time.Duration // 0 = unknown
	StartTimeout time.Duration // 0 = unknown
	// Sinkless says that the source has no sink: it wakes a workload that finds its work by itself.
	Sinkless bool
	Account  string // that scales it and reads its metrics
	// Status is the adapter's report, at most 30 s old; nil = there is none yet.
	Status *sdk.Scale
	// Held says that the adapter may have scaled it to zero.
	Held bool
}

// NamespaceLimits are what the sources of a namespace share: the limits of ConfigMap
// config-reschedule, 0 = none, and what all of its sources have of them.
type NamespaceLimits struct {
	MaxPending, MaxBytes, MaxInFlight, MaxPerSecond int64
	Keys, Bytes                                     int64 // as quotas count them
	InFlight                                        int64 // deliveries of keys and dead letters
	Queued                                          int64 // due keys that wait for their first attempt
}

// Condition is a condition of the source.
type Condition struct{ Type, Status, Severity, Reason, Message string }

// Adapter is the state of the adapter's StatefulSet and of its pods.
type Adapter struct {
	Missing         bool // there is no StatefulSet
	Wanted          int  // spec.replicas
	Ready           int  // status.readyReplicas
	Restarts        int  // of the containers
	RestartedAt     time.Time
	LastTermination string // why the container ended the last time, such as OOMKilled
	Waiting         string // why the container or pod does not run, such as CrashLoopBackOff
}

// Answer is why.
type Answer struct {
	Sentence string     `json:"sentence"`
	Cause    Cause      `json:"cause"`
	Problem  bool       `json:"problem"` // false: it is as it should be
	Evidence []Evidence `json:"evidence"`
}

// Evidence is a fact that the sentence rests on.
type Evidence struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Cause is the stable name of a cause.
type Cause string

// The causes, in the order in which they are looked for.
const (
	NoSource        Cause = "NoSource"        // there is no such source
	SourceDeleted   Cause = "SourceDeleted"   // it is being deleted
	NotReady        Cause = "SourceNotReady"  // a condition is not True
	NoAdapter       Cause = "AdapterMissing"  // the adapter is not installed
	AdapterAtZero   Cause = "AdapterAtZero"   // it has no replica
	AdapterNotReady Cause = "AdapterNotReady" // no pod is ready, or it does not answer
	Unauthenticated Cause = "Unauthenticated" // the caller's token is not accepted
	Denied          Cause = "Denied"          // the caller may not read the schedules
	UnknownSource   Cause = "SourceUnknown"   // the adapter does not know the source yet
	APIFails        Cause = "APIFails"        // the schedule API refuses for another reason
	Suspended       Cause = "Suspended"       // spec.suspend

	Delivered  Cause = "Delivered" // and nothing is scheduled now
	Expired    Cause = "Expired"   // expiresAt passed
	GivenUp    Cause = "GivenUp"   // without a reason that is known, or not kept
	Deleted    Cause = "Deleted"   // cancelled
	NeverSeen  Cause = "NeverSeen" // nothing is known of it
	Unreadable Cause = "Unreadable"

	Unscaled         Cause = "WorkloadUnscaled" // the workload of spec.scale cannot be scaled, does not start, or crashes
	WorkloadStarts   Cause = "WorkloadStarts"   // it starts, or is about to
	WorkloadsInStart Cause = "WorkloadsInStart" // it waits for its turn among the starts
	WorkloadWorks    Cause = "WorkloadWorks"    // without a sink: the key is done when it was idle

	Waiting      Cause = "Waiting"      // its time has not come
	ExpiresFirst Cause = "ExpiresFirst" // expiresAt is before dueAt

	BehindItself   Cause = "BehindItself"    // an older occurrence of the key is in flight
	AtMaxInFlight  Cause = "AtMaxInFlight"   // all slots of the source, or of its namespace, are taken
	AtMaxPerSecond Cause = "AtMaxPerSecond"  // the rate limit of the source, or of its namespace
	ForCompany     Cause = "WaitsForCompany" // due, and waits within its slack for others
	Queued         Cause = "Queued"          // due, and its turn has not come

	SinkDown      Cause = "SinkDown"      // no connection
	SinkSlow      Cause = "SinkSlow"      // no answer within delivery.timeout
	SinkThrottles Cause = "SinkThrottles" // 429
	SinkDenies    Cause = "SinkDenies"    // 401, 403
	SinkNotFound  Cause = "SinkNotFound"  // 404
	SinkRefuses   Cause = "SinkRefuses"   // another 4xx, or a redirect
	SinkFails     Cause = "SinkFails"     // 5xx
	BadAnswer     Cause = "BadAnswer"     // 2xx with a wait that cannot be read

	InFlight Cause = "InFlight" // being delivered

	StorageFull Cause = "StorageFull" // 507, or no space for the outcome of a delivery
	Quota       Cause = "Quota"       // 429 to callers

	Idle    Cause = "Idle"    // nothing waits
	Healthy Cause = "Healthy" // keys wait for their time
)
