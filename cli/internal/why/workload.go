package why

import (
	"fmt"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// The states of a workload.
const (
	asleep   = "Asleep"
	starting = "Starting"
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
	a.add("it cannot be scaled", s.Reason+after(": ", s.Message))
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
	cannot := "cannot be scaled"
	if reason == "StartTimeout" {
		cannot = "does not start"
	}
	return a.say(Unscaled, false, "%s because %s %s (%s): %s", what, f.Workload(), cannot, reason, sentence(message))
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
		return a.say(WorkloadStarts, true, "%s: %s is starting%s%s.", what, f.Workload(), Since(f.Now, s), limit)
	case s.State == asleep && late < wakes:
		return a.say(WorkloadStarts, true, "%s: %s is asleep and is woken now.", what, f.Workload())
	case s.State == asleep:
		return a.say(WorkloadsInStart, late < time.Minute, "%s because %s is asleep and waits for its turn among the starts "+
			"(max-starts and max-starts-of-all of %s).", what, f.Workload(), configMap)
	}
	return nil
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
