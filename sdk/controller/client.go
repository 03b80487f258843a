package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"

	"github.com/reschedule-dev/reschedule/sdk"
)

// settleTimeout is more than the calls of a client take with their retries.
const settleTimeout = 30 * time.Second

// settle makes an outcome durable through the client. What it returns is left
// to tell the sender: nothing, or that the source could not be reached.
func (s *server) settle(t target, o outcome) outcome {
	ctx, cancel := context.WithTimeout(context.Background(), settleTimeout)
	defer cancel()
	t.client = true
	event := &sdk.Event{Type: dueType, Data: dueOf(t).json()}
	again := o.after
	if o.err == nil && !o.gone && !o.final && again == 0 {
		again = s.maxInterval
	}
	// The key has it too, for the runs whose outcome is an answer.
	var interval *time.Duration
	if s.maxInterval > 0 {
		interval = &s.maxInterval
	}
	var err error
	switch {
	case o.err != nil:
		_, err = s.client.Schedule(ctx, t.key, sdk.Request{Backoff: &s.backoff, MaxInterval: interval, Event: event, Reason: reason(o.err)})
		if errors.Is(err, sdk.ErrExhausted) {
			s.log.Error(o.err, "Giving up: the attempts of the back-off are used up", "key", t.key)
			err = nil
		}
	case again > 0:
		r := sdk.Request{Delay: &again, MaxInterval: interval, Policy: sdk.Replace, Event: event}
		if _, err = s.client.Schedule(ctx, t.key, r, t.unchanged()); errors.Is(err, sdk.ErrConflict) {
			r.Policy = sdk.Earliest
			_, err = s.client.Schedule(ctx, t.key, r)
		}
	case o.final, t.revision == 0: // there was nothing
	default:
		if err = s.client.Cancel(ctx, t.key, t.unchanged()); errors.Is(err, sdk.ErrConflict) {
			err = nil
		}
	}
	s.answers.forget(t.key) // it waits for something else from here on
	if err != nil {
		s.log.Error(err, "The outcome of a run is not durable, and the run is to be repeated", "key", t.key)
		return outcome{err: fmt.Errorf("the outcome of %s is not durable: %w", t.key, err)}
	}
	return outcome{}
}

// look notes what waits under the target's key before its run. The run's outcome
// takes the place of that, but not of what somebody asks for meanwhile.
func (s *server) look(ctx context.Context, t *target) error {
	waits, err := s.client.Get(ctx, t.key)
	if errors.Is(err, sdk.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the outcome of %s could not be kept: %w", t.key, err)
	}
	t.revision = waits.Revision
	return nil
}

// unchanged wants that nobody has asked for the key since look.
func (t target) unchanged() sdk.Condition {
	if t.revision == 0 {
		return sdk.IfAbsent()
	}
	return sdk.IfRevision(t.revision)
}

// settleFailure is settle for what is behind a source otherwise.
func (s *server) settleFailure(t target, o outcome) outcome {
	if o.err == nil {
		return o
	}
	return s.settle(t, o)
}

// reason is as much of an error as the schedule API takes.
func reason(err error) string {
	text := strings.Map(func(c rune) rune {
		if unicode.IsControl(c) {
			return ' '
		}
		return c
	}, err.Error())
	runes := []rune(text)
	return string(runes[:min(len(runes), 200)])
}

// delayed is a target that is to be run after a while, or now if that is 0.
type delayed struct {
	target
	after time.Duration
}

// schedule brings targets up under keys of their own.
func (s *server) schedule(ctx context.Context, ds []delayed) error {
	items := make([]sdk.Item, len(ds))
	for i, d := range ds {
		s.answers.forget(d.key) // it is not all any more that the key waits for
		items[i] = sdk.Item{Key: d.key, Request: sdk.Request{
			Delay: &ds[i].after, Policy: sdk.Earliest, Event: &sdk.Event{Type: dueType, Data: dueOf(d.target).json()},
		}}
	}
	outcomes, err := s.client.ScheduleAll(ctx, items...)
	for _, o := range outcomes {
		err = errors.Join(err, o.Err)
	}
	return err
}
