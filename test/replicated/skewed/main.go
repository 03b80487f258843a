// Command skewed is adapter-replicated on a machine whose wall clock is ahead by SKEW. It jumps
// ahead by ten seconds with each SIGUSR1, and back with each SIGUSR2.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/command"
	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

type log struct {
	*etcdlog.Server
	skew *atomic.Int64
}

// Shard implements group.Log.
func (l log) Shard() replica.Log { return l.Server.Shard(0) }

// Wall implements group.Log.
func (l log) Wall() time.Time { return l.Server.Wall().Add(time.Duration(l.skew.Load())) }

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

func main() {
	command.Main("skewed", func(o group.LogOptions) (group.Log, error) {
		skew, err := time.ParseDuration(os.Getenv("SKEW"))
		if err != nil {
			return nil, fmt.Errorf("SKEW: %w", err)
		}
		s, err := etcdlog.Start(etcdlog.Options{Dir: o.Dir, Member: o.Member, Peers: o.Peers, Listen: o.Listen, TLSDir: o.TLSDir, Replaces: o.Replaces, Logger: o.Log, Stopped: o.Stopped})
		if err != nil {
			return nil, err
		}
		return log{s, jumping(skew)}, nil
	}, etcdlog.Promised)
}
