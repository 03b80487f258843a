package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// tale is the story that the demo tells. All of its waits are whole beats.
type tale struct {
	out    io.Writer
	colour bool
	beat   time.Duration
	slack  time.Duration

	source   string // the address of the RescheduleSource
	operator string
	window   *window
	ledger   *ledger
}

// manifest is the RescheduleSource of the demo: the same YAML, with a ref for
// its sink, goes into a cluster.
const manifest = `apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: wakeups, namespace: demo}
spec:
  sink: {uri: %q}
  delivery: {backoffPolicy: exponential, backoffDelay: PT%gS, timeout: PT10S}
`

// tell runs the story; ok is its verdict.
func (t *tale) tell(ctx context.Context) (ok bool, err error) {
	t.print(bold, "\nRescheduleSource: an operator that keeps no timers is woken on time.\n")
	t.print(dim, "building cmd/adapter and examples/operator (a minute when it is the first time) …\n")
	dir, err := os.MkdirTemp("", "reschedule-demo-")
	if err != nil {
		return false, fmt.Errorf("demo: making a directory: %w", err)
	}
	defer os.RemoveAll(dir)
	if err := build(ctx, dir); err != nil {
		return false, err
	}
	t.window, err = openWindow(func() string { return t.operator })
	if err != nil {
		return false, err
	}
	defer t.window.server.Close()
	sources := filepath.Join(dir, "sources.yaml")
	if err := os.WriteFile(sources, fmt.Appendf(nil, manifest, t.window.address, t.beat.Seconds()), 0o600); err != nil {
		return false, fmt.Errorf("demo: writing the sources: %w", err)
	}
	startAdapter := func(listen string) (*process, error) {
		t.ledger.startedAt = time.Now().Round(0)
		return start(ctx, dir, "adapter", nil, "--standalone", "--sources", sources, "--data-dir", filepath.Join(dir, "data"),
			"--listen", listen, "--admin-listen", "127.0.0.1:0")
	}

	t.ledger = newLedger(t.beat, t.slack)
	adapter, err := startAdapter("127.0.0.1:0")
	if err != nil {
		return false, err
	}
	defer func() { adapter.stop() }() // the one that runs then
	t.source = adapter.address() + "/demo/wakeups"
	operator, err := start(ctx, dir, "operator", []string{
		"LISTEN=127.0.0.1:0", "PORT=", "RESCHEDULE_URL=" + t.source, "LOOK_AGAIN_EVERY=" + t.beats(2).String(),
	})
	if err != nil {
		return false, err
	}
	defer operator.stop()
	t.operator = operator.address()
	t.print(dim, "adapter  %s  pid %d\noperator %s  pid %d\n", t.source, adapter.cmd.Process.Pid, t.operator, operator.cmd.Process.Pid)

	if err := t.oneDay(ctx); err != nil {
		return false, err
	}
	t.print(bold, "\n2  The adapter dies in mid-wait.\n")
	if err := t.beforeTheKill(ctx); err != nil {
		return false, err
	}
	pid := adapter.cmd.Process.Pid
	adapter.kill()
	t.step(red, "kill -9", "the adapter (pid %d) is gone; the operator knows nothing of it", pid)
	if err := t.pause(ctx, t.beats(3)); err != nil {
		return false, err
	}
	address := strings.TrimPrefix(adapter.address(), "http://")
	if adapter, err = t.again(adapter, address, startAdapter); err != nil {
		return false, err
	}
	t.step(green, "restart", "the adapter is back on the same directory (pid %d)", adapter.cmd.Process.Pid)
	if err := t.watch(ctx); err != nil {
		return false, err
	}
	return t.end(), nil
}

// again starts the adapter anew and keeps the dead one's handle when that fails,
// so that there is always one to stop.
func (t *tale) again(dead *process, listen string, startAdapter func(string) (*process, error)) (*process, error) {
	p, err := startAdapter(listen)
	if err != nil {
		return dead, err
	}
	return p, nil
}

// oneDay is all that happens while nothing breaks.
func (t *tale) oneDay(ctx context.Context) error {
	t.print(bold, "\n1  Keys are scheduled over HTTP; the operator is woken with a CloudEvent and answers.\n")
	for _, s := range []struct {
		key   string
		after time.Duration
		data  any
		about string
	}{
		{"Deploy/web", t.beats(1), nil, "the operator will fail twice"},
		{"Build/app", t.beats(2), map[string]any{"readyAt": time.Now().Add(t.beats(5))}, "is not ready yet: the operator will ask for more time"},
		{"Site/shop", t.beats(3), nil, "makes the operator schedule a key itself"},
		{"Backup/old", t.beats(4), nil, "will be cancelled"},
	} {
		body := map[string]any{"delay": s.after.String()}
		if s.data != nil {
			body["event"] = map[string]any{"data": s.data}
		}
		t.ledger.want(s.key, time.Now().Add(s.after))
		if err := call(ctx, "PUT", t.source, s.key, body); err != nil {
			return err
		}
		t.step(cyan, "PUT", "%-19s in %-5s %s", s.key, s.after, s.about)
	}
	if err := call(ctx, "DELETE", t.source, "Backup/old", nil); err != nil {
		return err
	}
	t.ledger.cancel("Backup/old")
	t.step(cyan, "DELETE", "%-19s must never come", "Backup/old")
	t.print(dim, "\n  %-20s %-13s %-13s %11s  %s\n", "  key", "planned", "came", "off by", "answer of the operator")
	return t.watch(ctx)
}

func (t *tale) beforeTheKill(ctx context.Context) error {
	now := time.Now().Round(0)
	for _, s := range []struct {
		key   string
		dueAt time.Time
		about string
	}{
		{"Lease/during", now.Add(t.beats(3)), "while the adapter will be dead"},
		{"Lease/after", now.Add(t.beats(7)), "when it will be back"},
	} {
		t.ledger.want(s.key, s.dueAt)
		if err := call(ctx, "PUT", t.source, s.key, map[string]any{"dueAt": s.dueAt}); err != nil {
			return err
		}
		t.step(cyan, "PUT", "%-19s at %s, %s", s.key, s.dueAt.Format(clock), s.about)
	}
	return t.pause(ctx, t.beats(1))
}

// watch shows wake-ups until nothing more is to come, or it is beyond the slack.
func (t *tale) watch(ctx context.Context) error {
	tick := time.NewTicker(t.beat / 4)
	defer tick.Stop()
	for t.ledger.waitsFor() {
		select {
		case w := <-t.window.seen:
			t.show(w)
		case now := <-tick.C:
			if len(t.window.seen) == 0 && t.ledger.overdue(now) {
				return nil // the verdict calls it lost
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// pause passes time in which nothing should come.
func (t *tale) pause(ctx context.Context, d time.Duration) error {
	over := time.After(d)
	for {
		select {
		case w := <-t.window.seen:
			t.show(w)
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *tale) beats(n int) time.Duration { return time.Duration(n) * t.beat }
