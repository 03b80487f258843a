// Command adapter-replicated is the adapter with etcd's server in it: with --replicated,
// three of them keep the schedules together, and go on when one is gone.
package main

import (
	"github.com/reschedule-dev/reschedule/pkg/adapter/command"
	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

// version is set by the build (-ldflags "-X main.version=…").
var version = "dev"

func main() {
	command.Main(version, group.Settings{Open: open, PromiseOf: etcdlog.PromiseOf, ReadStopped: etcdlog.ReadStopped})
}

func open(o group.LogOptions) (group.Log, error) {
	s, err := etcdlog.Start(etcdlog.Options(o))
	if err != nil {
		return nil, err
	}
	return s, nil
}
