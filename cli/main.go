// Command kn-source-reschedule is the command line for RescheduleSources. It is one binary
// with three names: kn-source-reschedule is the plugin of kn ("kn source reschedule"),
// kubectl-reschedule_source is the plugin of kubectl ("kubectl reschedule-source"), and
// kubectl_complete-reschedule_source completes the words for kubectl.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/reschedule-dev/reschedule/cli/internal/command"
)

// version is set by the build (-ldflags "-X main.version=…").
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	code := command.Main(ctx, version, os.Args, os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
