package why

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

var now = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return now.Add(d) }

// ready is a source that is Ready, with the changes of the case.
func ready(change func(*Source)) *Source {
	s := &Source{
		Conditions: []Condition{{Type: "Ready", Status: "True"}, {Type: "Deployed", Status: "True"}},
		SinkURI:    "http://sink.ops", Timeout: 10 * time.Minute, MaxInFlight: 100, MaxPending: 1000,
	}
	if change != nil {
		change(s)
	}
	return s
}

func unready(conditions ...Condition) *Source {
	return ready(func(s *Source) { s.Conditions = append([]Condition{{Type: "Ready", Status: "False"}}, conditions...) })
}

func failure(status int, text string) *sdk.Failure {
	return &sdk.Failure{At: at(-time.Minute), Status: status, Error: text}
}

// retrying is a key between two attempts.
func retrying(status int, text string) *sdk.Schedule {
	return &sdk.Schedule{Key: "k", State: "due", DueAt: at(-time.Hour), Tries: 3, Attempt: 3, NextAttemptAt: at(90 * time.Second), LastFailure: failure(status, text)}
}

// recurring is a key that waits, with a calendar.
func recurring(cron, zone string, jitter float64, reason string) *sdk.Schedule {
	k := &sdk.Schedule{State: "waiting", DueAt: at(5 * time.Hour), Reason: reason}
	k.Cron, k.TimeZone, k.Jitter = cron, zone, jitter
	return k
}

func letter(status int, text string) *sdk.DeadLetter {
	return &sdk.DeadLetter{Key: "k", At: at(-time.Hour), DueAt: at(-2 * time.Hour), Attempts: 4, Status: status, Error: text}
}

func was(result string, status int) sdk.History {
	return past(sdk.PastAttempt{At: at(-time.Hour), Result: result, Status: status, Attempt: 1, Duration: time.Second})
}

func past(items ...sdk.PastAttempt) sdk.History { return sdk.History{Items: items} }

// busy are counts with due keys that no delivery has begun of.
func busy(change func(*sdk.Counts)) *sdk.Counts {
	c := &sdk.Counts{Pending: 500, Due: 300, InFlight: 7, OldestDueAt: at(-time.Minute), NextDueAt: at(-time.Minute)}
	if change != nil {
		change(c)
	}
	return c
}

// ranked are counts with due keys of each priority.
func ranked(low, normal, high int) *sdk.Counts {
	return busy(func(c *sdk.Counts) {
		c.Due = low + normal + high
		c.Priorities = map[sdk.Priority]sdk.PriorityCounts{
			sdk.LowPriority: {Pending: low, Due: low}, sdk.NormalPriority: {Pending: normal + 5, Due: normal}, sdk.HighPriority: {Pending: high, Due: high},
		}
	})
}

// scaled is a source with a workload.
func scaled(change func(*Workload), also func(*Source)) *Source {
	return ready(func(s *Source) {
		s.Workload = &Workload{Kind: "Deployment", Name: "websites", Mode: "Auto", StartTimeout: 2 * time.Minute}
		if change != nil {
			change(s.Workload)
		}
		if also != nil {
			also(s)
		}
	})
}

// alone is a source without a sink.
func alone(change func(*Workload)) *Source {
	return scaled(func(w *Workload) {
		w.Sinkless, w.Cooldown, w.Account = true, 10*time.Second, "operator"
		if change != nil {
			change(w)
		}
	}, func(s *Source) { s.SinkURI = "" })
}

// scaling are counts of a source whose workload has been in a state for so long.
func scaling(state string, since time.Duration, reason, message string) *sdk.Counts {
	return &sdk.Counts{Scale: &sdk.Scale{State: state, Since: new(at(-since)), Starts: 3, LastStart: "1.3s", Reason: reason, Message: message}}
}

var (
	running = &Adapter{Wanted: 1, Ready: 1}
	slow    = "dispatch error: the delivery timeout passed"
	down    = "dispatch error: dial tcp 10.0.0.1:80: connect: connection refused"
)

