package guard

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// timed runs the test under fake time.
func timed(t *testing.T, test func(t *testing.T, w *env)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(t, newEnvAt(t, time.Now)) })
}

// A minute, for a caller who does not call again in its last third.
func TestReview_ServesAMinute(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		w.grants[outsider+" get"] = true
		token := w.issue(outsider)
		start := time.Now()
		for time.Since(start) < positiveTTL*2/3 {
			if _, err := w.admit(t, token, access.VerbGet); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		w.set(func() { w.down = errors.New("connection refused") })
		time.Sleep(positiveTTL/3 - time.Millisecond)
		if _, err := w.admit(t, token, access.VerbGet); err != nil {
			t.Error(err)
		}
		if n, m := w.tokenReviews.Load(), w.accessReviews.Load(); n != 1 || m != 1 {
			t.Errorf("%d token reviews, %d access reviews", n, m)
		}
		synctest.Wait() // for the renewals that the last call began
	})
}

// A revoked token or grant ends within a minute.
func TestReview_RevocationTakesAMinute(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		w.grants[outsider+" get"] = true
		a, b := w.issue(insider), w.issue(outsider)
		for _, token := range []string{a, b} {
			if _, err := w.admit(t, token, access.VerbGet); err != nil {
				t.Fatal(err)
			}
		}
		w.set(func() { delete(w.tokens, a); delete(w.grants, outsider+" get") })
		time.Sleep(positiveTTL + time.Millisecond)
		if _, err := w.admit(t, a, access.VerbGet); code(t, err) != schedule.CodeUnauthenticated {
			t.Errorf("the token: %v", err)
		}
		if _, err := w.admit(t, b, access.VerbGet); code(t, err) != schedule.CodeDenied {
			t.Errorf("the grant: %v", err)
		}
	})
}

// A grant counts within ten seconds.
func TestReview_GrantTakesTenSeconds(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		a, b := newToken(insider), w.issue(outsider)
		for range 5 {
			if _, err := w.admit(t, a, access.VerbGet); code(t, err) != schedule.CodeUnauthenticated {
				t.Fatal(err)
			}
			if _, err := w.admit(t, b, access.VerbGet); code(t, err) != schedule.CodeDenied {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		if n, m := w.tokenReviews.Load(), w.accessReviews.Load(); n != 2 || m != 1 {
			t.Errorf("%d token reviews, %d access reviews", n, m)
		}
		w.set(func() { w.tokens[a] = accepted(insider, audience(ns, name)); w.grants[outsider+" get"] = true })
		time.Sleep(negativeTTL - 5*time.Second + time.Millisecond)
		for _, token := range []string{a, b} {
			if _, err := w.admit(t, token, access.VerbGet); err != nil {
				t.Error(err)
			}
		}
	})
}

// A cached review ends with its token.
func TestReview_EndsWithTheToken(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		token := w.issue(insider, claim("exp", time.Now().Add(20*time.Second).Unix()))
		if _, err := w.admit(t, token, access.VerbGet); err != nil {
			t.Fatal(err)
		}
		w.set(func() { delete(w.tokens, token) })
		time.Sleep(20*time.Second + time.Millisecond)
		if _, err := w.admit(t, token, access.VerbGet); code(t, err) != schedule.CodeUnauthenticated || w.tokenReviews.Load() != 2 {
			t.Errorf("%v after %d reviews", err, w.tokenReviews.Load())
		}
		// Within the leeway the API server decides, each time.
		w.set(func() { w.tokens[token] = accepted(insider, audience(ns, name)) })
		time.Sleep(negativeTTL + time.Millisecond)
		for range 2 {
			if _, err := w.admit(t, token, access.VerbGet); err != nil {
				t.Error(err)
			}
		}
		if n := w.tokenReviews.Load(); n != 4 {
			t.Errorf("%d reviews", n)
		}
		time.Sleep(leeway)
		if _, err := w.admit(t, token, access.VerbGet); code(t, err) != schedule.CodeUnauthenticated || w.tokenReviews.Load() != 4 {
			t.Errorf("%v after %d reviews", err, w.tokenReviews.Load())
		}
	})
}

// A hundred calls with one token at once are one review.
func TestReview_IsSharedByCallers(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		w.hook = func(context.Context) error { time.Sleep(time.Second); return nil }
		w.grants[outsider+" get"] = true
		token := w.issue(outsider)
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, err := w.admit(t, token, access.VerbGet); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n, m := w.tokenReviews.Load(), w.accessReviews.Load(); n != 1 || m != 1 {
			t.Errorf("%d token reviews, %d access reviews", n, m)
		}
	})
}

