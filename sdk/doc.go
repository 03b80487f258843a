// Package sdk is the client of a RescheduleSource, and lets a sink read its deliveries
// and answer them. It needs the standard library only.
//
// An operator that keeps no timers says "key K again in 5 minutes":
//
//	c, err := sdk.FromEnv() // RESCHEDULE_URL, and the token that is mounted
//	...
//	s, err := c.Schedule(ctx, "GitRepo/team-a/site", sdk.After(5*time.Minute))
//
// and is woken by an HTTP request, whose answer says what comes next:
//
//	func ServeHTTP(w http.ResponseWriter, r *http.Request) {
//		d, err := sdk.ReadDelivery(r)
//		if err != nil {
//			sdk.Retry(w, err)
//			return
//		}
//		switch after, err := reconcile(r.Context(), d.Key, d.Attempt); {
//		case err != nil:
//			sdk.Retry(w, err) // after the source's back-off
//		case after > 0:
//			sdk.Again(w, after)
//		default:
//			sdk.Done(w)
//		}
//	}
//
// An operator that only answers needs no client and no credentials.
//
// # Calendars and priorities
//
// [Every] makes a request for a calendar, and [AgainWith] an answer of one. Priority is a field
// of [Request], [Schedule] and [Delivery], and [SetPriority] adds it to an answer.
//
// # Looking inside
//
// [Client.List] selects keys by [State], such as [Retrying]. [Client.Run] makes a key due
// now, [Client.History] has its last outcomes, and [Client.Follow] shows what happens at
// the source while it happens, [Client.Remembered] what happened lately. Events that were given up are read by [Client.DeadLetters],
// delivered again by [Client.Redrive], and removed by [Client.Discard]. The same from a
// shell is the command line, docs/cli.md.
//
// # What it guarantees
//
// When a call that changes something returns nil, the change is on stable storage. When
// it returns an [*Error], the source refused it, and [errors.Is] gives the reason
// ([ErrFull], [ErrConflict], …). Nothing was changed then, unless the error is
// [ErrUnavailable] too. [ErrUnavailable] also stands for an answer that never came: the
// change may or may not have been made, as after an error of the context.
//
// [ErrForeign] is the error of a success that no source gave: the answer lacks what each
// source has in it, as another server's does.
//
// The client repeats a call, with a jittered back-off, for as long as [WithRetryBudget]
// and the context allow: always where nothing can have been changed (no connection, 429,
// a 401 with a token that was renewed since), and after a lost answer, 502, 503 or 504
// where a second time does no harm. It would do harm, or give a wrong answer, with a
// back-off, which would count twice, with the policy fail, and under a condition, which
// the second try would miss because of the first. Retry-After is honoured.
//
// Redirects are not followed: a PUT would become a GET.
//
// A [Client] is safe for concurrent use. It keeps no state but connections.
//
// # How it works
//
// [Client] writes the types of this package as JSON, and reads the answers and problems
// (RFC 9457). encoding/json writes and reads the types as the schedule API has them, so
// that a fake server in a test can use them too. The token file is read for every try,
// because the kubelet renews it.
//
// It leaves to others: what to do with a key, sending CloudEvents to a source's address,
// and who may call (a handler trusts every request).
package sdk
