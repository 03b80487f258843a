package timer

import (
	"math"
	"slices"
)

// Rows with slack wait for company, so that they wake the sink together. That is a property of the rows in
// memory, and no other index: while all rows that are due have slack left and the sink sleeps, none is handed
// out. When the first row of the page has used up its slack it is handed out, and once the caller has compared
// it with its entry, since it may be stale, [Page.Begin] lets all due rows go, oldest first.
//
// A row behind the end of a band is due later than all its rows in memory, but may have less slack. Therefore rows
// wait no longer than until the time of the end: then all of them are due. So a source with more keys within
// its slack than a page has wakes its sink once for each page.
//
// The row that has used up its slack is handed out first, also before due rows of a higher band, because only the
// caller can tell that it is not stale. When [Page.Outranked] says so the caller must put it back, behind them.
//
// While the sink is awake each due row is handed out, also with slack left. Such a [Guest] does not keep the
// sink awake for others: with many keys each would come within the time of the one before.

// Apart is the Slack of a row for another sink: it does not wait, and does not wake the sink for others.
const Apart = -1

// Part is what a row that was handed out means for the company.
type Part uint8

// The parts.
const (
	Guest Part = iota // it went because the sink was awake, or to another sink
	Host              // it keeps the sink awake; the caller must call Done
	First             // for which the others wait; it is a Host, if it is not stale, from Begin on
)

// company is which rows may go, and how long the sink is awake.
type company struct {
	patient  int   // rows with slack: without any, rows go when they are due
	released int64 // rows up to here do not wait any more

	known       bool  // else must and apart have to be looked for
	must, apart int64 // the first end of a slack, or the page's end; the first time of a row that is Apart

	span  int64 // for how long the sink is awake after a delivery
	hosts int   // deliveries under way
	ended int64 // when the last one ended
}

const never = math.MinInt64

// Awake sets for how long the sink is awake after the end of a delivery.
func (p *Page) Awake(span int64) { p.span = span }

// Next is when Pop may return a row; false if no time is known.
func (p *Page) Next(now int64) (at int64, ok bool) {
	head, ok := p.head()
	if !ok || p.patient == 0 || head.Slack == Apart || head.At <= p.released || p.awake(max(now, head.At)) {
		return head.At, ok
	}
	p.look()
	return min(p.must, p.apart), true
}

// Must is when a row that is not Apart goes at the latest, in memory or behind the end; false if there is none.
func (p *Page) Must() (at int64, ok bool) {
	head, ok := p.head()
	if !ok || p.patient == 0 && head.Slack != Apart {
		return head.At, ok
	}
	p.look()
	return p.must, p.must != math.MaxInt64
}

// Waits returns until when due rows wait for company, false if none does.
func (p *Page) Waits(now int64) (until int64, ok bool) {
	if at, ok := p.Next(now); !ok || at <= now {
		return 0, false
	}
	if head, _ := p.head(); head.At > now {
		return 0, false
	}
	return p.Must()
}

// Lets returns the instant up to which rows that are due by then go, whatever their slack.
func (p *Page) Lets(now, by int64) int64 {
	if p.patient == 0 || p.awake(max(now, by)) {
		return math.MaxInt64
	}
	for _, b := range p.bands {
		if !b.complete && b.end.At <= by {
			return math.MaxInt64
		}
	}
	return p.released
}

// Pop takes off the next row that may go.
func (p *Page) Pop(now int64) (Row, Part, bool) {
	if p.released > now { // the clock went back
		p.released = never
	}
	if p.ended > now {
		p.ended = never
	}
	b, i, part := p.choose(now)
	if b == nil {
		return Row{}, Guest, false
	}
	if part == Host {
		p.hosts++
	}
	return p.take(b, i), part, true
}

// Due is the time of the row that Pop returns; false if it returns none.
func (p *Page) Due(now int64) (at int64, ok bool) {
	b, i, _ := p.choose(now)
	if b == nil {
		return 0, false
	}
	return b.rows[i].At, true
}

// ApartIsDue reports whether PopApart returns a row.
func (p *Page) ApartIsDue(now int64) bool {
	if head, ok := p.head(); !ok || head.At > now {
		return false
	}
	p.look()
	return p.apart <= now
}

// PopApart takes off the first due row that is Apart, also from behind others.
func (p *Page) PopApart(now int64) (Row, bool) {
	if !p.ApartIsDue(now) {
		return Row{}, false
	}
	b, i := p.firstApart()
	return p.take(b, i), true
}

