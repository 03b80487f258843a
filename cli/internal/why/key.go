package why

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// record adds the key's record to the evidence.
func (f *Facts) record(a *answer) {
	r := f.Record
	a.add("state", string(r.State)).time("due", f.Now, r.DueAt).time("scheduled", f.Now, r.ScheduledAt).add("reason", r.Reason)
	if r.MaxInterval != nil {
		a.add("maxInterval", r.MaxInterval.String())
	}
	if r.Slack != nil {
		a.add("slack", r.Slack.String())
	}
	a.add("calendar", Calendar(r)).add("priority", Priority(r))
	a.time("waits for company until", f.Now, r.CompanyUntil)
	a.time("expires", f.Now, r.ExpiresAt).add("uid", r.UID)
	if r.Tries > 0 || r.Attempt > 0 {
		a.add("attempts", fmt.Sprintf("%d of this occurrence, %d failed in a row", r.Tries, r.Attempt))
	}
	a.time("next attempt", f.Now, r.NextAttemptAt)
	if r.LastFailure != nil {
		a.failure(f, r.LastFailure)
	}
}

// present answers about a key that is there.
func (f *Facts) present() *answer {
	a, r := new(answer), f.Record
	f.record(a)
	f.before(a)
	switch {
	case r.State == "waiting" && !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(r.DueAt):
		return a.say(ExpiresFirst, false, "Key %q will never be delivered: it expires %s, before it is due %s.", f.Key, When(f.Now, r.ExpiresAt), When(f.Now, r.DueAt))
	case r.State == "waiting":
		return a.say(Waiting, true, "Key %q is not due yet: its time comes %s%s%s%s.", f.Key, When(f.Now, r.DueAt), f.given(), sleeps(f), f.lostBefore())
	case r.State == "inFlight":
		return f.inFlight(a)
	case r.InFlight:
		return a.say(BehindItself, true, "Key %q is being delivered, and runs again when that delivery ends.", f.Key)
	case !r.CompanyUntil.IsZero():
		return a.say(ForCompany, true, "Key %q is due and %s.", f.Key, f.company(r.CompanyUntil))
	case r.LastFailure != nil && !r.ExpiresAt.IsZero() && !r.ExpiresAt.After(r.NextAttemptAt):
		return a.say(ExpiresFirst, false, "Key %q will not be tried again: it expires %s, before its next attempt %s; %s because %s.",
			f.Key, When(f.Now, r.ExpiresAt), When(f.Now, r.NextAttemptAt), attempts(r.Tries), f.failed(r.LastFailure))
	case r.LastFailure != nil && r.NextAttemptAt.After(f.Now):
		return a.say(f.Source.cause(r.LastFailure), false, "Key %q waits for its next attempt %s: after %s because %s.",
			f.Key, When(f.Now, r.NextAttemptAt), attempts(r.Tries), f.failed(r.LastFailure))
	}
	return f.due(a)
}

// company says until when keys wait.
func (f *Facts) company(until time.Time) string {
	return fmt.Sprintf("waits for company until %s, %s", until.Local().Format("15:04"), When(f.Now, until))
}

// before adds the last outcomes to the evidence.
func (f *Facts) before(a *answer) {
	for i := range f.History.Items[:min(len(f.History.Items), 5)] {
		f.outcome(a, &f.History.Items[i])
	}
}

// lostBefore says that an earlier event of a key that waits was given up, and is kept.
func (f *Facts) lostBefore() string {
	if f.DeadLetter == nil {
		return ""
	}
	return fmt.Sprintf("; an event of it was given up %s because %s, and is kept as a dead letter", When(f.Now, f.DeadLetter.At), f.failed(lastOf(f.DeadLetter)))
}

// given says what set the time: the key's calendar, and who, if a reason was given.
func (f *Facts) given() string {
	var by []string
	if c := Calendar(f.Record); c != "" {
		by = append(by, "calendar: "+c)
	}
	if f.Record.Reason != "" {
		by = append(by, fmt.Sprintf("reason: %q", f.Record.Reason))
	}
	if by == nil {
		return ""
	}
	return " (" + strings.Join(by, "; ") + ")"
}

// Priority is the priority of a key, "" if it is normal.
func Priority(k *sdk.Schedule) string {
	if k.Priority == sdk.NormalPriority {
		return ""
	}
	return k.Priority.String()
}

