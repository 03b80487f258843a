// Package timer keeps the near horizon of one source: the next page of its
// due index, ordered by time, in bounded memory.
//
// It guarantees that [Page.Pop] never skips a row, and returns none before its time nor
// one with slack later than its slack allows: a row of the index is in the
// page, or behind the page's end and will be loaded, or was popped. A row may come
// twice, or be stale, when a key was rescheduled: the caller must compare it with
// the key's entry.
//
// How it works: a binary heap of rows and a position, the end, up to which the
// heap has all rows of the index. A new row before the end is added; a row behind
// it stays in the index only. When half of the page is used up the owner loads more
// rows from the end on, outside its lock. Rows that arrive during the load are put
// aside and sorted in when the load ends. When too many rows arrive before the end,
// the later half is dropped and the end moves back. Which due rows wait for company is
// in company.go.
//
// It does no I/O, has no clock and no lock: the queue has all three.
package timer

import (
	"cmp"
	"slices"
)

// Row is the instant, in Unix nanoseconds, at which a key must be looked at.
type Row struct {
	At       int64
	Key      string
	Revision uint64
	// Slack is for how long the row may wait for company, in nanoseconds, or [Apart].
	Slack int64
}

func compare(a, b Row) int {
	if c := cmp.Compare(a.At, b.At); c != 0 {
		return c
	}
	return cmp.Compare(a.Key, b.Key)
}

// Page is the near horizon. Its zero value is not ready; use [New].
type Page struct {
	limit    int
	rows     []Row // a heap
	end      Row   // all rows up to here are in the heap; counts unless complete
	complete bool  // the heap has all rows there are

	loading  bool
	arrivals []Row // arrived behind the end while loading
	overflow bool  // too many arrived: the load is void

	company
}

// New returns an empty page of about limit rows, at least 2. It needs a load.
func New(limit int) *Page {
	return &Page{limit: max(limit, 2), end: Row{At: never}, company: company{released: never, ended: never}}
}

// minArrivals is how many rows may be put aside during a load, however small the
// page: with many new rows a small page would void one load after the other.
const minArrivals = 1024

// Resize gives the page another limit and drops the rows beyond it: the index still
// has them.
func (p *Page) Resize(limit int) {
	p.limit = max(limit, 2)
	if len(p.rows) > 2*p.limit {
		p.trim()
	}
}

// Add adds a row of the index, and reports whether [Page.Next] may be sooner now.
func (p *Page) Add(r Row) bool {
	if !p.complete && compare(r, p.end) > 0 {
		switch {
		case !p.loading || p.overflow:
		case len(p.arrivals) >= max(4*p.limit, minArrivals):
			p.arrivals, p.overflow = nil, true
		default:
			p.arrivals = append(p.arrivals, r)
		}
		return false
	}
	p.push(r)
	if len(p.rows) > 2*p.limit {
		p.trim()
	}
	return p.rows[0] == r || p.patient > 0 && (!p.known || r.bound() <= min(p.must, p.apart))
}

// trim drops the later half of the page; the index still has it. Of several rows
// with the same key and instant only the newest is not stale. The new end must not
// lie between them, because the next load begins behind all of them.
func (p *Page) trim() {
	slices.SortFunc(p.rows, func(a, b Row) int {
		return cmp.Or(compare(a, b), cmp.Compare(b.Revision, a.Revision))
	}) // a sorted slice is a heap
	p.rows = compact(p.rows)
	defer p.count()
	if len(p.rows) <= p.limit {
		return
	}
	clear(p.rows[p.limit:])
	p.rows = p.rows[:p.limit]
	p.end, p.complete = p.rows[p.limit-1], false
	p.arrivals, p.overflow = nil, p.loading // a load under way began behind the new end
}

// compact keeps the first of the rows with the same key and instant.
func compact(rows []Row) []Row {
	return slices.CompactFunc(rows, func(a, b Row) bool { return compare(a, b) == 0 })
}

// take takes the i-th row off the heap.
func (p *Page) take(i int) Row {
	r, last := p.rows[i], len(p.rows)-1
	p.rows[i] = p.rows[last]
	p.rows[last] = Row{}
	p.rows = p.rows[:last]
	if i < last {
		p.down(i)
		p.up(i)
	}
	p.left(r)
	return r
}

// NeedsLoad reports that the page runs low and the index may have more.
func (p *Page) NeedsLoad() bool {
	return !p.complete && !p.loading && len(p.rows) <= p.limit/2
}

// BeginLoad returns the row of the index to read from, and how many rows to read.
func (p *Page) BeginLoad() (after Row, n int) {
	p.loading = true
	return p.end, max(p.limit-len(p.rows), 1)
}

// EndLoad adds the rows that were read, in order. more: the index has others behind
// them.
func (p *Page) EndLoad(rows []Row, more bool) {
	arrivals, void := p.arrivals, p.overflow
	p.loading, p.arrivals, p.overflow = false, nil, false
	if void {
		return
	}
	p.known = false // the end moves
	for _, r := range rows {
		p.push(r)
	}
	switch {
	case !more:
		p.complete = true
	case len(rows) > 0:
		p.end = rows[len(rows)-1]
	}
	for _, r := range arrivals {
		p.Add(r)
	}
}

// AbortLoad ends a load that failed.
func (p *Page) AbortLoad() {
	p.loading, p.arrivals, p.overflow = false, nil, false
}

// Restart drops all rows: the next load begins at the start of the index.
func (p *Page) Restart() {
	p.rows, p.end, p.complete = nil, Row{At: never}, false
	p.count()
	p.arrivals, p.overflow = nil, p.loading // a load under way began behind the new end
}

// Len is the number of rows in memory.
func (p *Page) Len() int { return len(p.rows) }

func (p *Page) push(r Row) {
	p.rows = append(p.rows, r)
	p.came(r)
	p.up(len(p.rows) - 1)
}

func (p *Page) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if compare(p.rows[parent], p.rows[i]) <= 0 {
			return
		}
		p.rows[parent], p.rows[i] = p.rows[i], p.rows[parent]
		i = parent
	}
}

func (p *Page) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(p.rows) {
			return
		}
		if right := child + 1; right < len(p.rows) && compare(p.rows[right], p.rows[child]) < 0 {
			child = right
		}
		if compare(p.rows[i], p.rows[child]) <= 0 {
			return
		}
		p.rows[i], p.rows[child] = p.rows[child], p.rows[i]
		i = child
	}
}