// firstApart returns the band and the place of a row that is Apart and due at p.apart.
func (p *Page) firstApart() (*band, int) {
	open := p.open()
	for i := range open {
		if at := open[i].first(func(r Row) bool { return r.Slack == Apart && r.At == p.apart }); at >= 0 {
			return &open[i], at
		}
	}
	return nil, 0
}

// choose returns the next row that may go: its band, nil if there is none, and its place.
func (p *Page) choose(now int64) (top *band, i int, part Part) {
	open, awake := p.open(), p.awake(now)
	free := awake || p.patient == 0
	for i := range open {
		if b := &open[i]; len(b.rows) > 0 && b.rows[0].At <= now {
			if top == nil || p.before(b.rows[0], top.rows[0]) {
				top = b
			}
			free = free || b.rows[0].Slack != Apart && b.rows[0].At <= p.released
		}
	}
	if top == nil {
		return nil, 0, Guest
	}
	switch head := top.rows[0]; {
	case head.Slack == Apart, free && awake && head.At > p.released && head.bound() > now:
		return top, 0, Guest
	case free:
		return top, 0, Host
	}
	p.look()
	switch {
	case p.must <= now:
		var last *band // its row has used up its slack
		for n := range open {
			b := &open[n]
			at := b.first(func(r Row) bool { return r.Slack != Apart && r.bound() <= now })
			if at >= 0 && (last == nil || p.before(b.rows[at], last.rows[i])) {
				last, i = b, at
			}
		}
		if last == nil { // the end of a band has come
			return top, 0, First
		}
		return last, i, First
	case p.apart <= now:
		b, i := p.firstApart()
		return b, i, Guest
	}
	return nil, 0, Guest
}

// Outranked reports whether a due row goes before one that was popped, once all go that are due. Where that was the
// last row of its band the bands below are hidden; they count all the same if all are in the order of time.
func (p *Page) Outranked(r Row, now int64) bool {
	return slices.ContainsFunc(p.bands, func(b band) bool {
		return len(b.rows) > 0 && b.rows[0].At <= now && b.rows[0].Slack != Apart && p.before(b.rows[0], r)
	})
}

// before reports whether a row goes first when both are due.
func (p *Page) before(a, b Row) bool {
	if a.Band != b.Band && !p.flat {
		return a.Band < b.Band
	}
	return compare(a, b) < 0
}

// Begin makes a First the Host that lets all rows go that are due. Before that, it may be stale, and wakes nothing.
func (p *Page) Begin(now int64) {
	p.Release(now)
	p.hosts++
}

// Release lets all rows go that are due.
func (p *Page) Release(now int64) { p.released = max(p.released, now) }

// Done ends what a Host began: its delivery, or nothing if it was stale.
func (p *Page) Done(now int64, delivered bool) {
	p.hosts--
	if delivered {
		p.ended = now // also if it is less than before: the clock went back
	}
}

func (p *Page) awake(at int64) bool { return p.hosts > 0 || at >= p.ended && at < p.ended+p.span }

// bound is when the row goes at the latest.
func (r Row) bound() int64 {
	if r.Slack > 0 && r.At > math.MaxInt64-r.Slack {
		return math.MaxInt64
	}
	return r.At + max(r.Slack, 0)
}

// came notes a row more, left one less. A row that comes first or goes last may open or hide the bands below.
func (p *Page) came(r Row) {
	if r.Slack > 0 {
		p.patient++
	}
	b := &p.bands[r.Band]
	if !b.complete && len(b.rows) == 1 {
		p.known = false
	}
	if first := p.first(r); p.known && int(r.Band) < len(p.open()) {
		*first = min(*first, r.bound())
	}
}

func (p *Page) left(b *band, r Row) {
	if r.Slack > 0 {
		p.patient--
	}
	p.known = p.known && r.bound() > *p.first(r) && (b.complete || len(b.rows) > 0)
}

// first is the one of must and apart that the row is for.
func (p *Page) first(r Row) *int64 {
	if r.Slack == Apart {
		return &p.apart
	}
	return &p.must
}

// count counts the rows when others are in memory.
func (p *Page) count() {
	p.patient, p.known = 0, false
	for _, b := range p.bands {
		for _, r := range b.rows {
			if r.Slack > 0 {
				p.patient++
			}
		}
	}
}

// look finds must and apart.
func (p *Page) look() {
	if p.known {
		return
	}
	p.known, p.must, p.apart = true, math.MaxInt64, math.MaxInt64
	for _, b := range p.open() {
		if !b.complete {
			p.must = min(p.must, b.end.At)
		}
		for _, r := range b.rows {
			first := p.first(r)
			*first = min(*first, r.bound())
		}
	}
}
