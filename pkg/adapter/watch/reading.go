package watch

import (
	"context"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
)

// reading is the turn of a watch to read events. A watch that waits for events has none.
type reading struct {
	turn  *budget.Claim // nil: none
	since time.Time
}

// begin waits for the turn of the source, or passes it on when it has taken its time and
// others wait. store stores what was read before.
func (r *reading) begin(ctx context.Context, s *source, store func() error) error {
	all := s.m.reading
	if r.turn != nil {
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
	r.turn, r.since = turn, time.Now()
	return err
}

// done ends the turn, if there is one.
func (r *reading) done() {
	r.turn.Release()
	r.turn = nil
}
