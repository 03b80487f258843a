package why

import (
	"fmt"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// The states of a workload.
const (
	asleep   = "Asleep"
	starting = "Starting"
	awake    = "Awake"
)

// wakes is how long a workload may sleep after a key became due without waiting for its turn.
const wakes = 2 * time.Second

// Scale is the newest known state of the source's workload, nil if there is none.
func (f *Facts) Scale() *sdk.Scale {
	switch {
	case f.Counts != nil && f.Counts.Scale != nil:
		return f.Counts.Scale
	case f.Source != nil && f.Source.Workload != nil:
		return f.Source.Workload.Status
	}
	return nil
}

// Workload names the source's workload, such as Deployment websites.
func (f *Facts) Workload() string {
	w := f.Source.workload()
	if w.Name == "" {
		return "the workload"
	}
	return w.Kind + " " + w.Name
}

// Since is since when the state lasts, as a part of a sentence.
func Since(now time.Time, s *sdk.Scale) string {
	if s.Since == nil {
		return ""
	}
	return ", since " + Short(max(0, now.Sub(*s.Since)).Round(100*time.Millisecond))
}

// workload adds the state of the workload to the evidence.
func (a *answer) workload(f *Facts) {
	s := f.Scale()
	if s == nil {
		return
	}
	if s.State != "" {
		a.add("workload", f.Workload()+": "+s.State+Since(f.Now, s))
	}
	if s.Starts > 0 {
		a.add("its starts", fmt.Sprint(s.Starts)+after(", the last one took ", s.LastStart))
	}
	if s.Reason != "" {
		a.add("it "+Fault(s.Reason), s.Reason+after(": ", s.Message))
		a.add("next step", f.Source.workload().nextStep(f.Namespace, s.Reason))
	}
}

// Fault is a reason of the condition Scaled as words that follow the name of the workload.
func Fault(reason string) string {
	switch reason {
	case "StartTimeout":
		return "does not start"
	case "Crashed":
		return "crashes"
	case "NoMetrics":
		return "does not say whether it works"
	}
	return "cannot be scaled"
}

// nextStep is what to do about a reason of a source without a sink, "" if the message says that.
func (w Workload) nextStep(namespace, reason string) string {
	if !w.Sinkless {
		return ""
	}
	switch reason {
	case "Crashed":
		return fmt.Sprintf("read what it said: kubectl logs -n %s %s/%s --all-containers --previous", namespace, strings.ToLower(w.Kind), w.Name)
	case "StartTimeout":
		return fmt.Sprintf("look at its pods, and its readiness: kubectl describe pods -n %s", namespace)
	case "NoMetrics":
		return fmt.Sprintf("correct port and path of spec.scale.busy, or grant the right: kubectl auth can-i get /metrics --as=system:serviceaccount:%s:%s; "+
			"without spec.scale.busy the workload is idle when no watched object changes", namespace, w.Account)
	case "Forbidden":
		return fmt.Sprintf("grant it to ServiceAccount %s: create --observe with --dry-run prints the Role", w.Account)
	}
	return ""
}

// Works reports whether the workload of a source without a sink is at it. Its keys stay due until it was idle.
func (s *Source) Works(now *sdk.Scale) bool {
	return s.Sinkless() && now != nil && now.Reason == "" && (now.State == starting || now.State == awake)
}

// Sinkless reports whether the source has no sink.
func (s *Source) Sinkless() bool { return s.workload().Sinkless }

// Sink says where the source delivers to, "" if that is not known.
func (s *Source) Sink() string {
	if w := s.workload(); w.Sinkless {
		return fmt.Sprintf("none: it wakes %s %s", w.Kind, w.Name)
	}
	return s.SinkURI
}

// unable says what a source cannot do whose workload has a fault.
func (s *Source) unable() string {
	if s.workload().Mode == "Observe" {
		return "cannot observe its workload"
	}
	return "cannot wake its workload, or let it sleep,"
}

// unscaled: can the workload not be scaled? The condition says what only the controller knows.
func (a *answer) unscaled(f *Facts, what string) *answer {
	reason, message := "", ""
	if s := f.Scale(); s != nil {
		reason, message = s.Reason, s.Message
	}
	if c := f.condition("Scaled"); reason == "" && c != nil && c.Status == "False" && (f.Counts == nil || f.Counts.Scale == nil || c.Reason == "KnativeService") {
		reason, message = c.Reason, c.Message
	}
	if reason == "" {
		return nil
	}
	if f.Source.Sinkless() && f.Key != "" {
		what += " and not done"
	}
	fault := Fault(reason)
	if reason == "Forbidden" && f.Source.workload().Mode == "Observe" {
		fault = "cannot be looked at"
	}
	return a.say(Unscaled, false, "%s because %s %s (%s): %s", what, f.Workload(), fault, reason, sentence(message))
}

// wake: do due keys wait for the workload to be awake? What says which keys.
func (a *answer) wake(f *Facts, late time.Duration, what string) *answer {
	if unscaled := a.unscaled(f, what); unscaled != nil {
		return unscaled
	}
	s := f.Scale()
	if s == nil || f.Source.workload().Mode == "Observe" {
		return nil
	}
	switch {
	case s.State == starting:
		limit := ""
		if w := f.Source.workload(); w.StartTimeout > 0 {
			limit = fmt.Sprintf(" (startTimeout is %s)", Short(w.StartTimeout))
		}
		return a.say(WorkloadStarts, true, "%s%s: %s is starting%s%s.", what, f.Source.untilIdle(), f.Workload(), Since(f.Now, s), limit)
	case f.Source.Works(s):
		return a.say(WorkloadWorks, true, "%s%s: %s is awake%s.", what, f.Source.untilIdle(), f.Workload(), Since(f.Now, s))
	case s.State == asleep && late < wakes:
		return a.say(WorkloadStarts, true, "%s: %s is asleep and is woken now.", what, f.Workload())
	case s.State == asleep:
		return a.say(WorkloadsInStart, late < time.Minute, "%s because %s is asleep and waits for its turn among the starts "+
			"(max-starts and max-starts-of-all of %s).", what, f.Workload(), configMap)
	}
	return nil
}

// untilIdle says when a key of a source without a sink is done.
func (s *Source) untilIdle() string {
	w := s.workload()
	if !w.Sinkless {
		return ""
	}
	return fmt.Sprintf(", and done when the workload was idle%s", after(" for ", known(w.Cooldown)))
}

// workload is what is known of the workload of a source that may be unknown.
func (s *Source) workload() Workload {
	if s == nil || s.Workload == nil {
		return Workload{}
	}
	return *s.Workload
}

// sleeps says that the workload is asleep until a key is due.
func sleeps(f *Facts) string {
	if s := f.Scale(); s != nil && s.State == asleep {
		return "; " + f.Workload() + " is asleep until then"
	}
	return ""
}