var cases = map[string]struct {
	facts   Facts
	cause   Cause
	healthy bool
	says    string // a part of the sentence
}{
	"no source":        {Facts{Missing: true, Adapter: &Adapter{Missing: true}}, NoSource, false, "There is no RescheduleSource s in namespace ops."},
	"being deleted":    {Facts{Source: ready(func(s *Source) { s.Deleting = true })}, SourceDeleted, false, "being deleted"},
	"no sink":          {Facts{Source: unready(Condition{"Deployed", "Unknown", "", "AdapterNotReady", "No pod"}, Condition{"SinkProvided", "False", "", "NotFound", "services \"x\" not found"})}, NotReady, false, "SinkProvided is False (NotFound): services \"x\" not found."},
	"no memory":        {Facts{Source: unready(Condition{"Addressable", "False", "", "NoMemory", "all RescheduleSources together have 64.0 of 64 MiB of memory"})}, NotReady, false, "Addressable is False (NoMemory): all RescheduleSources together have 64.0 of 64 MiB of memory."},
	"info is ready":    {Facts{Source: ready(func(s *Source) { s.Conditions = append(s.Conditions, Condition{"Limited", "False", "Info", "", ""}) })}, Healthy, true, "Nothing is known"},
	"info is no cause": {Facts{Source: unready(Condition{"Delivering", "False", "Info", "DeliveryFailing", "x"}, Condition{"SinkProvided", "False", "", "NotFound", "y"})}, NotReady, false, "SinkProvided is False"},
	"not reconciled":   {Facts{Source: unready()}, NotReady, false, "Source s is not Ready."},

	"not installed, by the condition": {Facts{Source: unready(Condition{"Deployed", "False", "", "AdapterNotInstalled", "There is none."})}, NoAdapter, false, "There is none."},
	"at zero, by the condition":       {Facts{Source: unready(Condition{"Deployed", "Unknown", "", "AdapterScalingUp", "no replicas yet"})}, AdapterAtZero, false, "no replicas yet."},
	"not installed":                   {Facts{Source: ready(nil), Adapter: &Adapter{Missing: true}}, NoAdapter, false, "not installed"},
	"at zero":                         {Facts{Source: unready(Condition{"Deployed", "Unknown", "", "AdapterScalingUp", ""}), Adapter: &Adapter{}}, AdapterAtZero, false, "0 replicas"},
	"restarting":                      {Facts{Source: ready(nil), Adapter: &Adapter{Wanted: 1, Restarts: 3, LastTermination: "OOMKilled"}}, AdapterNotReady, false, "3 restarts so far, OOMKilled"},
	"not ready":                       {Facts{Source: ready(nil), Adapter: &Adapter{Wanted: 1, Waiting: "ImagePullBackOff"}}, AdapterNotReady, false, "ready: ImagePullBackOff."},
	"no answer":                       {Facts{Source: ready(nil), Refusal: &Refusal{Detail: "connection refused"}}, AdapterNotReady, false, "does not answer: connection refused."},

	"wrong token":    {Facts{Source: ready(nil), Adapter: running, Refusal: &Refusal{401, "unauthenticated", "the token expired"}}, Unauthenticated, false, "the token expired."},
	"no token":       {Facts{Source: ready(nil), Adapter: running, Refusal: &Refusal{0, noToken, "requesting a token of service account ops/default: not found"}}, Unauthenticated, false, "There is no token to call the schedule API with: requesting"},
	"no rights":      {Facts{Source: ready(nil), Adapter: running, Refusal: &Refusal{403, "permission_denied", "ask"}}, Denied, false, "may not read"},
	"not yet known":  {Facts{Source: ready(nil), Adapter: running, Refusal: &Refusal{404, "not_found", "no source"}}, UnknownSource, false, "does not know source s"},
	"unknown":        {Facts{Refusal: &Refusal{404, "not_found", "no source"}}, NoSource, false, "has no source s in namespace"},
	"another server": {Facts{Source: ready(nil), Refusal: &Refusal{404, "", "404 page not found"}}, APIFails, false, "leads to another server: 404 page not found."},
	"disk, answered": {Facts{Source: ready(nil), Refusal: &Refusal{507, "storage_full", "full"}}, StorageFull, false, "disk is full"},
	"another answer": {Facts{Source: ready(nil), Refusal: &Refusal{405, "method_not_allowed", "no"}}, APIFails, false, "refuses to answer: no."},

	"suspended":           {Facts{Source: ready(func(s *Source) { s.Suspended = true }), Counts: busy(nil)}, Suspended, false, "300 keys are due"},
	"suspended, key due":  {Facts{Source: ready(func(s *Source) { s.Suspended = true }), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Hour)}}, Suspended, false, "Key \"k\" is not delivered because the source is suspended"},
	"suspended, key gone": {Facts{Source: ready(func(s *Source) { s.Suspended = true }), Key: "k", History: was("expired", 0)}, Expired, false, "expiresAt had passed"},

	"delivered":                       {Facts{Key: "k", History: was("delivered", 204)}, Delivered, true, "delivered 1h0m ago (the sink answered 204)"},
	"expired":                         {Facts{Key: "k", History: was("expired", 0)}, Expired, false, "dropped 1h0m ago"},
	"cancelled":                       {Facts{Key: "k", History: was("deleted", 0)}, Deleted, true, "cancelled 1h0m ago"},
	"cancelled, retrying":             {Facts{Key: "k", History: was("retrying", 503)}, Deleted, true, "cancelled after its last attempt"},
	"dropped":                         {Facts{Key: "k", History: was("dropped", 400)}, SinkRefuses, false, "the sink answered 400 Bad Request, and its event was dropped"},
	"dropped, no answer":              {Facts{Key: "k", History: was("dropped", 0)}, GivenUp, false, "did not answer"},
	"to the letter sink":              {Facts{Key: "k", History: was("dead_lettered", 403)}, SinkDenies, false, "sent to the dead letter sink"},
	"kept letter":                     {Facts{Key: "k", DeadLetter: letter(400, ""), History: was("kept", 400)}, SinkRefuses, false, "after 4 attempts, because the sink answered 400 Bad Request; its event is kept"},
	"letter, then well":               {Facts{Key: "k", DeadLetter: letter(400, ""), History: past(sdk.PastAttempt{At: at(-time.Minute), Result: "delivered", Status: 200})}, Delivered, true, "1m0s ago"},
	"letter, then expired":            {Facts{Key: "k", DeadLetter: letter(400, ""), History: past(sdk.PastAttempt{At: at(-time.Minute), Result: "expired"})}, Expired, false, "expiresAt had passed"},
	"letter, then deleted":            {Facts{Key: "k", DeadLetter: letter(400, ""), History: past(sdk.PastAttempt{At: at(-time.Minute), Result: "deleted"})}, Deleted, true, "was cancelled"},
	"expires before the next attempt": {Facts{Key: "k", Record: func() *sdk.Schedule { r := retrying(503, ""); r.ExpiresAt = at(time.Minute); return r }()}, ExpiresFirst, false, "will not be tried again"},
	"well, then letter":               {Facts{Key: "k", DeadLetter: letter(400, ""), History: past(sdk.PastAttempt{At: at(-2 * time.Hour), Result: "delivered", Status: 200})}, SinkRefuses, false, "was given up"},
	"never seen":                      {Facts{Key: "k", History: sdk.History{Since: at(-2 * time.Hour)}}, NeverSeen, false, "no outcome of it is known from the last 2h0m: it was never"},
	"unreadable":                      {Facts{Key: "k", Measured: Measured{Unreadable: 2}}, Unreadable, false, "2 records that it cannot read"},
	"refused, disk nearly full":       {Facts{Key: "k", Measured: Measured{QuotaRefused: map[string]int64{"disk": 1}}}, StorageFull, false, "1 change was refused with 507 since the adapter started because its disk was full, or nearly full"},
	"refused by a quota":              {Facts{Key: "k", Measured: Measured{QuotaRefused: map[string]int64{"limits.maxBytes": 3, "max-pending": 0}}}, Quota, false, "3 changes were refused with 429 since the adapter started because of the quota limits.maxBytes"},
	"refused, disk":                   {Facts{Key: "k", Measured: Measured{StorageFull: true}}, StorageFull, false, "Key \"k\" is not scheduled. The adapter's disk is full"},

	"held, being deleted": {Facts{Source: scaled(func(w *Workload) { w.Held = true }, func(s *Source) { s.Deleting = true })}, SourceDeleted, false,
		"It waits until the adapter has scaled Deployment websites up, for 5 minutes at most."},
	"due, starting": {Facts{Source: scaled(nil, nil), Counts: scaling("Starting", 800*time.Millisecond, "", ""), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}}, WorkloadStarts, true,
		"Key \"k\" is due: Deployment websites is starting, since 800ms (startTimeout is 2m0s)."},
	"due, asleep for a moment": {Facts{Source: scaled(nil, nil), Counts: scaling("Asleep", time.Hour, "", ""), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}}, WorkloadStarts, true, "is asleep and is woken now"},
	"due, its turn": {Facts{Source: scaled(nil, nil), Counts: scaling("Asleep", time.Hour, "", ""), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-10 * time.Second)}}, WorkloadsInStart, true,
		"waits for its turn among the starts (max-starts and max-starts-of-all of ConfigMap config-reschedule)"},
	"due, forbidden": {Facts{Source: scaled(nil, nil), Counts: scaling("Asleep", time.Hour, "Forbidden", "ServiceAccount ops/default may not patch deployments/scale; check with kubectl auth can-i patch deployments"), Key: "k",
		Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}}, Unscaled, false, "cannot be scaled (Forbidden): ServiceAccount ops/default may not patch"},
	"due, observed": {Facts{Source: scaled(func(w *Workload) { w.Mode = "Observe" }, nil), Counts: scaling("Asleep", time.Hour, "", ""), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}}, Queued, true, "begins now"},
	"due, awake":    {Facts{Source: scaled(nil, nil), Counts: scaling("Awake", time.Hour, "", ""), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}}, Queued, true, "begins now"},
	"waits, asleep": {Facts{Source: scaled(nil, nil), Counts: scaling("Asleep", time.Hour, "", ""), Key: "k", Record: &sdk.Schedule{State: "waiting", DueAt: at(time.Hour)}}, Waiting, true,
		"its time comes in 1h0m; Deployment websites is asleep until then."},
	"source sleeps":         {Facts{Source: scaled(nil, nil), Counts: scaling("Asleep", time.Hour, "", "")}, Idle, true, "nothing is in flight; Deployment websites is asleep."},
	"source does not start": {Facts{Source: scaled(nil, nil), Counts: scaling("Starting", time.Hour, "StartTimeout", "no connection"), Record: retrying(0, down)}, Unscaled, false, "because Deployment websites does not start (StartTimeout): no connection."},
	"source starts": {Facts{Source: scaled(nil, nil), Counts: func() *sdk.Counts {
		c := scaling("Starting", time.Second, "", "")
		c.Due, c.OldestDueAt = 2, at(-time.Second)
		return c
	}()}, WorkloadStarts, true, "2 keys are due: Deployment websites is starting, since 1s"},
	"source, status only": {Facts{Source: scaled(func(w *Workload) { w.Status = &sdk.Scale{State: "Awake", Reason: "NoSuchTarget", Message: "none"} }, nil)}, Unscaled, false, "(NoSuchTarget): none."},
	"alone, due, awake": {Facts{Source: alone(nil), Counts: scaling("Awake", 4*time.Second, "", ""), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Hour)}}, WorkloadWorks, true,
		"Key \"k\" is due, and done when the workload was idle for 10s: Deployment websites is awake, since 4s."},
	"alone, due, starting": {Facts{Source: alone(nil), Counts: scaling("Starting", 4*time.Second, "", ""), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Hour)}}, WorkloadStarts, true,
		"Key \"k\" is due, and done when the workload was idle for 10s: Deployment websites is starting, since 4s (startTimeout is 2m0s)."},
	"alone, due, asleep": {Facts{Source: alone(nil), Counts: scaling("Asleep", time.Hour, "", ""), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}}, WorkloadStarts, true, "is asleep and is woken now"},
	"alone, observed":    {Facts{Source: alone(func(w *Workload) { w.Mode = "Observe" }), Counts: scaling("Awake", time.Hour, "", ""), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}}, Queued, true, "begins now"},
	"alone, failed": {Facts{Source: alone(nil), Counts: scaling("Starting", time.Hour, "StartTimeout", "The workload did not start within 2m0s."), Key: "k", Record: retrying(0, "The workload did not start within 2m0s. Container manager of pod p: ImagePullBackOff no such image")}, Unscaled, false,
		"3 attempts, the last of which failed because the workload did not start within 2m0s; Container manager of pod p: ImagePullBackOff no such image."},
	"alone, failed before": {Facts{Source: alone(nil), Counts: scaling("Awake", time.Second, "", ""), Record: retrying(0, "A container of the workload has ended; its pod has 3 restarts.")}, Unscaled, false,
		"Keys of source s fail (key \"k\") because a container of the workload has ended; its pod has 3 restarts."},
	"alone, failing": {Facts{Source: ready(func(s *Source) {
		s.Workload = alone(nil).Workload
		s.Conditions = append(s.Conditions, Condition{"Delivering", "False", "Info", "DeliveryFailing", "no"})
	})}, Unscaled, false, "No key of source s is done: no."},
	"alone, crashes":      {Facts{Source: alone(nil), Counts: scaling("Awake", time.Second, "Crashed", "A container of the workload has ended.")}, Unscaled, false, "because Deployment websites crashes (Crashed): A container of the workload has ended."},
	"alone, key, crashes": {Facts{Source: alone(nil), Counts: scaling("Awake", time.Second, "Crashed", "It has ended."), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}}, Unscaled, false, "Key \"k\" is due and not done because Deployment websites crashes"},
	"alone, no metrics":   {Facts{Source: alone(nil), Counts: scaling("Starting", time.Second, "NoMetrics", "none")}, Unscaled, false, "because Deployment websites does not say whether it works (NoMetrics): none."},
	"alone, forbidden": {Facts{Source: alone(func(w *Workload) { w.Mode = "Observe" }), Counts: scaling("Asleep", time.Second, "Forbidden", "service account ops/operator may not list pods")}, Unscaled, false,
		"Source s cannot observe its workload because Deployment websites cannot be looked at (Forbidden): service account ops/operator may not list pods."},
	"alone, done":     {Facts{Source: alone(nil), Key: "k", History: was("delivered", 0)}, Delivered, true, "Key \"k\" was done 1h0m ago, and nothing is scheduled now."},
	"alone, given up": {Facts{Source: alone(nil), Key: "k", History: was("dropped", 0)}, GivenUp, false, "because Deployment websites did not start or crashed, and its event was dropped."},
	"source, Knative scales": {Facts{Source: scaled(nil, func(s *Source) {
		s.Conditions = append(s.Conditions, Condition{"Scaled", "False", "Info", "KnativeService", "it scales by itself"})
	}), Counts: scaling("Awake", time.Hour, "", "")}, Unscaled, false, "(KnativeService): it scales by itself."},
	"source, an old condition": {Facts{Source: scaled(nil, func(s *Source) {
		s.Conditions = append(s.Conditions, Condition{"Scaled", "False", "Info", "Forbidden", "no"})
	}), Counts: scaling("Awake", time.Hour, "", "")}, Idle, true, "Nothing waits"},

	"waiting": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "waiting", DueAt: at(5 * time.Minute), Reason: "later"}}, Waiting, true, "comes in 5m0s (reason: \"later\")"},
	"waits, by a calendar": {Facts{Source: ready(nil), Key: "k", Record: recurring("0 3 * * *", "Europe/Berlin", 0.1, "nightly")}, Waiting, true,
		"comes in 5h0m (calendar: 0 3 * * * in Europe/Berlin, jitter 0.1; reason: \"nightly\")"},
	"waits, by a calendar in UTC": {Facts{Source: ready(nil), Key: "k", Record: recurring("@daily", "", 0, "")}, Waiting, true, "(calendar: @daily in UTC)."},
	"waits, and was given up": {Facts{Key: "k", Record: &sdk.Schedule{State: "waiting", DueAt: at(time.Hour)}, DeadLetter: letter(400, "")}, Waiting, true,
		"its time comes in 1h0m; an event of it was given up 1h0m ago because the sink answered 400 Bad Request, and is kept as a dead letter."},
	"expires first": {Facts{Key: "k", Record: &sdk.Schedule{State: "waiting", DueAt: at(time.Hour), ExpiresAt: at(time.Minute)}}, ExpiresFirst, false, "never be delivered"},
	"in flight":     {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "inFlight", InFlight: true, DueAt: at(-time.Second)}}, InFlight, true, "delivery.timeout is 10m0s"},
	"in flight, long": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "inFlight", InFlight: true, DueAt: at(-time.Hour)}, StartedAt: at(-6 * time.Minute)}, SinkSlow, false,
		"the delivery began 6m0s ago, and delivery.timeout is 10m0s."},
	"in flight after a wait": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "inFlight", InFlight: true, DueAt: at(-time.Hour)}, StartedAt: at(-time.Minute)}, InFlight, true,
		"the delivery began 1m0s ago"},
	"in flight, waited": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "inFlight", InFlight: true, DueAt: at(-time.Hour)}}, InFlight, false,
		"it was due 1h0m ago, and its delivery began late, at most 10m0s ago"},
	"in flight, since when": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "inFlight", InFlight: true, DueAt: at(-6 * time.Minute)}}, InFlight, false,
		"it was due 6m0s ago, and its delivery began late or the sink is slow (delivery.timeout is 10m0s)."},
	"in flight, timeout unknown": {Facts{Key: "k", Record: &sdk.Schedule{State: "inFlight", InFlight: true, DueAt: at(-6 * time.Minute)}}, InFlight, false,
		"it was due 6m0s ago, and its delivery began late or the sink is slow."},
	"in flight, again": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "inFlight", InFlight: true, DueAt: at(-time.Minute), Tries: 2, LastFailure: failure(500, "")}}, SinkFails, false,
		"attempt 2; the attempt before failed because the sink answered 500"},
	"behind itself": {Facts{Key: "k", Record: &sdk.Schedule{State: "due", InFlight: true, DueAt: at(-time.Minute)}}, BehindItself, true, "runs again"},

	"sink down":      {Facts{Key: "k", Record: retrying(0, down)}, SinkDown, false, "next attempt in 1m30s: after 3 attempts, the last of which failed because the sink cannot be reached: dial tcp 10.0.0.1:80: connect: connection refused."},
	"sink hangs up":  {Facts{Key: "k", Record: retrying(0, "dispatch error: EOF")}, SinkDown, false, "because the sink closed the connection without an answer."},
	"no TLS there":   {Facts{Key: "k", Record: retrying(0, "dispatch error: tls: first record does not look like a TLS handshake")}, SinkDown, false, "because TLS failed: the port of the sink speaks no TLS, but its URI begins with https."},
	"TLS fails":      {Facts{Key: "k", Record: retrying(0, "dispatch error: tls: failed to verify certificate: x509: certificate signed by unknown authority")}, SinkDown, false, "because TLS with the sink failed: tls: failed to verify"},
	"redirect":       {Facts{Key: "k", DeadLetter: letter(302, ""), History: was("kept", 302)}, SinkRefuses, false, "the sink answered 302 Found: redirects are not followed; its event is kept"},
	"redirect, gone": {Facts{Key: "k", History: was("dropped", 302)}, SinkRefuses, false, "the sink answered 302 Found: redirects are not followed, and its event was dropped"},
	"tried at once":  {Facts{Key: "k", Record: func() *sdk.Schedule { r := retrying(503, ""); r.NextAttemptAt = at(time.Millisecond); return r }()}, SinkFails, false, "waits for its next attempt in less than 1s: after"},
	"sink slow":      {Facts{Source: ready(nil), Key: "k", Record: retrying(0, slow)}, SinkSlow, false, "within delivery.timeout (10m0s)"},
	"gateway":        {Facts{Key: "k", Record: retrying(504, "")}, SinkSlow, false, "too slow"},
	"bad answer": {Facts{Key: "k", Record: func() *sdk.Schedule {
		r := retrying(204, "bad_answer")
		r.LastFailure.Detail = `Reschedule-After: "7x" is not a duration`
		return r
	}()}, BadAnswer, false, `failed because the sink answered 204 No Content with a wait that cannot be read: Reschedule-After: "7x" is not a duration.`},
	"bad, gone":   {Facts{Key: "k", History: was("dropped", 200)}, BadAnswer, false, "answered 200 OK with a wait that cannot be read, and its event was dropped"},
	"throttled":   {Facts{Key: "k", Record: retrying(429, "")}, SinkThrottles, false, "fewer deliveries"},
	"sink denies": {Facts{Key: "k", Record: retrying(401, "")}, SinkDenies, false, "the token or the identity"},
	"not found":   {Facts{Key: "k", Record: retrying(404, "")}, SinkNotFound, false, "no handler"},
	"sink fails":  {Facts{Key: "k", Record: retrying(503, "")}, SinkFails, false, "503 Service Unavailable"},

	"due now":             {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}}, Queued, true, "begins now"},
	"for company":         {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute), CompanyUntil: at(9 * time.Minute)}}, ForCompany, true, "Key \"k\" is due and waits for company until " + at(9*time.Minute).Local().Format("15:04") + ", in 9m0s."},
	"source, for company": {Facts{Source: ready(nil), Counts: busy(func(c *sdk.Counts) { c.CompanyUntil = at(9 * time.Minute) })}, ForCompany, true, "is healthy and waits for company until"},
	"queued":              {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Ahead: &Ahead{3, false}}, Queued, false, "due for 1m0s and no delivery of it has begun; 3 keys are before it"},
	"queued, low": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", Terms: sdk.Terms{Priority: sdk.LowPriority}, DueAt: at(-time.Minute)}, Counts: ranked(0, 300, 10), Ahead: &Ahead{3, false}}, Queued, false,
		"begun; 310 keys of higher priority and 3 keys of its own are before it"},
	"queued, normal":     {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Counts: ranked(300, 5, 1), Ahead: &Ahead{}}, Queued, false, "begun; 1 key of higher priority is before it"},
	"queued, high":       {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", Terms: sdk.Terms{Priority: sdk.HighPriority}, DueAt: at(-time.Minute)}, Counts: ranked(300, 5, 2), Ahead: &Ahead{1, false}}, Queued, false, "begun; 1 key is before it"},
	"queued, some retry": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Counts: func() *sdk.Counts { c := ranked(2, 0, 9); c.Retrying = 4; return c }()}, Queued, false, "begun; up to 7 keys of higher priority are before it"},
	"queued again":       {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Hour), Tries: 1, NextAttemptAt: at(-time.Minute)}}, Queued, false, "waited for its next attempt for 1m0s longer than planned"},
	"all slots":          {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Counts: busy(func(c *sdk.Counts) { c.InFlight = 100 }), Ahead: &Ahead{1000, true}}, AtMaxInFlight, false, "all 100 slots of limits.maxInFlight are taken; at least 1000 keys are before it"},
	"one slot":           {Facts{Source: ready(func(s *Source) { s.MaxInFlight = 1 }), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}, Counts: busy(nil)}, AtMaxInFlight, true, "because the only slot of limits.maxInFlight is taken."},
	"rate limited":       {Facts{Source: ready(func(s *Source) { s.MaxPerSecond = 5 }), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Counts: busy(nil)}, AtMaxPerSecond, false, "only 5 deliveries"},
	"one a second":       {Facts{Source: ready(func(s *Source) { s.MaxPerSecond = 1 }), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}, Counts: busy(nil)}, AtMaxPerSecond, true, "lets only 1 delivery start a second."},
	"last of a rate": {Facts{Source: ready(func(s *Source) { s.MaxPerSecond = 1 }), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Counts: busy(func(c *sdk.Counts) { c.Due = 1 })},
		AtMaxPerSecond, false, "limits.maxPerSecond"},
	"below the rate": {Facts{Source: ready(func(s *Source) { s.MaxPerSecond = 500 }), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Counts: busy(nil), Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxPerSecond: 2000, Queued: 300}}},
		Queued, false, "the adapter may be at its own limit"},
	"due now, no metrics": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}}, Queued, true, "begins now, unless it is at its namespace's limits."},
	"due now, below all":  {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}, Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxInFlight: 2, InFlight: 1}}}, Queued, true, "begins now."},
	"namespace's slots, a key": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}, Counts: busy(nil), Ahead: &Ahead{3, false}, Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxInFlight: 2, InFlight: 2}}}, AtMaxInFlight, true,
		"because all 2 slots of max-in-flight of ConfigMap config-reschedule are taken, which all sources of namespace ops share; 3 keys are before it."},
	"namespace's slots, late": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Counts: busy(nil), Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxInFlight: 2, InFlight: 2}}}, AtMaxInFlight, false,
		"max-in-flight of ConfigMap"},
	"namespace's rate, a key": {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}, Counts: busy(nil), Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxPerSecond: 1, Queued: 20}}}, AtMaxPerSecond, true,
		"because max-per-second of ConfigMap config-reschedule lets only 1 delivery start a second, of all sources of namespace ops together."},
	"slots cut to the namespace's": {Facts{Source: ready(func(s *Source) { s.MaxInFlight = 2 }), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Counts: busy(nil), Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxInFlight: 2, InFlight: 1}}},
		AtMaxInFlight, false, "max-in-flight of ConfigMap"},
	"rate cut to the namespace's": {Facts{Source: ready(func(s *Source) { s.MaxPerSecond = 5 }), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Counts: busy(nil), Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxPerSecond: 5}}},
		AtMaxPerSecond, false, "max-per-second of ConfigMap"},
	"own slots below the namespace's": {Facts{Source: ready(func(s *Source) { s.MaxInFlight = 7 }), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Minute)}, Counts: busy(nil), Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxInFlight: 20, InFlight: 7}}},
		AtMaxInFlight, false, "all 7 slots of limits.maxInFlight are taken."},

	"source idle":                 {Facts{Source: ready(nil), Adapter: running, Counts: &sdk.Counts{}}, Idle, true, "Nothing waits"},
	"source healthy":              {Facts{Source: ready(nil), Counts: &sdk.Counts{Pending: 2, NextDueAt: at(time.Hour)}}, Healthy, true, "2 keys wait, the next one is due in 1h0m"},
	"source, all due":             {Facts{Source: ready(nil), Counts: &sdk.Counts{Pending: 3, Due: 3, OldestDueAt: at(-time.Second)}, Measured: Measured{NamespaceLimits: &NamespaceLimits{}}}, Queued, true, "is healthy: 3 keys have just become due."},
	"source, all due, no metrics": {Facts{Source: ready(nil), Counts: &sdk.Counts{Pending: 3, Due: 3, OldestDueAt: at(-time.Second)}}, Queued, true, "is healthy: 3 keys have just become due, unless it is at its namespace's limits."},
	"source, no metrics":          {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{Unmeasured: "x"}}, Idle, true, "Nothing waits"},
	"key, no metrics":             {Facts{Key: "k", Measured: Measured{Unmeasured: "x"}}, NeverSeen, false, "it was never scheduled, or refused by a quota or a full disk, or cancelled"},
	"source, all slots, now":      {Facts{Source: ready(nil), Counts: &sdk.Counts{Pending: 1, Due: 1, InFlight: 2, OldestDueAt: at(-time.Second)}, Measured: Measured{NamespaceLimits: &NamespaceLimits{}}}, Healthy, true, "2 deliveries are in flight, and 1 key has just become due."},
	"source delivers":             {Facts{Source: ready(nil), Counts: &sdk.Counts{InFlight: 1}}, Healthy, true, "1 delivery is in flight"},
	"source hangs": {Facts{Source: ready(nil), Counts: &sdk.Counts{InFlight: 100}, Record: &sdk.Schedule{Key: "k", State: "inFlight", DueAt: at(-time.Hour)}, StartedAt: at(-6 * time.Minute)}, SinkSlow, false,
		"Key \"k\" is being delivered and the sink has not answered: the delivery began 6m0s ago, and delivery.timeout is 10m0s."},
	"source hangs, and a backlog": {Facts{Source: ready(nil), Counts: busy(func(c *sdk.Counts) { c.InFlight = 100 }), Record: &sdk.Schedule{Key: "k", State: "inFlight", DueAt: at(-6 * time.Minute)}}, AtMaxInFlight, false,
		"300 keys are late"},
	"source hangs, since when": {Facts{Source: ready(nil), Counts: &sdk.Counts{InFlight: 100}, Record: &sdk.Schedule{Key: "k", State: "inFlight", DueAt: at(-6 * time.Minute)}}, InFlight, false,
		"began late or the sink is slow"},
	"source delivers a key": {Facts{Source: ready(nil), Counts: &sdk.Counts{InFlight: 1}, Record: &sdk.Schedule{Key: "k", State: "inFlight", DueAt: at(-time.Minute)}}, Healthy, true, "1 delivery is in flight"},
	"source, sink down":     {Facts{Source: ready(nil), Counts: busy(func(c *sdk.Counts) { c.Retrying = 300 }), Record: retrying(0, down)}, SinkDown, false, "(key \"k\" and 299 other keys)"},
	"source, failing": {Facts{Source: ready(func(s *Source) {
		s.Conditions = append(s.Conditions, Condition{"Delivering", "False", "Info", "DeliveryFailing", "status 500"})
	})}, SinkFails, false, "status 500."},
	"source, dead letters":       {Facts{Source: ready(nil), Counts: &sdk.Counts{DeadLetters: 1}, DeadLetter: letter(422, "")}, SinkRefuses, false, "has given up events"},
	"source full":                {Facts{Source: ready(nil), Counts: &sdk.Counts{Pending: 1000}}, Quota, false, "limits.maxPending (1000 keys)"},
	"source, bytes":              {Facts{Source: ready(func(s *Source) { s.MaxBytes = 1000 }), Measured: Measured{StoredBytes: 990}}, Quota, false, "990 of 1000 bytes"},
	"source, disk":               {Facts{Source: ready(nil), Measured: Measured{StorageFull: true}}, StorageFull, false, "refused with 507"},
	"source, deliveries paused":  {Facts{Source: ready(nil), Counts: busy(nil), Measured: Measured{StorageFull: true, Paused: true}}, StorageFull, false, "delivers nothing because the adapter's disk is full: it has no space for the outcome"},
	"due, deliveries paused":     {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "due", DueAt: at(-time.Second)}, Measured: Measured{Paused: true}}, StorageFull, false, "Key \"k\" is due and not delivered because the adapter's disk is full"},
	"waits, deliveries paused":   {Facts{Source: ready(nil), Key: "k", Record: &sdk.Schedule{State: "waiting", DueAt: at(time.Hour)}, Measured: Measured{Paused: true}}, Waiting, true, "comes in 1h0m"},
	"source, share of disk":      {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{NamespaceFull: true}}, StorageFull, false, "The adapter's disk is nearly full, and the namespace of source s holds a large part"},
	"source, past quota":         {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{QuotaRefused: map[string]int64{"max-pending": 3}}}, Idle, true, "Nothing waits"},
	"source, all slots":          {Facts{Source: ready(nil), Counts: busy(func(c *sdk.Counts) { c.InFlight = 100 })}, AtMaxInFlight, false, "300 keys are late, the oldest by 1m0s, because all 100 slots"},
	"source, rate limited":       {Facts{Source: ready(func(s *Source) { s.MaxPerSecond = 5 }), Counts: busy(nil)}, AtMaxPerSecond, false, "limits.maxPerSecond"},
	"source, queued":             {Facts{Counts: busy(nil)}, Queued, false, "the source may be suspended, or at its limits or its namespace's."},
	"source, queued, no metrics": {Facts{Source: ready(nil), Counts: busy(nil)}, Queued, false, "it may be at its namespace's limits, or the adapter at its own"},
	"source, backlog begins": {Facts{Source: ready(func(s *Source) { s.MaxPerSecond = 5 }), Counts: &sdk.Counts{Pending: 86, Due: 86, OldestDueAt: at(-time.Second)}}, AtMaxPerSecond, true,
		"86 keys are due and queued because limits.maxPerSecond lets only 5 deliveries start a second."},
	"source, backlog begins, slots": {Facts{Source: ready(nil), Counts: &sdk.Counts{Pending: 86, Due: 86, InFlight: 1, OldestDueAt: at(-time.Second)}, Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxInFlight: 1, InFlight: 1}}}, AtMaxInFlight, true,
		"86 keys are due and queued because the only slot of max-in-flight of ConfigMap config-reschedule is taken"},
	"source, backlog, dead letter": {Facts{Source: ready(func(s *Source) { s.MaxPerSecond = 5 }), Counts: &sdk.Counts{Pending: 86, Due: 86, DeadLetters: 1, OldestDueAt: at(-time.Second)}, DeadLetter: letter(422, "")}, SinkRefuses, false, "has given up events"},
	"namespace full": {Facts{Source: ready(nil), Counts: &sdk.Counts{Pending: 1, NextDueAt: at(time.Hour)}, Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxPending: 3, Keys: 3}}}, Quota, false,
		"The sources of namespace ops have together reached max-pending of ConfigMap config-reschedule (3 keys): new keys are refused with 429."},
	"namespace full, a key": {Facts{Source: ready(nil), Key: "k", Counts: &sdk.Counts{Pending: 1}, Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxPending: 3, Keys: 3}}}, Quota, false, "Key \"k\" is not scheduled. The sources of namespace ops"},
	"namespace full, cut":   {Facts{Source: ready(func(s *Source) { s.MaxPending = 3 }), Counts: &sdk.Counts{Pending: 3}, Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxPending: 3}}}, Quota, false, "max-pending of ConfigMap config-reschedule (3 keys)"},
	"namespace's bytes": {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxBytes: 1000, Bytes: 990}}}, Quota, false,
		"max-bytes of ConfigMap config-reschedule (990 of 1000 bytes): what grows is refused with 429."},
	"namespace below":        {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{NamespaceLimits: &NamespaceLimits{MaxPending: 3, Keys: 2, MaxBytes: 1000, Bytes: 900}}}, Idle, true, "Nothing waits"},
	"source full, in flight": {Facts{Source: ready(nil), Counts: &sdk.Counts{Pending: 0, InFlight: 1000}, Measured: Measured{StoredKeys: 1000}}, Quota, false, "limits.maxPending (1000 keys)"},
	"refused by a namespace": {Facts{Key: "k", Measured: Measured{QuotaRefused: map[string]int64{"max-pending": 2}}}, Quota, false, "because of the quota max-pending of ConfigMap config-reschedule, and"},
	"source, dropped": {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{Lost: Lost{Dropped: 3, DroppedAt: at(-2 * time.Minute)}}}, GivenUp, false,
		"Source s has dropped 3 events since the adapter started, the last one 2m0s ago: the sink refused them"},
	"source, dropped long ago": {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{Lost: Lost{Dropped: 1, DroppedAt: at(-2 * time.Hour)}}}, Idle, true,
		"Nothing waits at source s, and nothing is in flight; 1 event was dropped since the adapter started, the last one 2h0m ago."},
	"source, dropped, healthy": {Facts{Source: ready(nil), Counts: &sdk.Counts{Pending: 2, NextDueAt: at(time.Hour)}, Measured: Measured{Lost: Lost{Dropped: 2}}}, Healthy, true, "due in 1h0m; 2 events were dropped since the adapter started."},
	"source, to the letter sink": {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{Lost: Lost{DeadLettered: 3, DeadLetteredAt: at(-time.Minute)}}}, GivenUp, false,
		"has given up 3 events since the adapter started, the last one 1m0s ago: the sink refused them or their retries were used up, and they went to the dead letter sink."},
	"source, letters long ago": {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{Lost: Lost{DeadLettered: 3, DeadLetteredAt: at(-time.Hour)}}}, Idle, true, "nothing is in flight."},
	"letter sink refuses": {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{Lost: Lost{DeadLettered: 3, Waiting: 2, Refused: 5}}}, GivenUp, false,
		"The dead letter sink of source s refuses or does not answer (5 failed attempts since the adapter started): 2 events that were given up wait for it."},
	"letter sink refuses, after a restart": {Facts{Source: ready(nil), Counts: &sdk.Counts{}, Measured: Measured{Lost: Lost{Waiting: 51}}}, GivenUp, false,
		"The dead letter sink of source s has not got all events that were given up: 51 events wait for it."},
	"letter sink refuses, a key, after a restart": {Facts{Key: "k", Measured: Measured{Lost: Lost{Waiting: 51}}}, GivenUp, false,
		"Key \"k\" is not scheduled; 51 events that were given up wait for the dead letter sink, and one may be of this key."},
	"letter sink refuses, a key": {Facts{Key: "k", History: was("dead_lettered", 400), Measured: Measured{Lost: Lost{DeadLettered: 3, Waiting: 3, Refused: 5}}}, SinkRefuses, false,
		"and its event was sent to the dead letter sink, which refuses or does not answer: 3 events that were given up wait for it."},
	"letter sink refused": {Facts{Source: ready(nil), Counts: &sdk.Counts{DeadLetters: 1}, DeadLetter: letter(422, ""), Measured: Measured{Lost: Lost{DeadLettered: 1, Refused: 1}}}, SinkRefuses, false,
		"the sink answered 422 Unprocessable Entity; the dead letter sink refuses or does not answer."},
	"letter sink refused a key": {Facts{Key: "k", DeadLetter: letter(400, ""), History: was("dead_lettered", 400)}, SinkRefuses, false,
		"its event is kept as a dead letter, as the dead letter sink refused it or did not answer."},
}

