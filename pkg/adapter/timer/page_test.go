package timer

import (
	"cmp"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

var seed = flag.Uint64("timer.seed", 0, "seed of the random histories, 0 = new")

// A page hands out all rows of an index in order, a higher band first, with loads that overlap additions.
func TestPage_EveryRowInOrder(t *testing.T) {
	t.Parallel()
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	for s := first; s < first+300; s++ {
		history(t, s)
	}
}

func history(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	fail := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("-timer.seed=%d: %s", seed, fmt.Sprintf(format, args...))
	}
	var index []Row // what the store has
	current := map[string]Row{}
	set := func(row Row) {
		if old, ok := current[row.Key]; ok {
			index = slices.DeleteFunc(index, func(x Row) bool { return x == old })
		}
		current[row.Key] = row
		at, _ := slices.BinarySearchFunc(index, row, compare)
		index = slices.Insert(index, at, row)
	}
	revision, patient, bands := uint64(0), r.IntN(4) > 0, 1+r.IntN(3)
	fresh := func() Row {
		revision++
		row := Row{At: r.Int64N(60), Key: fmt.Sprint(r.IntN(80)), Revision: revision, Band: int8(r.IntN(bands))}
		if patient {
			row.Slack = max(r.Int64N(40)-10, Apart)
		}
		return row
	}
	for range r.IntN(50) {
		set(fresh())
	}
	limit := 2 + r.IntN(10)
	p := New(limit, slices.Repeat([]int{1}, bands)...)
	sink := awakening{span: r.Int64N(8)}
	p.Awake(sink.span)
	flat := r.IntN(4) == 0
	p.Order(!flat)
	goesFirst := func(a, b Row) bool {
		if flat {
			return compare(a, b) < 0
		}
		return cmp.Or(cmp.Compare(a.Band, b.Band), compare(a, b)) < 0
	}
	var snapshot []Row
	loading, more, band := false, false, 0
	begin := func() {
		band, _ = p.NeedsLoad()
		after, n := p.BeginLoad(band)
		rest := slices.DeleteFunc(slices.Clone(index), func(r Row) bool { return int(r.Band) != band || compare(r, after) <= 0 })
		more = len(rest) > n
		snapshot, loading = rest[:min(n, len(rest))], true
	}
	needsLoad := func() bool {
		_, needs := p.NeedsLoad()
		return needs
	}
	now := int64(1)
	for range 400 {
		switch r.IntN(7) {
		case 6:
			sink.end(p, now)
		case 0, 1:
			row := fresh()
			row.At += now
			set(row)
			p.Add(row)
		case 2:
			if needsLoad() && !loading {
				begin()
			}
		case 3:
			if loading {
				loading = false
				if r.IntN(10) == 0 {
					p.AbortLoad(band)
				} else {
					p.EndLoad(band, snapshot, more)
				}
			}
		default:
			now += r.Int64N(3)
			for row, part, ok := p.Pop(now); ok; row, part, ok = p.Pop(now) {
				isCurrent := current[row.Key] == row // else stale: dropped, as the queue does
				if isCurrent && part == First && p.Outranked(row, now) {
					p.Release(now)
					p.Add(row)
					sink.released = now
					continue
				}
				for _, other := range index {
					if isCurrent && row.Slack != Apart && other.Slack != Apart && other.At <= now && goesFirst(other, row) {
						fail("%+v overtakes %+v at %d", row, other, now)
					}
				}
				if problem := sink.take(p, row, part, isCurrent, now); problem != "" {
					fail("%+v at %d: %s", row, now, problem)
				}
				if isCurrent {
					delete(current, row.Key)
					index = slices.DeleteFunc(index, func(x Row) bool { return x == row })
				}
			}
			if at, ok := p.Next(now); ok && at <= now {
				fail("Next at %d is %d, and Pop returns none", now, at)
			}
			for _, row := range index {
				if !loading && !needsLoad() && row.bound() <= now {
					fail("row %+v has used up its slack at %d and was not handed out", row, now)
				}
			}
		}
		if p.Len() > bands*(2*limit+4*limit+limit) {
			fail("%d rows in memory with a limit of %d", p.Len(), limit)
		}
	}
	if loading {
		p.EndLoad(band, snapshot, more)
	}
	for range 10000 {
		for needsLoad() {
			begin()
			loading = false
			p.EndLoad(band, snapshot, more)
		}
		row, _, ok := p.Pop(1 << 60)
		if !ok {
			break
		}
		if current[row.Key] == row {
			delete(current, row.Key)
			index = slices.DeleteFunc(index, func(x Row) bool { return x == row })
		}
	}
	if len(index) != 0 {
		fail("%d rows were never handed out: %+v", len(index), index)
	}
}

