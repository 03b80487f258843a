package listener

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// Certificate is the certificate of a port. Its file may be renewed at any time.
type Certificate struct {
	Name string           // of the port
	End  func() time.Time // when it ends, by the files as they are now; zero: there is none
}

// expiryWarning is how long before its end a certificate is logged, once in expiryEvery.
const (
	expiryWarning = 14 * 24 * time.Hour
	expiryEvery   = 24 * time.Hour
)

// Observe shows when the certificate ends.
func (c Certificate) Observe(meter metric.Meter) error {
	_, err := meter.Int64ObservableGauge("reschedule_certificate_expiry_timestamp", metric.WithUnit("s"),
		metric.WithDescription("Unix time at which the certificate of a port ends; connections fail then."),
		metric.WithInt64Callback(func(_ context.Context, o metric.Int64Observer) error {
			if end := c.End(); !end.IsZero() {
				o.Observe(end.Unix(), metric.WithAttributes(attribute.String("address", c.Name)))
			}
			return nil
		}))
	return err
}

// Warn logs once a day that the certificate ends in the next days, or has ended, until ctx ends.
func (c Certificate) Warn(ctx context.Context, log *slog.Logger) {
	tick := time.NewTicker(expiryEvery)
	defer tick.Stop()
	for {
		end := c.End()
		switch left := time.Until(end); {
		case end.IsZero() || left > expiryWarning:
		case left > 0:
			log.Warn("the certificate of a port ends soon: renew its files, which are read again without a restart", "address", c.Name, "ends", end, "left", left.Round(time.Hour))
		default:
			log.Error("the certificate of a port has ended, and new connections fail: renew its files, which are read again without a restart", "address", c.Name, "ended", end)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