// Each state that a source and a key can be in has its cause.
func TestExplain_Causes(t *testing.T) {
	t.Parallel()
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := c.facts
			f.Now, f.Namespace, f.Name = now, "ops", "s"
			a := Explain(f)
			if a.Cause != c.cause || a.Problem == c.healthy || !strings.Contains(a.Sentence, c.says) {
				t.Errorf("cause is %s (problem %t): %s\nwant %s: … %s …", a.Cause, a.Problem, a.Sentence, c.cause, c.says)
			}
			if strings.Count(a.Sentence, ". ") > 1 || !strings.HasSuffix(a.Sentence, ".") {
				t.Errorf("not one plain sentence: %s", a.Sentence)
			}
			if a.Evidence[0] != (Evidence{"source", "ops/s"}) {
				t.Errorf("evidence is %v, want the source first", a.Evidence)
			}
		})
	}
}

// Every cause that the package names has a case, so that none is dead.
func TestExplain_EveryCauseHasACase(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("facts.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, c := range cases {
		seen[string(c.cause)] = true
	}
	names := regexp.MustCompile(`(?m)^\t\w+ +Cause = "(\w+)"`).FindAllStringSubmatch(string(text), -1)
	if len(names) < 30 {
		t.Fatalf("%d causes found in facts.go, want all", len(names))
	}
	for _, m := range names {
		if !seen[m[1]] {
			t.Errorf("no case has the cause %s", m[1])
		}
	}
}

