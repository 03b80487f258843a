//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// lateness is how long after their time runs began, for the log.
func lateness(runs []run) string {
	var late []time.Duration
	for _, r := range runs {
		late = append(late, r.Start.Sub(r.DueAt).Round(time.Millisecond))
	}
	slices.Sort(late)
	if len(late) == 0 {
		return "no runs"
	}
	return fmt.Sprintf("median %s, most %s of %d", late[len(late)/2], late[len(late)-1], len(late))
}

// An operator at zero is woken, reschedules itself, goes, and is woken again on time.
func TestWake_FromZeroAgainAndAgain(t *testing.T) {
	beside(t)
	const (
		key   = "GitRepo/team-a/site"
		again = pastZero
		grace = 30 * time.Second // in which an answer is taken in
	)
	n := newNamespace(t, "wake")
	n.serve("operator", quickly, rule{"GitRepo/", behaviour{Headers: map[string]string{"Reschedule-After": again.String()}}})
	s := n.source("git-repos", toKsvc("operator"))
	n.atZero("operator")

	due := s.put(key, `{"delay":"2s"}`).DueAt
	for occurrence := 1; occurrence <= 3; occurrence++ {
		runs := n.awaitRuns(time.Until(due)+patience, key, occurrence)
		r := runs[occurrence-1]
		if len(runs) != occurrence || r.Attempt != 0 {
			t.Errorf("occurrence %d was not delivered once: %v", occurrence, runs)
		}
		if !r.DueAt.Equal(due) {
			t.Errorf("occurrence %d was due at %s, and came as the occurrence of %s", occurrence, due, r.DueAt)
		}
		notEarly(n, r)
		t.Logf("cold: the run began %s after its time", r.Start.Sub(r.DueAt).Round(time.Millisecond))
		for _, before := range runs[:occurrence-1] {
			if before.Pod == r.Pod {
				t.Errorf("%s served two occurrences: it was not at zero between them", r.Pod)
			}
			if before.ID == r.ID {
				t.Errorf("occurrence %d has the id of one before, %s", occurrence, r.ID)
			}
		}

		next := s.waiting(key)
		if after := next.DueAt.Sub(r.End); after < again || after > again+grace {
			t.Errorf("it asked for %s, and is due again after %s", again, after)
		}
		due = next.DueAt
		if occurrence == 3 {
			break
		}
		n.atZero("operator")
		if left := time.Until(due); left < 0 {
			t.Fatalf("Serving took longer than %s to zero: make pastZero longer", again)
		} else {
			t.Logf("at zero %s after the run, %s before the next", time.Since(r.End).Round(time.Second), left.Round(time.Second))
		}
	}

	// It is there now, and what comes meanwhile does not wait for a pod.
	var warm []run
	for i := range 20 {
		key := fmt.Sprintf("warm/%d", i)
		s.put(key, `{"delay":"100ms"}`)
		warm = append(warm, n.awaitRuns(patience, key, 1)...)
	}
	notEarly(n, warm...)
	t.Logf("warm: runs began after their time: %s", lateness(warm))
}

// waiting is what is scheduled of a key, once the answer to its last delivery
// has been taken in.
func (s *source) waiting(key string) harness.Schedule {
	s.t.Helper()
	var is harness.Schedule
	eventually(s.t, patience, key+" waits", func() error {
		now := s.scheduled(key)
		if now == nil {
			return fmt.Errorf("nothing is scheduled")
		}
		if is = *now; is.State != "waiting" || is.InFlight == nil || *is.InFlight {
			return fmt.Errorf("it is %s", is.State)
		}
		return nil
	})
	return is
}

// Nothing is lost when many keys come due at once and the operator is at zero.
func TestWake_ManyKeysAtOnce(t *testing.T) {
	beside(t)
	for name, c := range map[string]struct {
		annotations map[string]string
		concurrency int // of a pod; 0: no limit
	}{
		"as many in a pod as come": {},
		// Most wait for a pod in the activator, or are turned away and retried.
		"one in a pod, of two": {map[string]string{"autoscaling.knative.dev/max-scale": "2"}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const keys = 30
			n := newNamespace(t, "burst")
			annotations := map[string]string{}
			maps.Copy(annotations, quickly)
			maps.Copy(annotations, c.annotations)
			serveWith(n, "operator", annotations, fmt.Sprintf("containerConcurrency: %d", c.concurrency), rule{"", behaviour{Work: "500ms"}})
			s := n.source("burst", toKsvc("operator"))
			n.atZero("operator")

			due := time.Now().Add(5 * time.Second).UTC()
			var body struct {
				Items []map[string]any `json:"items"`
			}
			for i := range keys {
				body.Items = append(body.Items, map[string]any{"key": fmt.Sprintf("key-%02d", i), "dueAt": due})
			}
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			if r := s.call("POST", "/schedules", string(text)); r.Status != 200 {
				t.Fatalf("POST: %d %s", r.Status, r.Body)
			}
			if pods, err := n.replicas("operator"); err != nil || len(pods) > 0 {
				t.Fatalf("it is not at zero: %d pods, %v", len(pods), err)
			}

			var runs []run
			eventually(t, 2*patience, "each key has a run that ended well", func() error {
				var err error
				if runs, err = n.recordedRuns("key-"); err != nil {
					return err
				}
				missing := map[string][]run{}
				for i := range keys {
					missing[fmt.Sprintf("key-%02d", i)] = nil
				}
				for _, r := range runs {
					if of, ok := missing[r.Key]; ok {
						missing[r.Key] = append(of, r)
					}
					if r.Status == 204 {
						delete(missing, r.Key)
					}
				}
				if len(missing) > 0 {
					return fmt.Errorf("%d of %d have not; their runs are %v", len(missing), keys, missing)
				}
				return nil
			})
			notEarly(n, runs...)
			pods, retried := map[string]bool{}, 0
			for _, r := range runs {
				pods[r.Pod] = true
				if r.Attempt > 0 {
					retried++
				}
			}
			t.Logf("%d runs in %d pods, %d of them retries; began after their time: %s", len(runs), len(pods), retried, lateness(runs))
			eventually(t, patience, "nothing is left", func() error {
				if c := s.counts(); c.Pending+c.Due+c.InFlight > 0 {
					return fmt.Errorf("%+v", c)
				}
				return nil
			})
		})
	}
}
