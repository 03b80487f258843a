package why

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// overdue is how late a key may be before its lateness is a problem. A cold start of the
// sink does not count: the delivery has begun then.
const overdue = 5 * time.Second

// Explain answers why the key, or the source, is not delivered.
func Explain(f Facts) Answer {
	for _, question := range []func(*Facts) *answer{
		(*Facts).source, (*Facts).ready, (*Facts).adapter, (*Facts).refused, (*Facts).suspended,
	} {
		if a := question(&f); a != nil {
			return f.finish(a)
		}
	}
	switch {
	case f.Key == "":
		return f.finish(f.whole())
	case f.Record == nil:
		return f.finish(f.absent())
	}
	return f.finish(f.present())
}

// finish adds the key and the source to the evidence, and removes nil lists.
func (f *Facts) finish(a *answer) Answer {
	head := []Evidence{{"source", plain(f.Namespace + "/" + f.Name)}}
	if f.Key != "" {
		head = append(head, Evidence{"key", plain(f.Key)})
	}
	a.workload(f)
	a.Evidence = append(head, a.Evidence...)
	return a.Answer
}

// source: is there one?
func (f *Facts) source() *answer {
	switch {
	case f.Missing:
		return new(answer).say(NoSource, false, "There is no RescheduleSource %s in namespace %s.", f.Name, f.Namespace)
	case f.Source != nil && f.Source.Deleting:
		if f.Source.workload().Held {
			return new(answer).say(SourceDeleted, false, "Source %s is being deleted, and its schedules with it. It waits until the adapter has scaled %s up, for 5 minutes at most.", f.Name, f.Workload())
		}
		return new(answer).say(SourceDeleted, false, "Source %s is being deleted, and its schedules with it.", f.Name)
	}
	return nil
}

// ready: which condition is not True? Deployed is left to adapter, which knows more.
func (f *Facts) ready() *answer {
	if f.Source == nil || f.condition("Ready") == nil && len(f.Source.Conditions) == 0 {
		return nil
	}
	ready := f.condition("Ready")
	if ready != nil && ready.Status == "True" {
		return nil
	}
	a := new(answer)
	var worst *Condition
	for i, c := range f.Source.Conditions {
		if c.Type == "Ready" || c.Status == "True" || c.Severity != "" {
			continue
		}
		a.add("condition "+c.Type, c.Status+" "+c.Reason+": "+c.Message)
		if worst == nil || worst.Status != "False" && c.Status == "False" {
			worst = &f.Source.Conditions[i]
		}
	}
	if worst == nil {
		worst = ready
	}
	if worst == nil || worst.Type == "Deployed" && f.Adapter != nil {
		return nil
	}
	if worst.Type == "Deployed" {
		return a.say(deployed(worst.Reason), false, "Nothing is delivered because the adapter does not run: %s", sentence(worst.Message))
	}
	if worst == ready {
		return a.say(NotReady, false, "Source %s is not Ready%s.", f.Name, after(": ", strings.TrimSuffix(worst.Reason+" "+worst.Message, ".")))
	}
	return a.say(NotReady, false, "Source %s is not Ready because %s is %s (%s): %s", f.Name, worst.Type, worst.Status, worst.Reason, sentence(worst.Message))
}

// deployed is the cause behind the reason of the condition Deployed.
func deployed(reason string) Cause {
	switch reason {
	case "AdapterNotInstalled":
		return NoAdapter
	case "AdapterScalingUp":
		return AdapterAtZero
	}
	return AdapterNotReady
}

func (f *Facts) condition(name string) *Condition {
	if f.Source == nil {
		return nil
	}
	if i := slices.IndexFunc(f.Source.Conditions, func(c Condition) bool { return c.Type == name }); i >= 0 {
		return &f.Source.Conditions[i]
	}
	return nil
}

// sentence ends a text that was found with a full stop.
func sentence(text string) string {
	if text = plain(text); text == "" || strings.HasSuffix(text, ".") {
		return text
	}
	return text + "."
}

