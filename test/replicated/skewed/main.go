// Command skewed is adapter-replicated on a machine whose wall clock is ahead by SKEW.
package main

import (
	"fmt"
	"os"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/command"
	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

type log struct {
	*etcdlog.Server
	skew time.Duration
}

// Shard implements group.Log.
func (l log) Shard() replica.Log { return l.Server.Shard(0) }

// Wall implements group.Log.
func (l log) Wall() time.Time { return l.Server.Wall().Add(l.skew) }

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
		return log{s, skew}, nil
	}, etcdlog.Promised)
}
