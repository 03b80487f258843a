// Command demo shows on one screen, in about twenty seconds, what a
// RescheduleSource does: make demo, or go run ./examples/demo.
//
// It builds and starts the real adapter, the operator of examples/operator and the command line,
// schedules keys, kills the adapter with SIGKILL while they wait, starts it again, and
// compares every wake-up with its own clock. It ends with status 1 when a wake-up was
// early, lost, later than -slack, or came after it was cancelled. It prints the address of
// the web page, which the command line serves until Enter in a terminal. It leaves no files.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/term"
)

func main() {
	t := demo{out: os.Stdout}
	flag.DurationVar(&t.beat, "beat", time.Second, "the `DURATION` of which all waits are multiples")
	flag.DurationVar(&t.slack, "slack", 2*time.Second, "the `DURATION` after which a wake-up counts as late")
	flag.Parse()
	if t.beat < 100*time.Millisecond || t.slack <= 0 || flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "demo: -beat is at least 100ms, -slack is positive, and there are no arguments")
		os.Exit(2)
	}
	screen := term.IsTerminal(int(os.Stdout.Fd()))
	t.colour = screen && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"

	if screen && term.IsTerminal(int(os.Stdin.Fd())) {
		enter := make(chan struct{})
		t.enter = enter
		go func() {
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
			close(enter)
		}()
	}

	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	ok, err := t.run(ctx)
	interrupted := ctx.Err() != nil
	cancel()
	switch {
	case interrupted:
		fmt.Fprintln(os.Stderr, "\ninterrupted: all processes ended, nothing left behind")
		os.Exit(130)
	case err != nil && !errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	case !ok:
		os.Exit(1)
	}
}