// adapter: does it run?
func (f *Facts) adapter() *answer {
	d := f.Adapter
	if d == nil {
		return nil
	}
	a := new(answer).number("replicas wanted", int64(d.Wanted)).number("replicas ready", int64(d.Ready))
	if d.Restarts > 0 {
		a.number("restarts", int64(d.Restarts)).time("last restart", f.Now, d.RestartedAt).add("last end", d.LastTermination)
	}
	a.add("pod waits", d.Waiting)
	switch {
	case d.Missing:
		return new(answer).say(NoAdapter, false, "Nothing is delivered because the adapter is not installed: there is no StatefulSet reschedule-adapter.")
	case d.Wanted == 0:
		return a.say(AdapterAtZero, false, "Nothing is delivered because the adapter has 0 replicas: the controller sets 1 while there is a source, so look whether it runs.")
	case d.Ready == 0 && d.Restarts > 0:
		reason := d.LastTermination
		if d.Waiting != "" {
			reason = d.Waiting
		}
		return a.say(AdapterNotReady, false, "Nothing is delivered because the adapter restarts: %s so far%s.", Plural(d.Restarts, "restart", "restarts"), after(", ", reason))
	case d.Ready == 0:
		return a.say(AdapterNotReady, false, "Nothing is delivered because no pod of the adapter is ready%s.", after(": ", d.Waiting))
	}
	return nil
}

// after is the text behind a mark, or nothing.
func after(mark, text string) string {
	if text = plain(text); text == "" {
		return ""
	}
	return mark + text
}

// refused: may the caller look?
func (f *Facts) refused() *answer {
	r := f.Refusal
	if r == nil {
		return nil
	}
	a := new(answer)
	if r.Status != 0 {
		a.add("answer of the schedule API", strings.TrimSpace(fmt.Sprintf("%d %s", r.Status, r.Code)))
	}
	a.add("detail", r.Detail)
	switch {
	case r.Code == noToken:
		return a.say(Unauthenticated, false, "There is no token to call the schedule API with: %s", sentence(r.Detail))
	case r.Status == 401:
		return a.say(Unauthenticated, false, "The schedule API does not accept your token: %s", sentence(r.Detail))
	case r.Status == 403:
		return a.say(Denied, false, "You may not read the schedules of %s: %s", f.Name, sentence(r.Detail))
	case r.Status == 0, r.Status >= 502 && r.Status <= 504:
		return a.say(AdapterNotReady, false, "The adapter does not answer: %s", sentence(r.Detail))
	case r.Code == "": // each refusal of the schedule API has one
		return a.say(APIFails, false, "The address of source %s leads to another server: %s", f.Name, sentence(r.Detail))
	case r.Status == 404 && f.Source == nil: // without a cluster nothing else knows sources
		return a.say(NoSource, false, "The adapter has no source %s in namespace %s.", f.Name, f.Namespace)
	case r.Status == 404:
		return a.say(UnknownSource, false, "The adapter does not know source %s yet: %s", f.Name, sentence(r.Detail))
	case r.Status == 507:
		return a.say(StorageFull, false, "The adapter's disk is full, so it refuses changes: %s", sentence(r.Detail))
	}
	return a.say(APIFails, false, "The schedule API refuses to answer: %s", sentence(r.Detail))
}

// suspended: an absent key is not absent because of it.
func (f *Facts) suspended() *answer {
	if f.Source == nil || !f.Source.Suspended || f.Key != "" && f.Record == nil {
		return nil
	}
	a := new(answer).add("spec.suspend", "true")
	if f.Key == "" {
		f.counts(a)
		waits := ""
		if f.Counts != nil && f.Counts.Due > 0 {
			waits = ": " + Plural(f.Counts.Due, "key is", "keys are") + " due and waiting for it to resume"
		}
		return a.say(Suspended, false, "Source %s is suspended, so it delivers nothing%s.", f.Name, waits)
	}
	f.record(a)
	if f.Record.State == "inFlight" {
		return nil
	}
	return a.say(Suspended, false, "Key %q is not delivered because the source is suspended (spec.suspend).", f.Key)
}