// A caller who goes away does not end the review of the others.
func TestReview_SurvivesACallerWhoLeaves(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		w.hook = func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(time.Second):
				return nil
			}
		}
		token := w.issue(insider)
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			start := time.Now()
			_, err := w.guard.Admit(request(ctx, token), requestTo(access.VerbGet))
			if code(t, err) != schedule.CodeUnavailable || time.Since(start) != 100*time.Millisecond {
				t.Errorf("%v after %s", err, time.Since(start))
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if _, err := w.admit(t, token, access.VerbGet); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(100 * time.Millisecond)
		cancel()
		wg.Wait()
		if n := w.tokenReviews.Load(); n != 1 {
			t.Errorf("%d reviews", n)
		}
	})
}

// A flood of tokens causes a bounded number of reviews.
func TestFlood_OfTokensIsBounded(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		known := w.issue(insider)
		if _, err := w.admit(t, known, access.VerbGet); err != nil {
			t.Fatal(err)
		}
		var now, most atomic.Int64
		w.hook = func(context.Context) error {
			n := now.Add(1)
			defer now.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			time.Sleep(5 * time.Second)
			return nil
		}
		var wg sync.WaitGroup
		var busy atomic.Int64
		start := time.Now()
		for i := range 200 {
			wg.Go(func() {
				r := request(t.Context(), newToken(fmt.Sprint("mallory-", i)))
				r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", i)
				_, err := w.guard.Admit(r, requestTo(access.VerbGet))
				if code(t, err) != schedule.CodeUnavailable {
					return
				}
				busy.Add(1)
				if time.Since(start) != reviewWait {
					t.Errorf("503 after %s", time.Since(start))
				}
			})
		}
		synctest.Wait()
		if _, err := w.admit(t, known, access.VerbGet); err != nil || time.Since(start) > 0 {
			t.Errorf("a known caller has to wait: %v", err)
		}
		wg.Wait()
		if most.Load() != reviewCalls || busy.Load() != 200-reviewCalls {
			t.Errorf("%d reviews at once, %d callers refused with Retry-After", most.Load(), busy.Load())
		}
	})
}

// One peer leaves slots for the others, whatever it sends.
func TestFlood_OfOnePeerDelaysItself(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		hang := func(context.Context) error { time.Sleep(5 * time.Second); return nil }
		w.hook = hang
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() {
				if _, err := w.admit(t, newToken(fmt.Sprint("mallory-", i)), access.VerbGet); err == nil {
					t.Error("admitted")
				}
			})
		}
		synctest.Wait()
		if n := w.tokenReviews.Load(); n != reviewCalls/4 {
			t.Errorf("%d reviews of one peer", n)
		}
		w.set(func() { w.hook = nil })
		r := request(t.Context(), w.issue(insider))
		r.RemoteAddr = "192.0.2.2:1"
		start := time.Now()
		if _, err := w.guard.Admit(r, requestTo(access.VerbGet)); err != nil || time.Since(start) > 0 {
			t.Errorf("another peer: %v after %s", err, time.Since(start))
		}
		wg.Wait()
	})
}

// A caller who keeps calling is never cold: its answer is renewed before it ends,
// whatever waits in front of the API server.
func TestFlood_KeepsKnownCallers(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		w.grants[outsider+" get"] = true
		known := []string{w.issue(insider), w.issue(outsider)}
		for _, token := range known {
			if _, err := w.admit(t, token, access.VerbGet); err != nil {
				t.Fatal(err)
			}
		}
		// All places are taken, for good.
		for i := range 4 {
			for range reviewCalls / 4 {
				for _, l := range []*budget.Budget{w.guard.reviews.reviewCalls, w.guard.reviews.accessCalls} {
					if _, err := l.Take(t.Context(), fmt.Sprint(i), ""); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if _, err := w.admit(t, w.issue("system:serviceaccount:ops:fresh"), access.VerbGet); code(t, err) != schedule.CodeUnavailable {
			t.Errorf("an unknown caller: %v", err)
		}
		for start := time.Now(); time.Since(start) < 10*positiveTTL; time.Sleep(10 * time.Second) {
			for i, token := range known {
				if _, err := w.admit(t, token, access.VerbGet); err != nil {
					t.Fatalf("caller %d after %s: %v", i, time.Since(start), err)
				}
			}
			synctest.Wait()
		}
		if n := w.tokenReviews.Load(); n < 20 || n > 40 {
			t.Errorf("%d reviews for two callers in ten minutes", n)
		}
		w.set(func() { clear(w.tokens) })
		for range 6 {
			for _, token := range known {
				_, _ = w.admit(t, token, access.VerbGet)
			}
			time.Sleep(10 * time.Second)
		}
		for i, token := range known {
			if _, err := w.admit(t, token, access.VerbGet); err == nil {
				t.Errorf("caller %d whose token was revoked a minute ago is let in", i)
			}
		}
	})
}

// A failed renewal is tried again.
func TestRenewal_IsTriedAgain(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		token := w.issue(insider)
		admit := func() error { _, err := w.admit(t, token, access.VerbGet); synctest.Wait(); return err }
		if err := admit(); err != nil {
			t.Fatal(err)
		}
		w.set(func() { w.down = errors.New("connection refused") })
		time.Sleep(positiveTTL * 2 / 3)
		for range 5 { // at once, one attempt
			if err := admit(); err != nil {
				t.Fatal(err)
			}
		}
		if n := w.tokenReviews.Load(); n != 2 {
			t.Errorf("%d reviews", n)
		}
		time.Sleep(renewRetry)
		w.set(func() { w.down = nil })
		if err := admit(); err != nil || w.tokenReviews.Load() != 3 {
			t.Errorf("%v after %d reviews", err, w.tokenReviews.Load())
		}
		time.Sleep(positiveTTL * 2 / 3)
		w.set(func() { w.down = errors.New("connection refused") })
		if err := admit(); err != nil {
			t.Errorf("after the renewal: %v", err)
		}
		time.Sleep(positiveTTL/3 + time.Millisecond)
		if err := admit(); code(t, err) != schedule.CodeUnavailable {
			t.Errorf("an answer that is a minute old counts: %v", err)
		}
	})
}

