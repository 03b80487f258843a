package watch

import (
	"errors"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

const (
	// batchItems and batchBytes bound a batch: the bytes of keys and events.
	batchItems = 256
	batchBytes = 256 << 10
)

// change is a change of one object, as it is stored.
type change struct {
	object  string
	items   []queue.Item
	marks   []store.MarkChange // one, or none
	version string             // of the watch after it, "" = it has none
	verb    verb
	more    int64 // objects that have a mark
}

// growth is how many bytes more the marks have after the change.
func (c *change) growth() (bytes int64) {
	for i := range c.marks {
		bytes += c.marks[i].Growth()
	}
	return bytes
}

// batch collects changes, for one write.
type batch struct {
	changes []change
	items   int
	bytes   int
	pending map[string]*store.Mark // as they will be; nil: none
}

func (b *batch) add(c change) {
	b.changes = append(b.changes, c)
	b.items += len(c.items) + len(c.marks)
	for i := range c.items {
		it := &c.items[i]
		b.bytes += len(it.Key) + 256
		if e := it.Request.Event; e != nil {
			b.bytes += len(e.Data) + len(e.Subject)
		}
	}
	if b.pending == nil {
		b.pending = map[string]*store.Mark{}
	}
	for i := range c.marks {
		b.pending[c.object] = nil
		if m := &c.marks[i]; !m.Remove {
			b.pending[c.object] = &m.Mark
		}
	}
}

func (b *batch) full() bool { return b.items >= batchItems || b.bytes >= batchBytes }

// reset empties the batch, and keeps nothing: hundreds of watches have one.
func (b *batch) reset() { *b = batch{} }

// progress is who follows what is stored.
type progress struct {
	// row is the state of the watch at a version, as it is stored with the changes; nil, or false:
	// no version is kept.
	row func(version string) (store.MarkChange, bool)
	// counted is the row of the number of marks and their bytes, when they change by so
	// much; nil: no row.
	counted func(more, growth int64) store.MarkChange
	// skip notes a change with several keys that a quota has no room for, so that the others go on; nil: all wait
	// for the change.
	skip func(c *change, refused error) error
	// done: these changes are stored, and the version if there is one.
	done func(changes []change, version string)
}

// report stores the changes in their order, and with them the version of the last one.
// Of a batch that exceeds a quota it stores the changes before the first one that does
// not fit, or all others if that one may be skipped.
func report(to Marks, changes []change, p progress) error {
	if len(changes) == 0 {
		return nil
	}
	var items []queue.Item
	var marks []store.MarkChange
	version, more, growth := "", int64(0), int64(0)
	for i := range changes {
		more, growth = more+changes[i].more, growth+changes[i].growth()
		items, marks = append(items, changes[i].items...), append(marks, changes[i].marks...)
		if changes[i].version != "" {
			version = changes[i].version
		}
	}
	if p.row == nil {
		version = ""
	}
	if version != "" {
		if row, ok := p.row(version); ok {
			marks = append(marks, row)
		}
	}
	if (more != 0 || growth != 0) && p.counted != nil {
		marks = append(marks, p.counted(more, growth))
	}
	err := to.Report(items, marks)
	if err == nil {
		p.done(changes, version)
		return nil
	}
	var refused *schedule.Error
	if !errors.As(err, &refused) || refused.Code != schedule.CodeQuota {
		return err
	}
	if len(changes) == 1 {
		// Without room for one key all changes wait.
		if p.skip == nil || len(items) < 2 || queue.MarksRefused(err) {
			return err
		}
		return p.skip(&changes[0], err)
	}
	half := len(changes) / 2
	if err := report(to, changes[:half], p); err != nil {
		return err
	}
	return report(to, changes[half:], p)
}
