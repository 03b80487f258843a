package replicatest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// Conformance tries what package replica asks of a log. open returns the logs of two
// members of one new group.
func Conformance(t *testing.T, open func(t *testing.T) (a, b replica.Log)) {
	for name, try := range map[string]func(t *testing.T, c conformance){
		"an entry is added once":                  addedOnce,
		"an entry too large is refused for good":  tooLarge,
		"a deposed owner changes nothing":         fenced,
		"a claim needs the newest head":           claimSeesHead,
		"entries are read and followed in order":  followed,
		"what is trimmed is not read":             trimmed,
		"a released group is claimed at once":     released,
		"marks are of members":                    marked,
		"the state says who owns the group where": stated,
	} {
		t.Run(name, func(t *testing.T) {
			a, b := open(t)
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			t.Cleanup(cancel)
			try(t, conformance{t, ctx, a, b})
		})
	}
}

// wall is the group's clock in these cases.
var wall = time.Unix(0, 1_800_000_000_123_456_789)

type conformance struct {
	t    *testing.T
	ctx  context.Context
	a, b replica.Log
}

// claim makes the member the owner, whichever member was it before.
func (c conformance) claim(l replica.Log, member string) int64 {
	c.t.Helper()
	for c.ctx.Err() == nil {
		s, err := l.State(c.ctx)
		if err != nil {
			c.t.Fatal(err)
		}
		epoch, err := l.Claim(c.ctx, s, replica.Owner{Member: member, Address: member + ":1", Claim: member + "/1", Format: replica.Format}, wall)
		if err == nil {
			return epoch
		}
	}
	c.t.Fatal("no claim succeeds")
	return 0
}

func (c conformance) append(l replica.Log, epoch int64, seq uint64, data string) bool {
	c.t.Helper()
	added, err := l.Append(c.ctx, epoch, seq, []byte(data), wall)
	if err != nil {
		c.t.Fatal(err)
	}
	return added
}

func (c conformance) fenced(err error) {
	c.t.Helper()
	if !errors.Is(err, replica.ErrFenced) {
		c.t.Fatalf("%v, want ErrFenced", err)
	}
}

func addedOnce(t *testing.T, c conformance) {
	epoch := c.claim(c.a, "a")
	if !c.append(c.a, epoch, 1, "x") || c.append(c.a, epoch, 1, "x") {
		t.Fatal("the first attempt adds it, the second does not")
	}
	p, err := c.a.Read(c.ctx, 0)
	if err != nil || len(p.Entries) != 1 || string(p.Entries[0].Data) != "x" || p.Entries[0].Seq != 1 {
		t.Fatal(p, err)
	}
}

func tooLarge(t *testing.T, c conformance) {
	epoch := c.claim(c.a, "a")
	if _, err := c.a.Append(c.ctx, epoch, 1, make([]byte, 4*replica.MaxEntry), wall); !errors.Is(err, replica.ErrTooLarge) {
		t.Fatal(err)
	}
	c.append(c.a, epoch, 1, string(make([]byte, replica.MaxEntry)))
}

func fenced(t *testing.T, c conformance) {
	old := c.claim(c.a, "a")
	c.append(c.a, old, 1, "x")
	epoch := c.claim(c.b, "b")
	_, err := c.a.Append(c.ctx, old, 2, []byte("y"), wall)
	c.fenced(err)
	c.fenced(c.a.Renew(c.ctx, old, 1, wall))
	c.fenced(c.a.Release(c.ctx, old, replica.Owner{Clock: "a"}, wall))
	if !c.append(c.b, epoch, 2, "z") {
		t.Fatal("the new owner cannot append")
	}
	_, err = c.a.Append(c.ctx, old, 2, []byte("y"), wall)
	c.fenced(err)
}

func claimSeesHead(_ *testing.T, c conformance) {
	epoch := c.claim(c.a, "a")
	seen, err := c.a.State(c.ctx)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := c.a.Renew(c.ctx, epoch, 0, wall); err != nil {
		c.t.Fatal(err)
	}
	_, err = c.b.Claim(c.ctx, seen, replica.Owner{Member: "b"}, wall)
	c.fenced(err)
	c.append(c.a, epoch, 1, "x")
	_, err = c.b.Claim(c.ctx, seen, replica.Owner{Member: "b"}, wall)
	c.fenced(err)
}