// awakening is what the sink of a page does.
type awakening struct {
	span, ended int64
	hosts       int
	released    int64
}

// take says what is wrong with a row that is handed out, "" if nothing is.
func (s *awakening) take(p *Page, row Row, part Part, isCurrent bool, now int64) string {
	awake := s.hosts > 0 || s.ended > 0 && now < s.ended+s.span
	switch part {
	case Host:
		s.hosts++
		defer func() {
			if !isCurrent {
				s.hosts--
				p.Done(now, false)
			}
		}()
	case First:
		defer func() {
			if isCurrent {
				s.hosts++
				s.released = now
				p.Begin(now)
			}
		}()
	}
	switch {
	case row.At > now:
		return "too early"
	case row.Slack == Apart && part != Guest, row.Slack != Apart && part == Guest && !awake:
		return fmt.Sprintf("part %d, awake %v", part, awake)
	case part == Host && p.patient > 0 && row.bound() > now && row.At > s.released && (awake || !s.leads(p)):
		return "it has slack, and wakes the sink"
	}
	return ""
}

// leads reports that the row goes before one that was let go.
func (s *awakening) leads(p *Page) bool {
	for _, b := range p.bands {
		if slices.ContainsFunc(b.rows, func(r Row) bool { return r.Slack != Apart && r.At <= s.released }) {
			return true
		}
	}
	return false
}

// end ends one of the deliveries.
func (s *awakening) end(p *Page, now int64) {
	if s.hosts > 0 {
		s.hosts--
		s.ended = now
		p.Done(now, true)
	}
}

// Cutting the page between rows of one key that differ by their revision alone loses none.
func TestPage_CutAtAStaleRowLosesNone(t *testing.T) {
	t.Parallel()
	p := New(2, 1)
	p.BeginLoad(0)
	p.EndLoad(0, nil, false)
	index := []Row{{At: 1, Key: "a", Revision: 1}, {At: 2, Key: "b", Revision: 3}, {At: 3, Key: "c", Revision: 4}}
	for _, r := range []Row{index[0], {At: 2, Key: "b", Revision: 2}, index[1], index[2], {At: 4, Key: "d", Revision: 5}} {
		p.Add(r)
	}
	got := map[Row]bool{}
	for {
		if _, needs := p.NeedsLoad(); needs {
			after, n := p.BeginLoad(0)
			behind := slices.DeleteFunc(slices.Clone(index), func(r Row) bool { return compare(r, after) <= 0 })
			p.EndLoad(0, behind[:min(n, len(behind))], len(behind) > n)
		}
		r, _, ok := p.Pop(9)
		if !ok {
			break
		}
		got[r] = true
	}
	for _, r := range index {
		if !got[r] {
			t.Errorf("%+v was not handed out", r)
		}
	}
}

// Add reports a new head.
func TestAdd_ReportsANewHead(t *testing.T) {
	t.Parallel()
	p := New(4, 1)
	p.BeginLoad(0)
	p.EndLoad(0, nil, false)
	for _, step := range []struct {
		at   int64
		head bool
	}{{10, true}, {20, false}, {5, true}, {7, false}} {
		if got := p.Add(Row{At: step.at, Key: "k"}); got != step.head {
			t.Errorf("Add at %d: head %v, want %v", step.at, got, step.head)
		}
	}
}

// What comes in while a page is loaded is put aside, up to a bound beyond which the load is made again.
func TestPage_SmallIsLoadedUnderAFlood(t *testing.T) {
	t.Parallel()
	for n, void := range map[int]bool{minArrivals: false, minArrivals + 1: true} {
		p := New(2, 1)
		p.BeginLoad(0)
		for i := range n {
			p.Add(Row{At: int64(i), Key: "k"})
		}
		p.EndLoad(0, nil, false)
		if _, needs := p.NeedsLoad(); (p.Len() == 0 && needs) != void {
			t.Errorf("%d rows came in: void %t, want %t", n, !void, void)
		}
	}
}

// A page that is made smaller gives its later rows back to the index.
func TestPage_ResizeDropsTheLaterRows(t *testing.T) {
	t.Parallel()
	p := New(100, 1)
	p.BeginLoad(0)
	p.EndLoad(0, nil, false)
	for i := range 100 {
		p.Add(Row{At: int64(i), Key: "k"})
	}
	p.Resize(10)
	for want := range int64(10) {
		if r, _, ok := p.Pop(1000); !ok || r.At != want {
			t.Fatalf("%+v, want %d", r, want)
		}
	}
	if _, needs := p.NeedsLoad(); !needs {
		t.Error("the rows that were dropped are not loaded again")
	}
}