// Calendar is the calendar of a key, "" without one.
func Calendar(k *sdk.Schedule) string {
	if k.Cron == "" {
		return ""
	}
	text := k.Cron + " in " + cmp.Or(k.TimeZone, "UTC")
	if k.Jitter > 0 {
		text += fmt.Sprintf(", jitter %g", k.Jitter)
	}
	return text
}

func attempts(n int) string {
	if n == 1 {
		return "1 attempt, which failed"
	}
	return fmt.Sprintf("%d attempts, the last of which failed", n)
}

// usualTimeout is the default of delivery.timeout, by which a delivery is judged whose limit
// is not known.
const usualTimeout = 10 * time.Minute

// patience is delivery.timeout, 0 = unknown, and when a delivery has lasted long: after
// half of it.
func (f *Facts) patience() (limit, long time.Duration) {
	if f.Source == nil || f.Source.Timeout == 0 {
		return 0, usualTimeout / 2
	}
	return f.Source.Timeout, f.Source.Timeout / 2
}

// inFlight: a delivery under way is a problem once it failed before, or takes long.
func (f *Facts) inFlight(a *answer) *answer {
	r, key := f.Record, cmp.Or(f.Key, f.Record.Key)
	if x := r.LastFailure; x != nil {
		return a.say(f.Source.cause(x), false, "Key %q is being delivered, attempt %d; the attempt before failed because %s.", key, max(r.Tries, 2), f.failed(x))
	}
	limit, long := f.patience()
	if limit > 0 {
		a.add("delivery.timeout", limit.String())
	}
	a.time("delivery began", f.Now, f.StartedAt)
	due, began := f.Now.Sub(r.DueAt), f.Now.Sub(f.StartedAt)
	switch {
	case !f.StartedAt.IsZero() && began >= long:
		return a.say(SinkSlow, false, "Key %q is being delivered and the sink has not answered: the delivery began %s%s.",
			key, When(f.Now, f.StartedAt), after(", and delivery.timeout is ", known(limit)))
	case !f.StartedAt.IsZero():
		return a.say(InFlight, true, "Key %q is being delivered now: the delivery began %s, and the sink has not answered yet%s.", key, When(f.Now, f.StartedAt), f.ends(limit))
	case limit > 0 && due > limit+overdue:
		f.countsOf(a)
		return a.say(InFlight, false, "Key %q is being delivered now: it was due %s, and its delivery began late, at most %s ago (delivery.timeout).",
			key, When(f.Now, r.DueAt), Short(limit))
	case due >= long:
		f.countsOf(a)
		return a.say(InFlight, false, "Key %q is being delivered and the sink has not answered: it was due %s, and its delivery began late or the sink is slow%s.",
			key, When(f.Now, r.DueAt), f.ends(limit))
	}
	return a.say(InFlight, true, "Key %q is being delivered now: it was due %s, and the sink has not answered yet%s.", key, When(f.Now, r.DueAt), f.ends(limit))
}

// countsOf adds the counts to the evidence about a key: what is about the source has them.
func (f *Facts) countsOf(a *answer) {
	if f.Key != "" {
		f.counts(a)
	}
}

// known is a duration as text, "" if it is 0.
func known(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return Short(d)
}

// wantsStart says whether the answer depends on when the delivery under way began. Without
// StartedAt the answer is true too, but does not tell a late start from a slow sink.
func (f *Facts) wantsStart() bool {
	r := f.Record
	if r == nil || r.State != "inFlight" || r.LastFailure != nil {
		return false
	}
	_, long := f.patience()
	return f.Now.Sub(r.DueAt) >= long
}

func (f *Facts) ends(limit time.Duration) string {
	if limit == 0 {
		return ""
	}
	return fmt.Sprintf(" (delivery.timeout is %s)", Short(limit))
}

