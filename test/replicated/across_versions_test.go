package replicated

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// replace ends the member, and starts another program in its place.
func (g *group) replace(i int, program string) {
	g.t.Helper()
	g.mu.Lock()
	a := g.members[i]
	g.avoid = i
	g.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	if status, _, err := a.Terminate(ctx); err != nil || status != 0 {
		g.t.Fatalf("SIGTERM of %s: status %d, %v", name(i), status, err)
	}
	next, err := harness.Process{Binary: program}.Launch(g.flags(i)...)
	if err != nil {
		g.t.Fatal(err)
	}
	g.mu.Lock()
	g.members[i], g.ran = next, append(g.ran, ran{name(i), next})
	g.mu.Unlock()
	g.ready(i)
	g.pass(500 * time.Millisecond)
	g.mu.Lock()
	g.avoid = -1
	g.mu.Unlock()
	g.pass(500 * time.Millisecond)
}

// raised waits until the members write what only the next program understands.
func (g *group) raised() {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(g.members[g.owner()].Log(), "all members understand the entries of this level\" level=2") {
		select {
		case <-tick.C:
		case <-ctx.Done():
			g.t.Fatal("the owner does not write the new form")
		}
	}
}

// A rolling upgrade under load, and back, and up again: members of two versions work
// together, and nothing acknowledged is lost. Once all are of the new version the old one is refused.
// It takes longest, and mostly waits: its file is the first, so that all tests that are parallel run beside it.
func TestUpgrade_MixedVersions(t *testing.T) {
	t.Parallel()
	next := filepath.Join(t.TempDir(), "adapter-replicated-next")
	if err := harness.Build(next, "github.com/reschedule-dev/reschedule/cmd/adapter-replicated",
		"-ldflags=-X github.com/reschedule-dev/reschedule/pkg/adapter/store.level=2"); err != nil {
		t.Fatal(err)
	}
	g := start(t)
	stop := g.write()
	for _, step := range []struct {
		member  int
		program string
	}{{0, next}, {1, next}, {1, program()}, {0, program()}, {0, next}, {1, next}} {
		g.replace(step.member, step.program)
		for i := range g.members {
			g.ready(i)
		}
	}
	late := g.key()
	g.put(late, 24*time.Hour)
	g.replace(2, next)
	g.raised()
	g.pass(time.Second)
	stop()
	g.settled()
	t.Logf("the longest call took %s", g.longest.Round(time.Millisecond))

	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	if _, _, err := g.members[2].Terminate(ctx); err != nil {
		t.Fatal(err)
	}
	g.mu.Lock()
	g.members[2] = nil
	g.mu.Unlock()
	if a, err := (harness.Process{Binary: program()}).Launch(g.flags(2)...); err == nil {
		a.Kill()
		t.Error("the old program started with what the new one has written")
	} else if !strings.Contains(err.Error(), "newer program") {
		t.Error(err)
	}
	g.put(g.key(), 0)
	again, err := harness.Process{Binary: next}.Launch(g.flags(2)...)
	if err != nil {
		t.Fatal(err)
	}
	g.members[2] = again
	g.ready(2)
	g.known(2, late)
	g.settled()
}
