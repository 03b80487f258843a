// Command adapter is the data plane: it keeps the schedules of all
// RescheduleSources on a disk and sends their CloudEvents when they are due.
//
// In a cluster it serves the RescheduleSources of the API server, with --standalone
// the RescheduleSources of a file. While the adapter is not running, adapter inspect
// DIR and adapter verify DIR read its data directory, and adapter repair DIR NEW copies
// what can be read of a damaged one. adapter backup copies the data of a running adapter,
// and adapter restore makes a data directory of the copy.
package main

import (
	"github.com/reschedule-dev/reschedule/pkg/adapter/command"
	"github.com/reschedule-dev/reschedule/pkg/adapter/group"
)

// version is set by the build (-ldflags "-X main.version=…").
var version = "dev"

func main() { command.Main(version, group.Settings{}) }
