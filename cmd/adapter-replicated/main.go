// Command adapter-replicated is the adapter with etcd's server in it: with --replicated,
// three of them keep the schedules together, and go on when one is gone. There may be several
// such groups.
package main

import (
	"github.com/reschedule-dev/reschedule/pkg/adapter/command"
	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

// version is set by the build (-ldflags "-X main.version=…").
var version = "dev"

// log is etcd as the log of the one shard that there is.
type log struct{ *etcdlog.Server }

// Shard implements group.Log.
func (l log) Shard() replica.Log { return l.Server.Shard(0) }

func main() {
	command.Main(version, group.Settings{Open: open, PromiseOf: etcdlog.PromiseOf, ReadStopped: etcdlog.ReadStopped})
}

func open(o group.LogOptions) (group.Log, error) {
	s, err := etcdlog.Start(etcdlog.Options(o))
	if err != nil {
		return nil, err
	}
	return log{s}, nil
}
