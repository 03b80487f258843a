package timer

import (
	"math"
	"slices"
)

// Rows with slack wait for company, so that they wake the sink together. That is a property of the rows in
// memory, and no other index: while all rows that are due have slack left and the sink sleeps, none is handed
// out. When the first row of the page has used up its slack it is handed out, and once the caller has compared
// it with its entry, since it may be stale, [Page.Release] lets all due rows go, oldest first.
//
// A row behind the page's end is due later than all rows of the page, but may have less slack. Therefore rows
// wait no longer than until the time of the end: then the whole page is due. So a source with more keys within
// its slack than a page has wakes its sink once for each page.
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
	First             // a Host for which the others wait; if it is not stale the caller must call Release
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
	if len(p.rows) == 0 {
		return 0, false
	}
	head := p.rows[0]
	if p.patient == 0 || head.Slack == Apart || head.At <= p.released || p.awake(max(now, head.At)) {
		return head.At, true
	}
	p.look()
	return min(p.must, p.apart), true
}

// Must is when a row that is not Apart goes at the latest, in memory or behind the end; false if there is none.
func (p *Page) Must() (at int64, ok bool) {
	if len(p.rows) == 0 {
		return 0, false
	}
	if head := p.rows[0]; p.patient == 0 && head.Slack != Apart {
		return head.At, true
	}
	p.look()
	return p.must, p.must != math.MaxInt64
}

// Waits returns until when due rows wait for company, false if none does.
func (p *Page) Waits(now int64) (until int64, ok bool) {
	if at, ok := p.Next(now); !ok || at <= now || p.rows[0].At > now {
		return 0, false
	}
	return p.Must()
}

// Lets returns the instant up to which rows that are due by then go, whatever their slack.
func (p *Page) Lets(now, by int64) int64 {
	if p.patient == 0 || p.awake(max(now, by)) || !p.complete && p.end.At <= by {
		return math.MaxInt64
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
	i, part, ok := p.choose(now)
	if !ok {
		return Row{}, Guest, false
	}
	if part != Guest {
		p.hosts++
	}
	return p.take(i), part, true
}

// Due is the time of the row that Pop returns; false if it returns none.
func (p *Page) Due(now int64) (at int64, ok bool) {
	i, _, ok := p.choose(now)
	if !ok {
		return 0, false
	}
	return p.rows[i].At, true
}

// ApartIsDue reports whether PopApart returns a row.
func (p *Page) ApartIsDue(now int64) bool {
	if len(p.rows) == 0 || p.rows[0].At > now {
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
	return p.take(slices.IndexFunc(p.rows, func(r Row) bool { return r.Slack == Apart && r.At == p.apart })), true
}

// choose returns the next row that may go.
func (p *Page) choose(now int64) (i int, part Part, ok bool) {
	if len(p.rows) == 0 || p.rows[0].At > now {
		return 0, Guest, false
	}
	switch head := p.rows[0]; {
	case head.Slack == Apart:
		return 0, Guest, true
	case p.patient == 0 || head.At <= p.released || p.awake(now) && head.bound() <= now:
		return 0, Host, true
	case p.awake(now):
		return 0, Guest, true
	}
	p.look()
	switch {
	case p.must <= now:
		first := -1
		for i, r := range p.rows { // the oldest
			if r.Slack != Apart && r.bound() <= now && (first < 0 || compare(r, p.rows[first]) < 0) {
				first = i
			}
		}
		return max(first, 0), First, true // without one the page's end has come
	case p.apart <= now:
		return slices.IndexFunc(p.rows, func(r Row) bool { return r.Slack == Apart && r.At == p.apart }), Guest, true
	}
	return 0, Guest, false
}

// Release lets all rows go that are due.
func (p *Page) Release(now int64) { p.released = max(p.released, now) }

// Done ends what a Host began: its delivery, or nothing if it was stale.
func (p *Page) Done(now int64, delivered bool) {
	p.hosts--
	if delivered {
		p.ended = max(p.ended, now)
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

// came notes a row more, left one less.
func (p *Page) came(r Row) {
	if r.Slack > 0 {
		p.patient++
	}
	if first := p.first(r); p.known {
		*first = min(*first, r.bound())
	}
}

func (p *Page) left(r Row) {
	if r.Slack > 0 {
		p.patient--
	}
	p.known = p.known && r.bound() > *p.first(r)
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
	for _, r := range p.rows {
		if r.Slack > 0 {
			p.patient++
		}
	}
}

// look finds must and apart.
func (p *Page) look() {
	if p.known {
		return
	}
	p.known, p.must, p.apart = true, math.MaxInt64, math.MaxInt64
	if !p.complete {
		p.must = p.end.At
	}
	for _, r := range p.rows {
		first := p.first(r)
		*first = min(*first, r.bound())
	}
}
