// Command member is adapter-replicated with what a test must choose, in variables that are durations.
// Its wall clock is ahead by SKEW; it jumps ahead by ten seconds with each SIGUSR1, and back with
// each SIGUSR2. Another member claims the group after SILENCE.
package main

import (
	"cmp"
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/command"
	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

type log struct {
	*etcdlog.Server
	skew    *atomic.Int64
	silence time.Duration // 0: as usual
}

// Wall implements group.Log.
func (l log) Wall() time.Time { return l.Server.Wall().Add(time.Duration(l.skew.Load())) }

// Silence implements group.Log.
func (l log) Silence() time.Duration { return cmp.Or(l.silence, l.Server.Silence()) }

const jump = 10 * time.Second

// jumping returns how far the clock is ahead.
func jumping(first time.Duration) *atomic.Int64 {
	skew := new(atomic.Int64)
	skew.Store(int64(first))
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGUSR2)
	go func() {
		for s := range signals {
			if s == syscall.SIGUSR1 {
				skew.Add(int64(jump))
			} else {
				skew.Add(int64(-jump))
			}
		}
	}()
	return skew
}

// duration reads a variable, 0 if it is not set.
func duration(name string) (time.Duration, error) {
	d, err := time.ParseDuration(cmp.Or(os.Getenv(name), "0s"))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return d, nil
}

func main() {
	open := func(o group.LogOptions) (group.Log, error) {
		skew, err := duration("SKEW")
		if err != nil {
			return nil, err
		}
		silence, err := duration("SILENCE")
		if err != nil {
			return nil, err
		}
		s, err := etcdlog.Start(etcdlog.Options(o))
		if err != nil {
			return nil, err
		}
		return log{s, jumping(skew), silence}, nil
	}
	command.Main("member", group.Settings{Open: open, PromiseOf: etcdlog.PromiseOf, ReadStopped: etcdlog.ReadStopped})
}