// A flood of refusals evicts no admitted caller.
func TestFlood_OfRefusalsEvictsNone(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	known := w.issue(insider)
	if _, err := w.admit(t, known, access.VerbGet); err != nil {
		t.Fatal(err)
	}
	for i := range maxPositive + 10 {
		w.guard.reviews.callers.store(digestOf(fmt.Sprint(i)), nil, negativeTTL)
	}
	if n := len(w.guard.reviews.callers.negative.Keys()); n != maxNegative {
		t.Errorf("%d refusals are remembered", n)
	}
	if _, err := w.admit(t, known, access.VerbGet); err != nil || w.tokenReviews.Load() != 1 {
		t.Errorf("%v after %d reviews", err, w.tokenReviews.Load())
	}
}

// An API server that is down refuses no token and no grant.
func TestReview_FailureIsNoRefusal(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		w.grants[outsider+" get"] = true
		known, fresh := w.issue(outsider), w.issue(insider)
		if _, err := w.admit(t, known, access.VerbGet); err != nil {
			t.Fatal(err)
		}
		forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "tokenreviews"}, "", nil)
		for _, down := range []error{errors.New("connection refused"), forbidden} {
			w.set(func() { w.down = down })
			for range 25 {
				if _, err := w.admit(t, known, access.VerbGet); err != nil {
					t.Fatal(err)
				}
				if _, err := w.admit(t, known, access.VerbDelete); code(t, err) != schedule.CodeUnavailable {
					t.Fatal(err)
				}
				if _, err := w.admit(t, fresh, access.VerbGet); code(t, err) != schedule.CodeUnavailable {
					t.Fatal(err)
				}
				time.Sleep(time.Second)
			}
		}
		if n := strings.Count(w.log.String(), "callers cannot be checked"); n != 1 {
			t.Errorf("%d lines in the log", n)
		}
		time.Sleep(logInterval)
		if _, err := w.admit(t, known, access.VerbGet); code(t, err) != schedule.CodeUnavailable {
			t.Errorf("an answer that is over a minute old counts: %v", err)
		}
		if n := strings.Count(w.log.String(), "callers cannot be checked"); n != 2 || !strings.Contains(w.log.String(), `"failed":100`) {
			t.Errorf("%d lines in the log, %s", n, &w.log)
		}
		w.set(func() { w.down = nil })
		for _, token := range []string{known, fresh} {
			if _, err := w.admit(t, token, access.VerbGet); err != nil {
				t.Errorf("the failure is remembered: %v", err)
			}
		}
	})
}

// A review that hangs ends after ten seconds.
func TestReview_EndsAfterTenSeconds(t *testing.T) {
	timed(t, func(t *testing.T, w *env) {
		w.hook = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		start := time.Now()
		_, err := w.admit(t, w.issue(insider), access.VerbGet)
		if code(t, err) != schedule.CodeUnavailable || time.Since(start) != reviewTimeout {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

// A caller who asks just after the answer came gets that answer.
func TestReview_LateCallerGetsTheAnswer(t *testing.T) {
	t.Parallel()
	w := newEnv(t)
	key, kept := digestOf("q"), &caller{}
	w.guard.reviews.callers.store(key, kept, time.Minute)
	ask := func(context.Context) (*caller, time.Duration, error) { return nil, 0, errors.New("asked again") }
	got, err := w.guard.reviews.callers.get(t.Context(), key, question[caller]{newCalls(reviewCalls), "q", ask})
	if got != kept || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// The digest depends on where a part ends.
func TestDigest_DependsOnWhereAPartEnds(t *testing.T) {
	t.Parallel()
	seen := map[digest]bool{}
	for _, parts := range [][]string{{}, {""}, {"", ""}, {"a", "bc"}, {"ab", "c"}, {"abc"}, {"a", "b", "c"}} {
		d := digestOf(parts...)
		if seen[d] {
			t.Errorf("%q is another", parts)
		}
		seen[d] = true
	}
	long := strings.Repeat("x", 5000)
	if digestOf(long) == digestOf(long[1:]) {
		t.Error("long parts are cut")
	}
}
