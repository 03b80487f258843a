package api

import (
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// maxItems bounds a bulk call.
const maxItems = 1000

// pooledItems is the largest batch whose memory is kept for later requests.
const pooledItems = 256

var bulkFields = names{"items"}

// batch is a bulk call's items as far as they are well formed, and where each
// came from.
type batch struct {
	items []queue.Item
	// outcomes has one for each item of the request: its fault, or none when it
	// is the next of items.
	outcomes []outcome
}

type outcome struct {
	key   string
	fault *schedule.Error
}

// reset drops the items. The queue has kept what it needs of them, which is
// never the slice.
func (b *batch) reset() {
	if cap(b.items) > pooledItems {
		*b = batch{}
		return
	}
	clear(b.items)
	clear(b.outcomes)
	b.items, b.outcomes = b.items[:0], b.outcomes[:0]
}

// bulk reads the body of a bulk call. A fault of one item is its own; the
// error is about the whole body. The batch is the decoder's.
func (d *decoder) bulk(parent, state string) (*batch, error) {
	b := &d.batch
	d.start()
	inside, err := d.enter("body")
	if err != nil {
		return b, err
	}
	given := false
	var seen uint32
	for inside {
		name, more, err := d.member()
		if err != nil {
			return b, err
		}
		if !more {
			break
		}
		if bulkFields.lookup(name) < 0 {
			if err := d.unknown("", name, bulkFields); err != nil {
				return b, err
			}
			continue
		}
		if d.once(&seen, 0, "items"); d.fault != nil {
			return b, d.fault
		}
		if given, err = d.items(b, parent, state); err != nil {
			return b, err
		}
	}
	if err := d.end(); err != nil {
		return b, err
	}
	if !given {
		d.refuse(schedule.Invalid("items", "is missing"))
	}
	if d.fault != nil {
		return b, d.fault
	}
	return b, nil
}

// items reads the array; false when it is null.
func (d *decoder) items(b *batch, parent, state string) (given bool, err error) {
	if d.dec.PeekKind() != '[' {
		v, err := d.value()
		if v != nil {
			d.refuse(schedule.Invalid("items", "is not an array"))
		}
		return v != nil, err
	}
	if _, err := d.dec.ReadToken(); err != nil {
		return false, d.broken(err)
	}
	whole := d.fault // of the body; each item begins without
	for passed := int64(0); d.dec.PeekKind() != ']'; {
		if at := d.dec.InputOffset(); at-passed >= budget.LongBytes {
			if passed = at; d.pass != nil {
				if err := d.pass(); err != nil {
					return false, err
				}
			}
		}
		if len(b.outcomes) == maxItems {
			return false, schedule.Invalid("items", "has more than %d items", maxItems)
		}
		d.fault = nil
		b.items = append(b.items, queue.Item{Request: schedule.Request{TraceParent: parent, TraceState: state}})
		it := &b.items[len(b.items)-1]
		if d.dec.PeekKind() == 'n' { // only a field may be null
			d.refuse(schedule.Invalid("item", "is not an object"))
		}
		if err := d.request("item", itemFields, &it.Request, &it.Key); err != nil {
			return false, err
		}
		if it.Key == "" {
			d.refuse(schedule.Invalid("key", "is missing"))
		}
		b.outcomes = append(b.outcomes, outcome{key: it.Key, fault: d.fault})
		if d.fault != nil {
			*it = queue.Item{}
			b.items = b.items[:len(b.items)-1]
		}
	}
	d.fault = whole
	_, err = d.dec.ReadToken()
	return true, d.broken(err)
}
