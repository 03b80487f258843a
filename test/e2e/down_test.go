//go:build e2e

package e2e

import (
	"fmt"
	"strconv"
	"testing"
	"time"
)

// A sink that was down gets the events that it missed.
func TestSink_DownGetsTheMissed(t *testing.T) {
	beside(t)
	const outage = 5 * time.Second
	n := newNamespace(t, "down")
	s := n.source("down", toService("recorder")+"delivery: {backoffPolicy: linear, backoffDelay: PT0.3S}")
	began := time.Now() // before the call, which takes a while on a busy machine
	answerNext(n, "/", 503, outage)
	s.put("scheduled", `{}`)
	s.send(`{"a":1}`, "Id", "17", "Reschedulekey", "sent")

	attempts := map[string][]record{}
	eventually(t, patience, "both are taken", func() error {
		records, err := n.recorded("/")
		if err != nil {
			return err
		}
		clear(attempts)
		for _, r := range records {
			key := r.attr("reschedulekey")
			attempts[key] = append(attempts[key], r)
		}
		if c := s.counts(); c.Pending+c.InFlight > 0 {
			return fmt.Errorf("there were %d and %d attempts: %+v", len(attempts["scheduled"]), len(attempts["sent"]), c)
		}
		return nil
	})
	for _, key := range []string{"scheduled", "sent"} {
		of := attempts[key]
		if len(of) < 2 {
			t.Fatalf("%s: %d attempts came", key, len(of))
		}
		before := -1
		for _, r := range of {
			// The first may not come so far: nodes learn of a new Service a moment later.
			attempt, err := strconv.Atoi(r.attr("rescheduleattempt"))
			if err != nil || attempt <= before || r.attr("id") != of[0].attr("id") {
				t.Errorf("%s: after attempt %d came %v", key, before, r.Header)
			}
			before = attempt
		}
		if last := of[len(of)-1]; last.At.Sub(began) < outage-time.Second {
			t.Errorf("%s: not sent again after the outage, the last attempt was %s after its begin", key, last.At.Sub(began))
		}
	}
	if sent := attempts["sent"][0]; sent.attr("id") != "17" || string(sent.Body) != `{"a":1}` {
		t.Errorf("what was sent arrived as %v %s", sent.Header, sent.Body)
	}
}
