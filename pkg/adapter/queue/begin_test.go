package queue

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// changes take the place of what is being delivered, each in its own way.
var changes = map[string]func(*Source) error{
	"PUT":            func(s *Source) error { _, err := s.Schedule("k", &schedule.Request{}, nil); return err },
	"bulk":           func(s *Source) error { _, err := s.ScheduleAll([]Item{{Key: "j"}, {Key: "k"}}, nil); return err },
	"DELETE":         func(s *Source) error { return s.Cancel("k", schedule.Conditions{}) },
	"DELETE, prefix": func(s *Source) error { _, err := s.CancelAll(context.Background(), "k"); return err },
	"another uid": func(s *Source) error {
		_, err := s.Schedule("k", &schedule.Request{UID: "u2", Policy: schedule.Keep}, nil)
		return err
	},
	"an event that replaces": func(s *Source) error {
		_, err := s.Schedule("k", &schedule.Request{Ingested: true, Policy: schedule.Replace, Event: &schedule.Event{ID: "i"}}, nil)
		return err
	},
}

// taken is, in a bubble, a source with a delivery of key k under way.
func taken(t *testing.T) (*Source, *Delivery) {
	t.Helper()
	s, _ := open(t, nil)
	must(t, errorOf(s.Schedule("k", &schedule.Request{UID: "u1"}, nil)))
	d := take(t, s)
	return s, d
}

// Once a change is answered, an attempt that had not begun does not begin, and is not counted.
func TestChange_CallsOffAnAttemptThatHasNotBegun(t *testing.T) {
	t.Parallel()
	for name, change := range changes {
		synctest.Test(t, func(t *testing.T) { callsOff(t, name, change) })
	}
}

func callsOff(t *testing.T, name string, change func(*Source) error) {
	s, d := taken(t)
	cancelled := 0
	d.OnCallOff(func() { cancelled++ })
	must(t, change(s))
	if _, ok := d.Begin(); ok || cancelled != 1 {
		t.Errorf("%s: begins %v, ended %d times", name, ok, cancelled)
	}
	late := false
	if d.OnCallOff(func() { late = true }); !late {
		t.Errorf("%s: an attempt that is made only now goes on", name)
	}
	if what, err := s.Finish(d, schedule.Outcome{}); what != schedule.Superseding || err != nil {
		t.Errorf("%s: %s %v", name, what, err)
	}
	v, ok, err := s.Get("k")
	if err != nil || ok && (v.Attempt != 0 || v.Tries != 0 || v.InFlight) {
		t.Errorf("%s: %+v %v", name, v, err)
	}
	if next, err := s.Take(); (next != nil) != ok || err != nil {
		t.Errorf("%s: then %+v %v", name, next, err)
	}
}

// An ingested event does not call off an attempt, because an event never cancels a delivery.
func TestEvent_ThatMergesCallsNothingOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		s, d := taken(t)
		d.OnCallOff(func() { t.Error("called off") })
		must(t, errorOf(s.Schedule("k", &schedule.Request{Ingested: true, Event: &schedule.Event{ID: "i"}}, nil)))
		if _, ok := d.Begin(); !ok {
			t.Error("it does not begin")
		}
		if next, err := s.Take(); next != nil || err != nil {
			t.Errorf("the key is in two deliveries at a time: %+v %v", next, err)
		}
	})
}

// A change during the first bytes of an attempt is answered after them, or after writeWait when the sink does not read.
func TestChange_IsAnsweredAfterTheFirstBytes(t *testing.T) {
	t.Parallel()
	for name, change := range changes {
		for _, readsFail := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				s, d := taken(t)
				wrote, ok := d.Begin()
				if !ok {
					t.Fatal("it does not begin")
				}
				began := time.Now()
				d.OnCallOff(func() {
					if took := time.Since(began); !readsFail || took != writeWait {
						t.Errorf("%s: cut off after %s", name, took)
					}
					wrote()
				})
				answered := make(chan error, 1)
				go func() { answered <- change(s) }()
				synctest.Wait()
				select {
				case err := <-answered:
					t.Errorf("%s: answered before the first bytes: %v", name, err)
				default:
				}
				if !readsFail {
					wrote()
				}
				if err := <-answered; err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if _, ok := d.Begin(); ok {
					t.Errorf("%s: it is written once more", name)
				}
			})
		}
	}
}

// A key that comes after its source was suspended waits, also when a worker had asked for the next one before.
func TestSuspend_LaterKeyIsNotTaken(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var meanwhile atomic.Pointer[func()]
		s, _ := open(t, func(c *Config, _ *schedule.Spec) {
			c.Owns = func() bool {
				if f := meanwhile.Swap(nil); f != nil {
					(*f)()
				}
				return true
			}
		})
		synctest.Wait() // its page is loaded
		suspend := func() {
			suspended := *s.Spec()
			suspended.Suspend = true
			if _, err := s.q.Set(&suspended); err != nil {
				t.Error(err)
			}
			if _, err := s.Schedule("k", &schedule.Request{}, nil); err != nil {
				t.Error(err)
			}
		}
		meanwhile.Store(&suspend)
		if d, err := s.Take(); d != nil || err != nil {
			t.Errorf("took %+v, %v", d, err)
		}
	})
}
