package schedule

import (
	"testing"
	"time"
)

// What was not sent, for want of a token, is no failed attempt.
func TestFinish_WhatWasNotSentIsNoAttempt(t *testing.T) {
	src := &Spec{Delivery: Delivery{Retry: new(2)}}
	e := flyingKey // has failed twice
	s := end(src, &e, Outcome{Kind: Failed, Unsent: true, Failure: Failure{Data: []byte("no token")}})
	n := s.Next
	if s.Disposition != Retrying || n == nil || s.Dead != nil {
		t.Fatalf("%+v", s)
	}
	if wait := n.RetryAt.Sub(t0); n.Tries != e.Tries || n.Attempt != e.Attempt || wait < unsentLeast || wait > unsentMost || string(n.LastFailure.Data) != "no token" {
		t.Errorf("%+v", n)
	}
	// An event that came meanwhile does not postpone it, and a newer request takes its place.
	f := Flight{Entry: &e}
	if n := f.Finish(inputs(src), &newerEvent, Outcome{Kind: Failed, Unsent: true}).Next; n.At().After(t0.Add(unsentMost)) || n.Attempt != newerEvent.Attempt || n.Tries != newerEvent.Tries {
		t.Errorf("%+v", n)
	}
	f = Flight{Entry: &e, Superseded: true, OwnCounter: true}
	if s := f.Finish(inputs(src), &newerPut, Outcome{Kind: Failed, Unsent: true}); s.Changed || s.Next != &newerPut {
		t.Errorf("%+v", s)
	}
	e.ExpiresAt = t0.Add(-time.Second)
	if s := end(src, &e, Outcome{Kind: Failed, Unsent: true}); s.Next != nil || s.Disposition != Expired {
		t.Errorf("%+v", s)
	}
}
