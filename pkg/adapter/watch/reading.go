package watch

import (
	"context"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/turns"
)

// reading is the turn of a watch to read events. A watch that waits for events has none.
type reading struct {
	turn  turns.Turn
	held  bool
	since time.Time
}

// begin waits for the turn of the source, or passes it on when it has taken its time and
// others wait. store stores what was read before.
func (r *reading) begin(ctx context.Context, s *source, store func() error) error {
	all := s.m.reading
	if r.held {
		if time.Since(r.since) < readingTurn || !all.Awaited() {
			return nil
		}
		if err := store(); err != nil {
			return err
		}
		r.done()
	}
	src := s.settings.Load()
	turn, err := all.Take(ctx, src.Namespace, src.Name)
	if err != nil {
		return err
	}
	r.turn, r.held, r.since = turn, true, time.Now()
	return nil
}

// done ends the turn, if there is one.
func (r *reading) done() {
	r.turn.Done()
	r.held = false
}
