// Package timer keeps the near horizon of one source: the next page of its
// due index, ordered by time, in bounded memory.
//
// It guarantees that [Page.Pop] never skips a row: a row of the index is in the
// page, or behind the page's end and will be loaded, or was popped. A row may come
// twice, or be stale, when a key was rescheduled: the caller must compare it with
// the key's entry.
//
// How it works: a binary heap of rows and a position, the end, up to which the
// heap has all rows of the index. A new row before the end is added; a row behind
// it stays in the index only. When half of the page is used up the owner loads more
// rows from the end on, outside its lock. Rows that arrive during the load are put
// aside and sorted in when the load ends. When too many rows arrive before the end,
// the later half is dropped and the end moves back.
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
}

// New returns an empty page of about limit rows, at least 2. It needs a load.
func New(limit int) *Page {
	return &Page{limit: max(limit, 2), end: Row{At: -1 << 63}}
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

// Add adds a row of the index, and reports whether the row is the next one now.
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
	return p.rows[0] == r
}

// trim drops the later half of the page; the index still has it. Of several rows
// with the same key and instant only the newest is not stale. The new end must not
// lie between them, because the next load begins behind all of them.
func (p *Page) trim() {
	slices.SortFunc(p.rows, func(a, b Row) int {
		return cmp.Or(compare(a, b), cmp.Compare(b.Revision, a.Revision))
	}) // a sorted slice is a heap
	p.rows = compact(p.rows)
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

// Head is the time of the next row.
func (p *Page) Head() (at int64, ok bool) {
	if len(p.rows) == 0 {
		return 0, false
	}
	return p.rows[0].At, true
}

// HeadKey is the key of the next row, "" without one.
func (p *Page) HeadKey() string {
	if len(p.rows) == 0 {
		return ""
	}
	return p.rows[0].Key
}

// First is the time of the first row in memory whose key is one of those wanted.
func (p *Page) First(wanted func(key string) bool) (at int64, ok bool) {
	for _, r := range p.rows {
		if (!ok || r.At < at) && wanted(r.Key) {
			at, ok = r.At, true
		}
	}
	return at, ok
}

// Pop takes the next row off if its time has come.
func (p *Page) Pop(now int64) (Row, bool) {
	if len(p.rows) == 0 || p.rows[0].At > now {
		return Row{}, false
	}
	r := p.rows[0]
	last := len(p.rows) - 1
	p.rows[0] = p.rows[last]
	p.rows[last] = Row{}
	p.rows = p.rows[:last]
	p.down()
	return r, true
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
	p.rows, p.end, p.complete = nil, Row{At: -1 << 63}, false
	p.arrivals, p.overflow = nil, p.loading // a load under way began behind the new end
}

// Len is the number of rows in memory.
func (p *Page) Len() int { return len(p.rows) }

func (p *Page) push(r Row) {
	p.rows = append(p.rows, r)
	for i := len(p.rows) - 1; i > 0; {
		parent := (i - 1) / 2
		if compare(p.rows[parent], p.rows[i]) <= 0 {
			return
		}
		p.rows[parent], p.rows[i] = p.rows[i], p.rows[parent]
		i = parent
	}
}

func (p *Page) down() {
	for i := 0; ; {
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
