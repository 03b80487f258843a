package schedule

import "time"

// Slack lets the keys of a source wake its sink together: an occurrence with slack is delivered between its
// due time and so much later. It goes as soon as the sink is awake anyway, at the latest when the first of
// the keys that wait has used up its slack: then all due keys go.
//
// Slack have occurrences of Reschedule-After, of maxInterval, and of requests with a time that is still ahead, as
// a resync's. None have changes, requests that name no time, a delay of 0, retries, backoff, run, dead letters,
// and what could expire while it waits.
//
// The sink is awake while a delivery is under way, and for Spec.Company after the last one has ended. A
// delivery that only kept company does not count: otherwise a thousand keys an hour would come one after the
// other, each within the time of the one before, and the sink would never sleep.

// DefaultCompany is how long a sink is taken to be awake after a delivery; with spec.scale it is the cooldown.
const DefaultCompany = 10 * time.Second

// SourcesSlack stands for the slack of the source, whatever that is by then.
const SourcesSlack time.Duration = -1

// OwnSlack is for how long the occurrence may wait for company: 0, the key's, or SourcesSlack.
func (e *Entry) OwnSlack() time.Duration {
	switch {
	case !e.MayWait || !e.RetryAt.IsZero() || !e.ExpiresAt.IsZero() || e.DeadLetter != nil:
		return 0
	case e.Slack != nil:
		return *e.Slack
	}
	return SourcesSlack
}

// SlackEnd is when the occurrence has used up its slack.
func (e *Entry) SlackEnd(src *Spec) time.Time { return e.At().Add(src.Resolve(e.OwnSlack())) }

// Resolve returns a slack, or the source's instead of SourcesSlack.
func (s *Spec) Resolve(slack time.Duration) time.Duration {
	if slack == SourcesSlack {
		return s.Slack
	}
	return slack
}

// mayWait reports that the request names a time which is still ahead.
func (r *Request) mayWait(now time.Time) bool {
	return !r.Run && (r.Delay != nil && *r.Delay > 0 || r.DueAt.After(now))
}

// mayWait reports that the answer asks for a time which is still ahead.
func (a *RescheduleAfter) mayWait(now time.Time) bool { return a.After > 0 || a.At.After(now) }
