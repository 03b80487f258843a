package listener

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Observe shows connections, by address.
func Observe(meter metric.Meter, all ...*Connections) error {
	open, err := meter.Int64ObservableGauge("reschedule_connections",
		metric.WithDescription("Open connections, by address."))
	if err != nil {
		return err
	}
	limit, err := meter.Int64ObservableGauge("reschedule_connections_limit",
		metric.WithDescription("Connections that there may be at one time, by address."))
	if err != nil {
		return err
	}
	ended, err := meter.Int64ObservableCounter("reschedule_connections_ended",
		metric.WithDescription("Connections that were ended at the limit, by address: idle ones that gave way (idle), requests that gave way to a peer with fewer (busy), and new ones for which none could give way (refused)."))
	if err != nil {
		return err
	}
	_, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, c := range all {
			address := attribute.String("address", c.cfg.Name)
			c.mu.Lock()
			n := c.open
			c.mu.Unlock()
			o.ObserveInt64(open, int64(n), metric.WithAttributes(address))
			o.ObserveInt64(limit, int64(c.cfg.Limit), metric.WithAttributes(address))
			o.ObserveInt64(ended, c.gaveWay.Load(), metric.WithAttributes(address, attribute.String("why", "idle")))
			o.ObserveInt64(ended, c.cut.Load(), metric.WithAttributes(address, attribute.String("why", "busy")))
			o.ObserveInt64(ended, c.refused.Load(), metric.WithAttributes(address, attribute.String("why", "refused")))
		}
		return nil
	}, open, limit, ended)
	return err
}