// The evidence about a key that waits has its runs before. The first attempt was called
// attempt 0 beside "attempts: 1".
func TestExplain_RunsOfAKeyThatWaits(t *testing.T) {
	t.Parallel()
	runs := []sdk.PastAttempt{{At: at(-time.Minute), Result: "retrying", Status: 503, Attempt: 1}, {At: at(-time.Hour), Result: "retrying", Status: 503}}
	a := Explain(Facts{Now: now, Key: "k", Record: &sdk.Schedule{State: "waiting", DueAt: at(time.Hour)}, History: past(runs...)})
	for _, want := range []Evidence{
		{"at 2026-11-22T02:59:00Z (1m0s ago)", "retrying after 1 failure in a row, status 503"}, {"at 2026-11-22T02:00:00Z (1h0m ago)", "retrying, status 503"},
	} {
		if !slices.Contains(a.Evidence, want) {
			t.Errorf("evidence is %v, want %v in it", a.Evidence, want)
		}
	}
}

// Each fault of a workload without a sink has its next step, and the evidence names no sink.
func TestExplain_NextStep(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"Crashed": "kubectl logs -n ops deployment/websites --all-containers --previous", "StartTimeout": "kubectl describe pods -n ops",
		"NoMetrics": "kubectl auth can-i get /metrics --as=system:serviceaccount:ops:operator", "Forbidden": "ServiceAccount operator: create --observe with --dry-run prints the Role",
	} {
		f := Facts{Now: now, Namespace: "ops", Name: "s", Source: alone(nil), Counts: scaling("Awake", time.Second, reason, "m"), Key: "k", Record: retrying(0, "it ended")}
		a := Explain(f)
		step := slices.IndexFunc(a.Evidence, func(e Evidence) bool { return e.Name == "next step" })
		if step < 0 || !strings.Contains(a.Evidence[step].Value, want) || !slices.Contains(a.Evidence, Evidence{"sink", "none: it wakes Deployment websites"}) {
			t.Errorf("%s: %v", reason, a.Evidence)
		}
		f.Source = scaled(nil, nil)
		if slices.ContainsFunc(Explain(f).Evidence, func(e Evidence) bool { return e.Name == "next step" }) {
			t.Errorf("%s: a source with a sink has a next step", reason)
		}
	}
}

