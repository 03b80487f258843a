package sink

import (
	"context"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Connect makes a connection to the sink of a source, or to its proxy, and closes it.
func (s *Sender) Connect(ctx context.Context, src *schedule.Spec) error {
	r, err := s.route(src.Sink)
	if err != nil {
		return err
	}
	address := r.address
	if r.proxy != nil {
		address = addressOf(r.proxy)
	}
	c, err := s.connect(ctx, src, address)
	if err != nil {
		return err
	}
	return c.Close()
}
