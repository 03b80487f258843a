package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// demo is a run of the demo. All of its waits are whole beats.
type demo struct {
	out    io.Writer
	colour bool
	beat   time.Duration
	slack  time.Duration
	bin    string // where the programs are built already; "" builds them

	enter <-chan struct{} // the user at the terminal has pressed Enter; nil: there is none

	source   string // the address of the RescheduleSource
	metrics  string // the address of the adapter's metrics
	page     string // the address of the web page
	operator string
	observer *observer
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

// run runs the demo; ok is its verdict.
func (t *demo) run(ctx context.Context) (ok bool, err error) {
	t.print(bold, "\nRescheduleSource: an operator that keeps no timers is woken on time.\n")
	dir, err := os.MkdirTemp("", "reschedule-demo-")
	if err != nil {
		return false, fmt.Errorf("demo: making a directory: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if t.bin == "" {
		t.bin = dir
		t.print(dim, "building cmd/adapter, examples/operator and cli (two minutes the first time) …\n")
		if err := build(ctx, dir); err != nil {
			return false, err
		}
	}
	t.observer, err = startObserver(func() string { return t.operator })
	if err != nil {
		return false, err
	}
	defer func() { _ = t.observer.server.Close() }()
	sources := filepath.Join(dir, "sources.yaml")
	if err := os.WriteFile(sources, fmt.Appendf(nil, manifest, t.observer.address, t.beat.Seconds()), 0o600); err != nil {
		return false, fmt.Errorf("demo: writing the sources: %w", err)
	}
	startAdapter := func(listen, admin string) (*process, error) {
		t.ledger.startedAt = time.Now().Round(0)
		return start(ctx, dir, filepath.Join(t.bin, "adapter"), nil, "--standalone", "--sources", sources, "--data-dir", filepath.Join(dir, "data"),
			"--listen", listen, "--admin-listen", admin)
	}

	t.ledger = newLedger(t.beat, t.slack)
	adapter, err := startAdapter("127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		return false, err
	}
	defer func() { adapter.stop() }() // the last adapter
	t.source, t.metrics = adapter.address("schedule API")+"/demo/wakeups", adapter.address("metrics")
	operator, err := start(ctx, dir, filepath.Join(t.bin, "operator"), []string{
		"LISTEN=127.0.0.1:0", "PORT=", "RESCHEDULE_URL=" + t.source, "LOOK_AGAIN_EVERY=" + t.beats(2).String(),
	})
	if err != nil {
		return false, err
	}
	defer operator.stop()
	t.operator = operator.address("")
	page, err := start(ctx, dir, t.commandLine(), nil, "ui", "--server", t.source, "--metrics-server", t.metrics)
	if err != nil {
		return false, err
	}
	defer page.stop()
	t.page = page.address("")
	t.print(dim, "adapter  %s  pid %d\noperator %s  pid %d\n", t.source, adapter.cmd.Process.Pid, t.operator, operator.cmd.Process.Pid)
	t.print(dim, "page     %s  pid %d\n", t.page, page.cmd.Process.Pid)
	t.print(bold, "Open the page in a browser to watch.\n")

	if err := t.scheduleKeys(ctx); err != nil {
		return false, err
	}
	if err := t.why(ctx, "Deploy/web", "Backup/old"); err != nil {
		return false, err
	}
	t.print(bold, "\n2  The adapter dies while keys wait.\n")
	if err := t.scheduleBeforeKill(ctx); err != nil {
		return false, err
	}
	pid := adapter.cmd.Process.Pid
	adapter.kill()
	t.step(red, "kill -9", "the adapter (pid %d) is gone; the operator does not notice", pid)
	if err := t.pause(ctx, t.beats(3)); err != nil {
		return false, err
	}
	restarted, err := startAdapter(host(adapter.address("schedule API")), host(t.metrics))
	if err != nil {
		return false, err
	}
	adapter = restarted
	t.step(green, "restart", "the adapter is back on the same directory (pid %d)", adapter.cmd.Process.Pid)
	if err := t.watch(ctx); err != nil {
		return false, err
	}
	if err := t.pause(ctx, t.beat/2); err != nil { // for wake-ups that must not come
		return false, err
	}
	if err := t.why(ctx, "Lease/during"); err != nil {
		return false, err
	}
	ok = t.end()
	t.leavePage(ctx)
	return ok, nil
}

// commandLine is the plugin of kn.
func (t *demo) commandLine() string { return filepath.Join(t.bin, "kn-source-reschedule") }

// why prints what the command line says about keys.
func (t *demo) why(ctx context.Context, keys ...string) error {
	for _, key := range keys {
		const problem = 8 // the exit code when the key is in trouble
		cmd := exec.CommandContext(ctx, t.commandLine(), "why", "wakeups", key, "--server", t.source, "--metrics-server", t.metrics, "-o", "jsonpath={.sentence}")
		said, err := cmd.CombinedOutput()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil && cmd.ProcessState.ExitCode() != problem {
			return fmt.Errorf("demo: why: %w: %s", err, said)
		}
		t.step(cyan, "why", "%s", bytes.TrimSpace(said))
	}
	return nil
}

// leavePage leaves the page to a user at a terminal until Enter.
func (t *demo) leavePage(ctx context.Context) {
	if t.enter == nil {
		return
	}
	t.print(bold, "\n%s is there until you press Enter.\n", t.page)
	select {
	case <-t.enter:
	case <-ctx.Done():
	}
}

// scheduleKeys is the first part, in which nothing breaks.
func (t *demo) scheduleKeys(ctx context.Context) error {
	t.print(bold, "\n1  Keys are scheduled over HTTP; the operator is woken with a CloudEvent and answers.\n")
	var plannedAt time.Time // at the end: of the key that is cancelled
	for _, s := range []struct {
		key   string
		after time.Duration
		data  any
		about string
	}{
		{"Deploy/web", t.beats(1), nil, "the operator fails twice"},
		{"Build/app", t.beats(2), map[string]any{"readyAt": time.Now().Add(t.beats(5))}, "not ready at that time, so that the operator asks for another wake-up"},
		{"Site/shop", t.beats(3), nil, "the operator schedules another key"},
		{"Backup/old", t.beats(4), nil, "cancelled below"},
	} {
		body := map[string]any{"delay": s.after.String()}
		if s.data != nil {
			body["event"] = map[string]any{"data": s.data}
		}
		plannedAt = time.Now().Add(s.after)
		t.ledger.want(s.key, plannedAt, 0)
		if err := call(ctx, "PUT", t.source, s.key, body); err != nil {
			return err
		}
		t.step(cyan, "PUT", "%-18s in %s: %s", s.key, s.after, s.about)
	}
	if err := call(ctx, "DELETE", t.source, "Backup/old", nil); err != nil {
		return err
	}
	t.ledger.cancel("Backup/old", time.Now())
	t.step(cyan, "DELETE", "%-18s must never come", "Backup/old")
	t.print(dim, "\n    %-18s %-13s %-13s %11s  %s\n", "key", "planned", "came", "off by", "the operator answered")
	if err := t.watch(ctx); err != nil {
		return err
	}
	if t.ledger.wrong == 0 && time.Now().After(plannedAt) {
		fmt.Fprintf(t.out, "  %s %-18s %-13s %-13s\n", t.paint(green, "✓"), "Backup/old", plannedAt.Format(clock), "never: cancelled")
	}
	return nil
}

func (t *demo) scheduleBeforeKill(ctx context.Context) error {
	now := time.Now().Round(0)
	for _, s := range []struct {
		key   string
		dueAt time.Time
		about string
	}{
		{"Lease/during", now.Add(t.beats(3)), "while the adapter will be dead"},
		{"Lease/after", now.Add(t.beats(7)), "when it will be back"},
	} {
		t.ledger.want(s.key, s.dueAt, 0)
		if err := call(ctx, "PUT", t.source, s.key, map[string]any{"dueAt": s.dueAt}); err != nil {
			return err
		}
		t.step(cyan, "PUT", "%-18s at %s, %s", s.key, s.dueAt.Format(clock), s.about)
	}
	return t.pause(ctx, t.beats(1))
}

// watch shows wake-ups until all have come, or one is later than the slack.
func (t *demo) watch(ctx context.Context) error {
	// An adapter that never counted attempts would fail again and again. No part is
	// longer than 7 beats, in at most 4 waits that may each be late.
	enough := time.After(t.beats(7) + 5*t.slack)
	tick := time.NewTicker(t.beat / 4)
	defer tick.Stop()
	for t.ledger.waitsFor() {
		select {
		case w := <-t.observer.seen:
			t.show(w)
		case now := <-tick.C:
			if len(t.observer.seen) == 0 && t.ledger.overdue(now) {
				return nil // the verdict calls it lost
			}
		case <-enough:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// pause waits while no wake-up should come.
func (t *demo) pause(ctx context.Context, d time.Duration) error {
	over := time.After(d)
	for {
		select {
		case w := <-t.observer.seen:
			t.show(w)
		case <-over:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (t *demo) beats(n int) time.Duration { return time.Duration(n) * t.beat }