// counts adds the counts to the evidence.
func (f *Facts) counts(a *answer) {
	c := f.Counts
	if c == nil {
		return
	}
	a.add("keys", fmt.Sprintf("%d pending, %d due, %d retrying, %d in flight, %s", c.Pending, c.Due, c.Retrying, c.InFlight,
		Plural(c.DeadLetters, "dead letter", "dead letters")))
	a.add("by priority", Priorities(c))
	a.time("next due", f.Now, c.NextDueAt).time("oldest due", f.Now, c.OldestDueAt)
}

// whole answers about the source as a whole.
func (f *Facts) whole() *answer {
	a, c := new(answer), f.Counts
	f.counts(a)
	f.Lost.evidence(a, f.Now)
	if paused := f.paused(a, "Source "+f.Name+" delivers nothing"); paused != nil {
		return paused
	}
	if unscaled := a.unscaled(f, "Source "+f.Name+" "+f.Source.unable()); unscaled != nil {
		return unscaled
	}
	if r := f.Record; r != nil && r.LastFailure != nil {
		a.add("key in trouble", r.Key).add("attempts", fmt.Sprint(r.Tries)).time("next attempt", f.Now, r.NextAttemptAt)
		a.failure(f, r.LastFailure)
		n := ""
		if c != nil && c.Retrying > 1 {
			n = fmt.Sprintf(" and %s", Plural(c.Retrying-1, "other key", "other keys"))
		}
		what := "Deliveries"
		if f.Source.Sinkless() {
			what = "Keys"
		}
		return a.say(f.Source.cause(r.LastFailure), false, "%s of source %s fail (key %q%s) because %s.", what, f.Name, r.Key, n, f.failed(r.LastFailure))
	}
	if d := f.condition("Delivering"); d != nil && d.Status == "False" {
		a.add("condition Delivering", d.Reason+": "+d.Message)
		if f.Source.Sinkless() {
			return a.say(Unscaled, false, "No key of source %s is done: %s", f.Name, sentence(d.Message))
		}
		return a.say(SinkFails, false, "No delivery of source %s succeeds: %s", f.Name, sentence(d.Message))
	}
	if full := f.full(a); full != nil {
		return full
	}
	slow := f.hangs(a)
	if slow != nil && slow.Cause == SinkSlow { // it is why others wait
		return slow
	}
	queue := f.queue(a)
	if queue != nil && queue.Problem {
		return queue
	}
	if slow != nil {
		return slow
	}
	if dropped := f.Lost.dropped(a, f); dropped != nil {
		return dropped
	}
	if l := f.DeadLetter; l != nil {
		a.add("newest dead letter", l.Key).number("its attempts", int64(l.Attempts))
		a.failure(f, lastOf(l))
		refused := ""
		if f.Lost.Refused > 0 {
			refused = "; the dead letter sink refuses or does not answer"
		}
		return a.say(f.Source.cause(lastOf(l)), false, "Source %s has given up events, the newest (key %q, %s) because %s%s.", f.Name, l.Key, When(f.Now, l.At), f.failed(lastOf(l)), refused)
	}
	if letters := f.Lost.deadLettered(a, f); letters != nil {
		return letters
	}
	switch {
	case queue != nil:
		return queue
	case c == nil:
		return a.say(Healthy, true, "Nothing is known to be wrong with source %s.", f.Name)
	case c.Pending+c.InFlight == 0:
		asleepNow := ""
		if s := f.Scale(); s != nil && s.State == asleep {
			asleepNow = "; " + f.Workload() + " is asleep"
		}
		return a.say(Idle, true, "Nothing waits at source %s, and nothing is in flight%s%s.", f.Name, asleepNow, f.Lost.once(f.Now))
	case c.NextDueAt.IsZero() && c.InFlight == 0:
		return a.say(Queued, true, "Source %s is healthy: %s just become due%s%s.", f.Name, Plural(c.Pending, "key has", "keys have"), f.unsure(), f.Lost.once(f.Now))
	case c.NextDueAt.IsZero():
		due := ""
		if c.Due > 0 {
			due = ", and " + Plural(c.Due, "key has", "keys have") + " just become due" + f.unsure()
		}
		return a.say(Healthy, true, "Source %s is healthy: %s in flight%s%s.", f.Name, Plural(c.InFlight, "delivery is", "deliveries are"), due, f.Lost.once(f.Now))
	}
	return a.say(Healthy, true, "Source %s is healthy: %s, the next one is due %s%s%s.", f.Name, Plural(c.Pending, "key waits", "keys wait"), When(f.Now, c.NextDueAt), sleeps(f), f.Lost.once(f.Now))
}