func followed(t *testing.T, c conformance) {
	epoch := c.claim(c.a, "a")
	for i := range uint64(5) {
		c.append(c.a, epoch, i+1, string(rune('a'+i)))
	}
	ctx, cancel := context.WithCancel(c.ctx)
	defer cancel()
	at, got := uint64(0), ""
	read := func() int64 {
		for {
			p, err := c.b.Read(ctx, at)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range p.Entries {
				if e.Seq != at+1 {
					t.Fatalf("entry %d behind %d", e.Seq, at)
				}
				at, got = e.Seq, got+string(e.Data)
			}
			if !p.More {
				return p.Revision
			}
		}
	}
	states := c.b.Follow(ctx, read())
	const last = 200
	appended := make(chan error, 1)
	go func() {
		for seq := uint64(6); seq <= last; seq++ {
			if _, err := c.a.Append(ctx, epoch, seq, []byte("."), wall); err != nil {
				appended <- err
				return
			}
		}
		appended <- nil
	}()
	for s := range states {
		if read(); at < s.Last || s.Head == 0 {
			t.Fatalf("it reads up to %d of %+v", at, s)
		}
		if at == last {
			break
		}
	}
	if err := <-appended; err != nil {
		t.Fatal(err)
	}
	if got != "abcde"+strings.Repeat(".", last-5) {
		t.Fatal(got)
	}
}

func trimmed(t *testing.T, c conformance) {
	epoch := c.claim(c.a, "a")
	for i := range uint64(4) {
		c.append(c.a, epoch, i+1, "x")
	}
	if err := c.a.Trim(c.ctx, 3); err != nil {
		t.Fatal(err)
	}
	p, err := c.a.Read(c.ctx, 0)
	if err != nil || len(p.Entries) != 1 || p.Entries[0].Seq != 4 {
		t.Fatal(p, err)
	}
	c.append(c.a, epoch, 5, "y")
}

func released(t *testing.T, c conformance) {
	epoch := c.claim(c.a, "a")
	c.append(c.a, epoch, 1, "x")
	if err := c.a.Release(c.ctx, epoch, replica.Owner{Clock: "a"}, wall); err != nil {
		t.Fatal(err)
	}
	s, err := c.a.State(c.ctx)
	if err != nil || s.Owner.Member != "" || s.Owner.Clock != "a" || s.Epoch <= epoch || s.Last != 1 || !s.Wall.Equal(wall) {
		t.Fatal(s, err)
	}
	_, err = c.a.Append(c.ctx, epoch, 2, []byte("y"), wall)
	c.fenced(err)
	c.append(c.b, c.claim(c.b, "b"), 2, "z")
}

func marked(t *testing.T, c conformance) {
	if err := errors.Join(c.a.Mark(c.ctx, "a", 7), c.a.Mark(c.ctx, "a", 9), c.a.Mark(c.ctx, "c", 3)); err != nil {
		t.Fatal(err)
	}
	marks, err := c.a.Marks(c.ctx)
	if err != nil || len(marks) != 2 || marks["a"] != 9 || marks["c"] != 3 {
		t.Fatal(marks, err)
	}
	of := func(beat int64) replica.Report {
		return replica.Report{Seq: 1 << 63, Hash: 1<<64 - 1, Copies: true, Beat: beat}
	}
	if err := errors.Join(c.a.Report(c.ctx, "a", of(2)), c.b.Report(c.ctx, "b", of(3)), c.a.Report(c.ctx, "a", of(1))); err != nil {
		t.Fatal(err)
	}
	reports, err := c.b.Reports(c.ctx)
	if err != nil || len(reports) != 2 || reports["a"] != of(1) || reports["b"] != of(3) {
		t.Fatal(reports, err)
	}
}

func stated(t *testing.T, c conformance) {
	epoch := c.claim(c.a, "a")
	s, err := c.a.State(c.ctx)
	if err != nil || s.Epoch != epoch || s.Owner.Member != "a" || s.Owner.Address != "a:1" || s.Owner.Format != replica.Format || s.Head != epoch || !s.Wall.Equal(wall) {
		t.Fatal(s, err)
	}
}
