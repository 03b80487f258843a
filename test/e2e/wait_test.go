//go:build e2e

package e2e

import (
	"context"
	"errors"
	"testing"
	"time"
)

// patience is the generous upper bound of what takes seconds when nothing else
// runs: pods that start, objects that become ready, deliveries. How late
// something is, is measured; that it comes is waited for.
const patience = 3 * time.Minute

// eventually waits until so returns nil. It fails with the last error.
func eventually(t testing.TB, deadline time.Duration, what string, so func() error) {
	t.Helper()
	if err := poll(t.Context(), deadline, so); err != nil {
		t.Fatalf("%s: not within %s: %v", what, deadline, err)
	}
}

// final is an error that no waiting will change.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// poll calls so until it returns nil or a final error; the error is of the
// last call.
func poll(ctx context.Context, deadline time.Duration, so func() error) error {
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	again := time.NewTicker(250 * time.Millisecond)
	defer again.Stop()
	for {
		err := so()
		if err == nil || errors.As(err, new(final)) {
			return err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return err
		}
	}
}
