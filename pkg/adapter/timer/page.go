// Package timer keeps the near horizon of one source: the next page of its
// due index, ordered by time, in bounded memory, for each of its bands. A band is
// the rows of one priority.
//
// It guarantees that [Page.Pop] never skips a row, and returns none before its time nor
// one with slack later than its slack allows: a row of the index is in the
// page, or behind the page's end and will be loaded, or was popped. A row may come
// twice, or be stale, when a key was rescheduled: the caller must compare it with
// the key's entry. A row of a lower band is not popped while one of a higher band may go.
//
// How it works: each band is a binary heap of rows and a position, the end, up to which the
// heap has all rows of the index (band.go). A new row before the end is added; a row behind
// it stays in the index only. When half of a band is used up the owner loads more
// rows from the end on, outside its lock. Rows that arrive during the load are put
// aside and sorted in when the load ends. When too many rows arrive before the end,
// the later half is dropped and the end moves back. Which due rows wait for company is
// in company.go.
//
// It does no I/O, has no clock and no lock: the queue has all three.
package timer

import "cmp"

// Row is the instant, in Unix nanoseconds, at which a key must be looked at.
type Row struct {
	At       int64
	Key      string
	Revision uint64
	// Slack is for how long the row may wait for company, in nanoseconds, or [Apart].
	Slack int64
	Band  int8 // 0 goes first
}

func compare(a, b Row) int {
	if c := cmp.Compare(a.At, b.At); c != 0 {
		return c
	}
	return cmp.Compare(a.Key, b.Key)
}

// Page is the near horizon. Its zero value is not ready; use [New].
type Page struct {
	bands    []band
	divisors []int // of the limit, by band
	flat     bool  // bands make no difference
	company
}

// New returns an empty page with a band for each divisor, of about limit/divisor rows, at least 2. Each needs a load.
func New(limit int, divisors ...int) *Page {
	p := &Page{bands: make([]band, len(divisors)), divisors: divisors, company: company{released: never, ended: never}}
	p.Resize(limit)
	p.Restart()
	return p
}

// Order sets whether rows of a higher band go first, or all are in the order of time.
func (p *Page) Order(byBand bool) { p.flat, p.known = !byBand, false }

// Resize gives the bands another limit and drops the rows beyond it: the index still
// has them.
func (p *Page) Resize(limit int) {
	for i := range p.bands {
		b := &p.bands[i]
		b.limit = max(limit/p.divisors[i], 2)
		p.trim(b)
	}
}

// Add adds a row of the index, and reports whether [Page.Next] may be sooner now.
func (p *Page) Add(r Row) bool {
	b := &p.bands[r.Band]
	if !b.add(r) {
		return false
	}
	p.came(r)
	p.trim(b)
	return b.rows[0] == r || p.patient > 0 && (!p.known || r.bound() <= min(p.must, p.apart))
}

func (p *Page) trim(b *band) {
	if len(b.rows) > 2*b.limit {
		b.trim()
		p.count()
	}
}

// take takes the i-th row off the heap of a band.
func (p *Page) take(b *band, i int) Row {
	r := b.take(i)
	p.left(b, r)
	return r
}

// NeedsLoad returns the first band that runs low while the index may have more of it; false if none does.
func (p *Page) NeedsLoad() (band int, ok bool) {
	for i := range p.bands {
		if p.bands[i].needsLoad() {
			return i, true
		}
	}
	return 0, false
}

// BeginLoad returns the row of the index to read a band from, and how many rows to read.
func (p *Page) BeginLoad(band int) (after Row, n int) {
	b := &p.bands[band]
	b.loading = true
	return b.end, max(b.limit-len(b.rows), 1)
}

// EndLoad adds the rows of a band that were read, in order. more: the index has others behind
// them.
func (p *Page) EndLoad(band int, rows []Row, more bool) {
	b := &p.bands[band]
	arrivals, void := b.arrivals, b.overflow
	b.loading, b.arrivals, b.overflow = false, nil, false
	if void {
		return
	}
	for _, r := range rows {
		b.push(r)
	}
	switch {
	case !more:
		b.complete = true
	case len(rows) > 0:
		b.end = rows[len(rows)-1]
	}
	p.count() // also because the end moves
	for _, r := range arrivals {
		p.Add(r)
	}
}

// AbortLoad ends a load that failed.
func (p *Page) AbortLoad(band int) {
	b := &p.bands[band]
	b.loading, b.arrivals, b.overflow = false, nil, false
}

// Restart drops all rows: the next loads begin at the start of the index.
func (p *Page) Restart() {
	for i := range p.bands {
		p.bands[i].restart()
	}
	p.count()
}

// Len is the number of rows in memory.
func (p *Page) Len() (n int) {
	for i := range p.bands {
		n += len(p.bands[i].rows)
	}
	return n
}

// open are the bands whose next row is known: a band that must be loaded may have a due row, and hides the bands
// below it until then, or all if bands make no difference.
func (p *Page) open() []band {
	for i := range p.bands {
		switch b := &p.bands[i]; {
		case len(b.rows) > 0 || b.complete:
		case p.flat:
			return nil
		default:
			return p.bands[:i]
		}
	}
	return p.bands
}

// head is the row with the earliest time.
func (p *Page) head() (head Row, ok bool) {
	open := p.open()
	for i := range open {
		if b := &open[i]; len(b.rows) > 0 && (!ok || b.rows[0].At < head.At) {
			head, ok = b.rows[0], true
		}
	}
	return head, ok
}
