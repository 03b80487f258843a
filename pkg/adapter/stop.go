package adapter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Stop ends requests, deliveries and background work within their bounds, and
// flushes the store. It is idempotent.
//
// While the adapter runs it waits for space on a full disk, but a full disk does not
// delay its end: what waits for space was not acknowledged, everything else is on
// the disk, and a start after an end without a flush is like one after kill -9.
func (a *Adapter) Stop() error {
	var err error
	a.stop.Do(func() {
		a.stopping.Store(true)
		a.ready.Store(false)
		most := drainAll
		if a.cfg.Replication != nil {
			most += group.ForwardMost
		}
		ended := make(chan error, 1)
		go func() { ended <- a.end() }()
		select {
		case err = <-ended:
			if !store.IsFull(err) {
				return
			}
			err = nil
		case <-time.After(most):
		}
		a.cfg.Log.Warn("the disk delayed the end: what could not be written was not acknowledged")
	})
	return err
}

// end is Stop, for as long as it takes.
func (a *Adapter) end() error {
	if a.host != nil {
		a.host.Leave()
	}
	ctx, cancel := context.WithTimeout(context.Background(), drainRequests)
	defer cancel()
	var drained sync.WaitGroup
	for _, e := range a.calls {
		drained.Go(func() { e.Shutdown(ctx) })
	}
	drained.Wait()
	if a.host != nil {
		ctx, cancel := context.WithTimeout(context.Background(), drainRequests) // calls that hang have used the other up
		defer cancel()
		a.host.Shutdown(ctx)
	}
	if a.backups != nil {
		a.backups.Close() // one under way is cut off
	}
	if a.admin != nil {
		a.admin.Close() // probes and metrics to the last
	}
	a.serving.Wait()
	return a.close()
}

// close releases what is open, last opened first.
func (a *Adapter) close() error {
	var err error
	if a.host != nil {
		err = a.host.Close()
	}
	a.origin.Close()
	if a.telemetry != nil {
		err = errors.Join(err, a.telemetry.close())
	}
	return err
}

// fatal is called when durability is unknown. During Stop the store gives up waiting
// for disk space, which is no reason to end in another way.
func (a *Adapter) fatal(err error) {
	if a.stopping.Load() && store.IsFull(err) {
		return
	}
	a.cfg.Fatal(err)
}