// A hostile key or answer of a sink cannot write control characters to a terminal.
func TestExplain_NoControlCharacters(t *testing.T) {
	t.Parallel()
	const bad = "k\x1b[2J\nkey: good\u202e"
	r := retrying(0, bad)
	r.LastFailure.Detail, r.Reason, r.UID, r.Cron, r.TimeZone = bad, bad, bad, bad, bad
	for name, f := range map[string]Facts{
		"key":     {Key: bad, Record: r},
		"source":  {Record: r, Counts: &sdk.Counts{}},
		"refusal": {Refusal: &Refusal{Detail: bad}},
		"letter":  {Key: bad, DeadLetter: letter(0, bad)},
		"unseen":  {Key: bad, Measured: Measured{StorageFull: true}},
	} {
		f.Now = now
		a := Explain(f)
		texts := []string{a.Sentence}
		for _, e := range a.Evidence {
			texts = append(texts, e.Name, e.Value)
		}
		for _, text := range texts {
			if strings.ContainsAny(text, "\x1b\n\u202e") {
				t.Errorf("%s: control characters in %q", name, text)
			}
		}
	}
}

// The error of a call is a part of a sentence, without the words of Go's packages.
func TestCallError_IsPlain(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"no answer came in time":                     fmt.Errorf("x: %w", context.DeadlineExceeded),
		"it closed the connection without an answer": io.ErrUnexpectedEOF,
		"connection refused":                         errors.New("connection\nrefused"),
	} {
		if got := CallError(err); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