// due: the key's time has come, and no delivery of it is under way.
func (f *Facts) due(a *answer) *answer {
	r := f.Record
	from := r.DueAt
	if !r.NextAttemptAt.IsZero() {
		from = r.NextAttemptAt
	}
	late := f.Now.Sub(from)
	f.counts(a)
	ahead := a.ahead(f)
	if paused := f.paused(a, fmt.Sprintf("Key %q is due and not delivered", f.Key)); paused != nil {
		return paused
	}
	if woken := a.wake(f, late, fmt.Sprintf("Key %q is due", f.Key)); woken != nil {
		return woken
	}
	if held := f.held(a, late, fmt.Sprintf("Key %q is due and queued", f.Key), ahead); held != nil {
		return held
	}
	if late < overdue {
		return a.say(Queued, true, "Key %q is due and its delivery begins now%s.", f.Key, f.unsure())
	}
	if r.Tries > 0 {
		return a.say(Queued, false, "Key %q has waited for its next attempt for %s longer than planned%s%s.", f.Key, Short(late), ahead, f.hint())
	}
	return a.say(Queued, false, "Key %q has been due for %s and no delivery of it has begun%s%s.", f.Key, Short(late), ahead, f.hint())
}

// ahead says how many keys are delivered before a due one, "" if none is known.
func (a *answer) ahead(f *Facts) string {
	var before []string
	verb := " is before it"
	if n := higher(f); n > 0 {
		a.number("due keys of higher priority", int64(n))
		text := Plural(n, "key", "keys") + " of higher priority"
		if f.Counts.Retrying > 0 { // some of them may wait for another attempt
			text = "up to " + text
		}
		if before = append(before, text); n > 1 {
			verb = " are before it"
		}
	}
	if same := f.Ahead; same != nil {
		a.number("keys due before it", int64(same.Keys))
		text := Plural(same.Keys, "key", "keys")
		if same.More {
			text = "at least " + text
		}
		if len(before) > 0 {
			text += " of its own"
		}
		if same.Keys > 0 {
			before = append(before, text)
		}
		if same.Keys > 1 || len(before) > 1 {
			verb = " are before it"
		}
	}
	if before == nil {
		return ""
	}
	return "; " + strings.Join(before, " and ") + verb
}

// higher is how many keys of a higher priority are due and wait for no other attempt, at most.
func higher(f *Facts) (due int) {
	if f.Counts == nil {
		return 0
	}
	for p, n := range f.Counts.Priorities {
		if p > f.Record.Priority {
			due += n.Due
		}
	}
	return min(due, max(f.Counts.Due-f.Counts.Retrying, 0))
}

// Priorities are the keys of each priority, "" while all are normal.
func Priorities(n *sdk.Counts) string {
	var all []string
	for _, p := range []sdk.Priority{sdk.HighPriority, sdk.NormalPriority, sdk.LowPriority} {
		if c := n.Priorities[p]; c.Pending > 0 {
			all = append(all, fmt.Sprintf("%d %s, %d due", c.Pending, p, c.Due))
		}
	}
	return strings.Join(all, "; ")
}

// absent answers about a key that is neither scheduled nor in flight.
func (f *Facts) absent() *answer {
	a := new(answer)
	f.before(a)
	if f.Source != nil && f.Source.Suspended {
		a.add("spec.suspend", "true")
	}
	var last sdk.PastAttempt
	if len(f.History.Items) > 0 {
		last = f.History.Items[0]
	}
	if l := f.DeadLetter; l != nil && !(last.At.After(l.At) && slices.Contains([]string{"delivered", "expired", "deleted"}, last.Result)) {
		a.time("given up", f.Now, l.At).number("attempts", int64(l.Attempts))
		a.failure(f, lastOf(l))
		kept := "its event is kept as a dead letter"
		if last.Result == "dead_lettered" && !l.At.Before(last.At) {
			kept += ", as the dead letter sink refused it or did not answer"
		}
		return a.say(f.Source.cause(lastOf(l)), false, "Key %q was given up %s, after %s, because %s; %s.",
			f.Key, When(f.Now, l.At), Plural(l.Attempts, "attempt", "attempts"), f.failed(lastOf(l)), kept)
	}
	switch last.Result {
	case "":
		return f.unseen(a)
	case "delivered":
		if f.Source.Sinkless() {
			return a.say(Delivered, true, "Key %q was done %s, and nothing is scheduled now.", f.Key, When(f.Now, last.At))
		}
		return a.say(Delivered, true, "Key %q was delivered %s (the sink answered %d), and nothing is scheduled now.", f.Key, When(f.Now, last.At), last.Status)
	case "expired":
		return a.say(Expired, false, "Key %q was dropped %s because its expiresAt had passed.", f.Key, When(f.Now, last.At))
	case "deleted":
		return a.say(Deleted, true, "Key %q was cancelled %s, and nothing is scheduled now.", f.Key, When(f.Now, last.At))
	case "dead_lettered", "kept", "dropped":
		return f.givenUp(a, &last)
	}
	// It was alive after its last outcome, and no later outcome ended it.
	return a.say(Deleted, true, "Key %q was cancelled after its last attempt %s (%s).", f.Key, When(f.Now, last.At), last.Result)
}