// hangs: is the delivery that is under way for longest a problem?
func (f *Facts) hangs(a *answer) *answer {
	if f.Record == nil || f.Record.State != "inFlight" {
		return nil
	}
	slow := &answer{Answer{Evidence: slices.Clone(a.Evidence)}}
	slow.add("key in flight", f.Record.Key)
	if !f.inFlight(slow).Problem {
		return nil
	}
	return slow
}

// paused: does no delivery start? What says what is not delivered.
func (f *Facts) paused(a *answer, what string) *answer {
	if !f.Paused {
		return nil
	}
	return a.say(StorageFull, false, "%s because the adapter's disk is full: it has no space for the outcome of a delivery.", what)
}

// full: are changes refused because there is no space?
func (f *Facts) full(a *answer) *answer {
	if f.StorageFull {
		return a.say(StorageFull, false, "The adapter's disk is full: new keys, and events that grow, are refused with 507.")
	}
	if f.NamespaceFull {
		return a.say(StorageFull, false, "The adapter's disk is nearly full, and the namespace of source %s holds a large part of it: its new keys, and events that grow, are refused with 507.", f.Name)
	}
	if f.Unmeasured != "" {
		a.add("disk and quotas", "not known: "+f.Unmeasured)
	}
	for _, name := range sorted(f.QuotaRefused) {
		if n := f.QuotaRefused[name]; n > 0 {
			a.add("refused by "+name, fmt.Sprintf("%d since the adapter started", n))
		}
	}
	return f.quota(a)
}

func sorted(m map[string]int64) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// queue: do due keys of the source wait for a slot, or their turn? It is a problem once the
// oldest one is overdue.
func (f *Facts) queue(a *answer) *answer {
	c := f.Counts
	if c == nil || c.Due <= c.Retrying || c.OldestDueAt.IsZero() {
		return nil
	}
	if until := c.CompanyUntil; !until.IsZero() {
		return a.say(ForCompany, true, "Source %s is healthy and %s: %s due.", f.Name, f.company(until), Plural(c.Due-c.Retrying, "key is", "keys are"))
	}
	queued, late := Plural(c.Due-c.Retrying, "key is", "keys are"), f.Now.Sub(c.OldestDueAt)
	if woken := a.wake(f, late, queued+" due"); woken != nil {
		return woken
	}
	if late < overdue {
		return f.held(a, late, queued+" due and queued", "")
	}
	what := fmt.Sprintf("%s late, the oldest by %s,", queued, Short(late))
	if held := f.held(a, late, what, ""); held != nil {
		return held
	}
	return a.say(Queued, false, "%s and no delivery of it has begun%s.", what, f.hint())
}

// hint names what can hold back a key, as far as that is unknown.
func (f *Facts) hint() string {
	switch {
	case f.Source == nil:
		return ": the source may be suspended, or at its limits or its namespace's"
	case f.NamespaceLimits == nil:
		return ": it may be at its namespace's limits, or the adapter at its own, or just started"
	}
	return ": the adapter may be at its own limit, or just started"
}

// unsure says that a limit of the namespace may hold back keys that are due now.
func (f *Facts) unsure() string {
	if f.NamespaceLimits != nil {
		return ""
	}
	return ", unless it is at its namespace's limits"
}
