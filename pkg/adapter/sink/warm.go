package sink

import (
	"context"
	"net/http"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// warmUpHeader marks the call that wakes a sink.
const warmUpHeader = "Reschedule-Warm-Up"

// WarmUp makes one GET to the sink of a source, so that it is awake for the delivery that
// comes soon. Its answer and its failure are ignored: the delivery finds out for itself.
func (s *Sender) WarmUp(ctx context.Context, src *schedule.Spec) {
	r, err := s.route(src.Sink)
	if err != nil {
		return
	}
	transport, err := s.transport(src.Sink.CACerts)
	if err != nil {
		return
	}
	m := &message{source: src, method: http.MethodGet, header: header{{warmUpHeader, "1"}, {"User-Agent", userAgent}, {"Kn-Namespace", src.Namespace}}}
	if err := s.authorize(ctx, &m.header, r, src, src.Sink); err != nil {
		return
	}
	resp, err := transport.roundTrip(ctx, r, m, nil)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	drain(resp)
}