func (f *Facts) givenUp(a *answer, last *sdk.PastAttempt) *answer {
	where := map[string]string{
		"dead_lettered": "sent to the dead letter sink" + f.Lost.stuck(), "kept": "kept as a dead letter, which is gone since", "dropped": "dropped",
	}[last.Result]
	if last.Status == 0 {
		why := "the sink did not answer"
		if f.Source.Sinkless() {
			why = f.Workload() + " did not start or crashed"
		}
		return a.say(GivenUp, false, "Key %q was given up %s because %s, and its event was %s.", f.Key, When(f.Now, last.At), why, where)
	}
	return a.say(f.Source.cause(&sdk.Failure{Status: last.Status}), false, "Key %q was given up %s because %s, and its event was %s.", f.Key, When(f.Now, last.At), f.failed(&sdk.Failure{Status: last.Status}), where)
}

// unseen: no outcome is known. Perhaps it was refused.
func (f *Facts) unseen(a *answer) *answer {
	a.time("history since", f.Now, f.History.Since)
	if full := f.full(a); full != nil {
		full.Sentence = fmt.Sprintf("Key %q is not scheduled. ", plain(f.Key)) + full.Sentence
		return full
	}
	for _, name := range sorted(f.QuotaRefused) {
		n := f.QuotaRefused[name]
		if n <= 0 {
			continue
		}
		if name == "disk" {
			return a.say(StorageFull, false, "Key %q is not scheduled; %s refused with 507 since the adapter started because its disk was full, or nearly full while the namespace holds a large part of it, and the key may be one of them.",
				f.Key, Plural(n, "change was", "changes were"))
		}
		if strings.HasPrefix(name, "max-") {
			name += " of " + configMap
		}
		return a.say(Quota, false, "Key %q is not scheduled; %s refused with 429 since the adapter started because of the quota %s, and the key may be one of them.",
			f.Key, Plural(n, "change was", "changes were"), name)
	}
	if f.Unreadable > 0 {
		a.number("unreadable records", f.Unreadable)
		return a.say(Unreadable, false, "Key %q is not scheduled; the adapter has set aside %s, and the key may be one of them (adapter inspect shows them).",
			f.Key, Plural(f.Unreadable, "record that it cannot read", "records that it cannot read"))
	}
	if n := f.Lost.Waiting; n > 0 {
		return a.say(GivenUp, false, "Key %q is not scheduled; %s for the dead letter sink, and one may be of this key.",
			f.Key, Plural(n, "event that was given up waits", "events that were given up wait"))
	}
	if f.Source != nil && f.Source.When != "" {
		a.add("spec.ingest.when", f.Source.When)
	}
	since, refused := "", ""
	if !f.History.Since.IsZero() {
		since = " from the last " + Short(f.Now.Sub(f.History.Since))
	}
	if f.Unmeasured != "" {
		refused = "or refused by a quota or a full disk, "
	}
	return a.say(NeverSeen, false, "Key %q is not scheduled, and no outcome of it is known%s: it was never scheduled, %sor cancelled, or its last outcome is forgotten.", f.Key, since, refused)
}

// outcome adds an item of the history to the evidence.
func (f *Facts) outcome(a *answer, o *sdk.PastAttempt) {
	text := o.Result
	if o.Attempt > 0 {
		text += fmt.Sprintf(" after %s in a row", Plural(o.Attempt, "failure", "failures"))
	}
	if o.Status != 0 {
		text += ", status " + fmt.Sprint(o.Status)
	}
	if o.Lateness > 0 {
		text += ", late by " + Short(o.Lateness)
	}
	if o.Duration > 0 {
		text += ", took " + Short(o.Duration)
	}
	a.add("at "+o.At.UTC().Format(time.RFC3339)+" ("+When(f.Now, o.At)+")", text)
}
