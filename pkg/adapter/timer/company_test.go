package timer

import (
	"strings"
	"testing"
)

// Rows with slack wait for company, and go together.
func TestPop_WaitsForCompany(t *testing.T) {
	t.Parallel()
	// A step is an instant, how many deliveries end then, and which keys are handed out: f First, h Host, g Guest.
	type step struct {
		at   int64
		ends int
		want string
	}
	for _, test := range []struct {
		name  string
		rows  []Row
		steps []step
	}{
		{"without slack", []Row{{At: 1, Key: "a"}, {At: 2, Key: "b"}}, []step{{1, 0, "a:h"}, {2, 0, "b:h"}}},
		{"the first that has used up its slack, then the oldest",
			[]Row{{At: 1, Key: "a", Slack: 20}, {At: 2, Key: "b", Slack: 30}, {At: 3, Key: "c", Slack: 10}, {At: 14, Key: "d", Slack: 9}},
			[]step{{12, 0, ""}, {13, 0, "c:f a:h b:h"}, {14, 3, "d:g"}}},
		{"a row without slack wakes all", []Row{{At: 1, Key: "a", Slack: 50}, {At: 5, Key: "b"}}, []step{{4, 0, ""}, {5, 0, "b:f a:h"}}},
		{"a guest does not keep the sink awake",
			[]Row{{At: 1, Key: "a"}, {At: 6, Key: "b", Slack: 50}, {At: 11, Key: "c", Slack: 50}, {At: 12, Key: "d", Slack: 50}},
			[]step{{1, 0, "a:f"}, {2, 1, ""}, {6, 0, "b:g"}, {11, 0, "c:g"}, {12, 0, ""}, {61, 0, ""}, {62, 0, "d:f"}}},
		{"under way", []Row{{At: 1, Key: "a"}, {At: 90, Key: "b", Slack: 50}}, []step{{1, 0, "a:f"}, {90, 0, "b:g"}}},
		{"a row for another sink goes alone, and wakes no other",
			[]Row{{At: 1, Key: "a", Slack: 50}, {At: 5, Key: "b", Slack: Apart}}, []step{{5, 0, "b:g"}, {50, 0, ""}, {51, 0, "a:f"}}},
	} {
		p := New(10, 1)
		p.Awake(10)
		p.BeginLoad(0)
		p.EndLoad(0, test.rows, false)
		for _, s := range test.steps {
			for range s.ends {
				p.Done(s.at, true)
			}
			var got []string
			for r, part, ok := p.Pop(s.at); ok; r, part, ok = p.Pop(s.at) {
				got = append(got, r.Key+":"+string("ghf"[part]))
				if part == First {
					p.Begin(s.at)
				}
			}
			if text := strings.Join(got, " "); text != s.want {
				t.Errorf("%s: at %d %q, want %q", test.name, s.at, text, s.want)
			}
		}
	}
}

// What was let go, and a sink that was awake, count no more once the clock went back.
func TestPop_WaitsAfterTheClockWentBack(t *testing.T) {
	t.Parallel()
	p := New(10, 1)
	p.Awake(10)
	p.BeginLoad(0)
	p.EndLoad(0, []Row{{At: 80, Key: "a"}, {At: 900, Key: "b", Slack: 1}}, false)
	if _, part, ok := p.Pop(80); part != First || !ok {
		t.Fatal("the first row is not handed out")
	}
	p.Begin(80)
	p.Done(80, true)
	p.Add(Row{At: 50, Key: "c", Slack: 100})
	if r, _, ok := p.Pop(60); ok {
		t.Errorf("%+v is handed out at 60", r)
	}
	if until, ok := p.Waits(60); until != 150 || !ok {
		t.Errorf("it waits until %d, %v", until, ok)
	}
}

// A delivery that ends after the clock went back keeps the sink awake.
func TestDone_AfterTheClockWentBack(t *testing.T) {
	t.Parallel()
	p := New(10, 1)
	p.Awake(10)
	p.BeginLoad(0)
	p.EndLoad(0, []Row{{At: 80, Key: "a"}, {At: 81, Key: "b"}, {At: 900, Key: "c", Slack: 1}}, false)
	for _, at := range []int64{80, 81} {
		_, part, ok := p.Pop(at)
		if !ok {
			t.Fatal("no row is handed out")
		}
		if part == First {
			p.Begin(at)
		}
	}
	p.Done(85, true)
	p.Done(40, true)
	p.Add(Row{At: 41, Key: "d", Slack: 100})
	if r, part, ok := p.Pop(45); r.Key != "d" || part != Guest || !ok {
		t.Errorf("%+v, part %d", r, part)
	}
}

// A row goes before rows of lower bands that are due longer, also before the one that has used up its slack; a band that
// is not loaded hides the bands below.
func TestPop_HigherBandFirst(t *testing.T) {
	t.Parallel()
	rows := [][]Row{{{At: 3, Key: "high", Slack: 90, Band: 0}, {At: 9, Key: "later", Band: 0}}, {{At: 1, Key: "low", Slack: 3, Band: 1}, {At: 2, Key: "lower", Slack: 40, Band: 1}}}
	p := New(10, 1, 1)
	p.Awake(10)
	p.BeginLoad(1)
	p.EndLoad(1, rows[1], false)
	if r, _, ok := p.Pop(5); ok {
		t.Fatalf("%+v is handed out before the higher band is loaded", r)
	}
	if at, ok := p.Next(5); ok {
		t.Fatalf("the next row is known, %d, before the higher band is loaded", at)
	}
	p.BeginLoad(0)
	p.EndLoad(0, rows[0], false)
	r, part, _ := p.Pop(5)
	if r.Key != "low" || part != First || !p.Outranked(r, 5) {
		t.Fatalf("%+v, part %d, outranked %v", r, part, p.Outranked(r, 5))
	}
	p.Release(5)
	p.Add(r)
	for _, want := range []string{"high", "low", "lower", ""} {
		if r, part, _ = p.Pop(5); r.Key != want || want != "" && part != Host {
			t.Errorf("%+v, part %d, want %s", r, part, want)
		}
	}
}

// Where bands make no difference a row that has used up its slack is not put off by a row of a higher band that has
// used up its own later.
func TestPop_FlatIsOldestFirst(t *testing.T) {
	t.Parallel()
	p := New(10, 1, 1)
	p.Order(false)
	for band, r := range []Row{{At: 5, Key: "high", Slack: 1, Band: 0}, {At: 1, Key: "low", Slack: 1, Band: 1}} {
		p.BeginLoad(band)
		p.EndLoad(band, []Row{r}, false)
	}
	if at, _ := p.Due(9); at != 1 {
		t.Errorf("the row of %d goes first, want of 1", at)
	}
	if r, part, ok := p.Pop(9); !ok || part != First || r.Key != "low" {
		t.Errorf("%+v %v %v", r, part, ok)
	}
}
