package timer

import (
	"cmp"
	"slices"
)

// band is the rows of one priority. Its zero value is not ready: see restart.
type band struct {
	limit    int
	rows     []Row // a heap
	end      Row   // all rows up to here are in the heap; counts unless complete
	complete bool  // the heap has all rows there are

	loading  bool
	arrivals []Row // arrived behind the end while loading
	overflow bool  // too many arrived: the load is void
}

// minArrivals is how many rows may be put aside during a load, however small the
// page: with many new rows a small page would void one load after the other.
const minArrivals = 1024

func (b *band) restart() {
	b.rows, b.end, b.complete = nil, Row{At: never}, false
	b.arrivals, b.overflow = nil, b.loading // a load under way began behind the new end
}

func (b *band) needsLoad() bool { return !b.complete && !b.loading && len(b.rows) <= b.limit/2 }

// add reports whether the row is in the heap now.
func (b *band) add(r Row) bool {
	if b.complete || compare(r, b.end) <= 0 {
		b.push(r)
		return true
	}
	switch {
	case !b.loading || b.overflow:
	case len(b.arrivals) >= max(4*b.limit, minArrivals):
		b.arrivals, b.overflow = nil, true
	default:
		b.arrivals = append(b.arrivals, r)
	}
	return false
}

// trim drops the later half; the index still has it. Of several rows
// with the same key and instant only the newest is not stale. The new end must not
// lie between them, because the next load begins behind all of them.
func (b *band) trim() {
	slices.SortFunc(b.rows, func(x, y Row) int {
		return cmp.Or(compare(x, y), cmp.Compare(y.Revision, x.Revision))
	}) // a sorted slice is a heap
	b.rows = slices.CompactFunc(b.rows, func(x, y Row) bool { return compare(x, y) == 0 })
	if len(b.rows) <= b.limit {
		return
	}
	clear(b.rows[b.limit:])
	b.rows = b.rows[:b.limit]
	b.end, b.complete = b.rows[b.limit-1], false
	b.arrivals, b.overflow = nil, b.loading // a load under way began behind the new end
}

func (b *band) push(r Row) {
	b.rows = append(b.rows, r)
	b.up(len(b.rows) - 1)
}

// take takes the i-th row off the heap.
func (b *band) take(i int) Row {
	r, last := b.rows[i], len(b.rows)-1
	b.rows[i] = b.rows[last]
	b.rows[last] = Row{}
	b.rows = b.rows[:last]
	if i < last {
		b.down(i)
		b.up(i)
	}
	return r
}

func (b *band) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if compare(b.rows[parent], b.rows[i]) <= 0 {
			return
		}
		b.rows[parent], b.rows[i] = b.rows[i], b.rows[parent]
		i = parent
	}
}

func (b *band) down(i int) {
	for {
		child := 2*i + 1
		if child >= len(b.rows) {
			return
		}
		if right := child + 1; right < len(b.rows) && compare(b.rows[right], b.rows[child]) < 0 {
			child = right
		}
		if compare(b.rows[i], b.rows[child]) <= 0 {
			return
		}
		b.rows[i], b.rows[child] = b.rows[child], b.rows[i]
		i = child
	}
}

// first returns the place of the first of the rows that are asked for, -1 if there is none.
func (b *band) first(is func(Row) bool) int {
	first := -1
	for i, r := range b.rows {
		if is(r) && (first < 0 || compare(r, b.rows[first]) < 0) {
			first = i
		}
	}
	return first
}
