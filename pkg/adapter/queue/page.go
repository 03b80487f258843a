package queue

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/timer"
)

// page is the near horizon of a source: the next rows of its due index, in memory, for each priority, and
// the slots of its dead letters. mu guards all of it but again.
type page struct {
	s *Source

	mu      sync.Mutex
	rows    *timer.Page
	letters letterSlots
	queued  bool // a load waits for its turn, or is under way

	again atomic.Int64 // keys that wait to be read once more
}

// pageDivisors are the shares of a page, by priority: most keys are normal, and after a resync low. High keys, and dead
// letters, are few.
var pageDivisors = [schedule.Bands]int{4, 1, 2}

// letterSlots are the dead letters under way, and the due ones that wait for a slot.
// They have slots of their own: in the slots of the keys, a dead letter sink that
// hangs would stop its source.
type letterSlots struct {
	flights  int
	deferred []timer.Row
	more     bool // deferred is full: the index has more
}

// maxDeferred bounds the deferred rows; further ones stay in the index.
const maxDeferred = 1024

// hasSlot reports whether one more may be under way: a quarter as many as keys.
func (l *letterSlots) hasSlot(s *schedule.Spec) bool { return l.flights < max(1, s.MaxInFlight/4) }

// dueRow is a row that may go, and the settings of the moment when it was taken.
type dueRow struct {
	timer.Row
	part     timer.Part
	settings *schedule.Spec
}

// take pops the next row that may go and has a slot, and takes the slot if it is a
// dead letter's; letters: only a dead letter's row. Of a suspended source no row is taken. The caller
// must call done.
func (p *page) take(now time.Time, letters bool) (t dueRow, ok bool) {
	p.mu.Lock()
	t.settings = p.s.Spec() // with the lock: a key that came after the source was suspended is not taken
	if t.settings.Suspend {
		p.mu.Unlock()
		return t, false
	}
	t.Row, t.part, ok = p.next(t.settings, now, letters)
	_, low := p.rows.NeedsLoad()
	p.mu.Unlock()
	if low {
		p.load()
	}
	return t, ok
}

// next is take under the lock.
func (p *page) next(settings *schedule.Spec, now time.Time, letters bool) (timer.Row, timer.Part, bool) {
	l := &p.letters
	if l.hasSlot(settings) {
		for len(l.deferred) > 0 {
			row := l.deferred[0]
			l.deferred = l.deferred[1:]
			if row.At > now.UnixNano() { // the clock went back: its time has yet to come
				p.rows.Add(row)
				continue
			}
			l.flights++
			return row, timer.Guest, true
		}
		if l.more { // the rows that were left in the index are in front of the page
			l.deferred, l.more = nil, false
			p.rows.Restart()
		}
	}
	if letters {
		row, ok := timer.Row{}, false
		if l.hasSlot(settings) {
			if row, ok = p.rows.PopApart(now.UnixNano()); ok {
				l.flights++
			}
		}
		return row, timer.Guest, ok
	}
	for {
		row, part, ok := p.rows.Pop(now.UnixNano())
		switch {
		case !ok || row.Slack != timer.Apart:
			return row, part, ok
		case l.hasSlot(settings):
			l.flights++
			return row, part, true
		case len(l.deferred) < maxDeferred:
			l.deferred = append(l.deferred, row)
		default:
			l.more = true
		}
	}
}

// done ends what take began, and gives back the slot if it was a dead letter's. delivered: a delivery has
// ended, otherwise the row was stale.
func (p *page) done(key string, part timer.Part, delivered bool) {
	letter := schedule.IsDeadLetterKey(key)
	if !letter && (part == timer.Guest || part == timer.First && !delivered) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if letter {
		p.letters.flights--
	} else {
		p.rows.Done(p.s.now().UnixNano(), delivered)
	}
}

// began lets all due keys go if they waited for the one whose delivery begins.
func (p *page) began(part timer.Part, now time.Time) {
	if part == timer.First {
		p.mu.Lock()
		p.rows.Begin(now.UnixNano())
		p.mu.Unlock()
	}
}

// outranked reports whether another due key goes before a row that has used up its slack: then all due keys go, and
// the row is put back, behind it.
func (p *page) outranked(row dueRow, now time.Time) bool {
	if row.part != timer.First {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.rows.Outranked(row.Row, now.UnixNano()) {
		return false
	}
	p.rows.Release(now.UnixNano())
	p.rows.Add(row.Row)
	return true
}

// companyUntil is until when due keys wait for company; zero if none does.
func (p *page) companyUntil(now time.Time) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.s.Spec().Suspend {
		return time.Time{}
	}
	return instant(p.rows.Waits(now.UnixNano()))
}

func instant(at int64, ok bool) time.Time {
	if !ok {
		return time.Time{}
	}
	return time.Unix(0, at)
}

// row is the row of the page for a row of the due index.
func (p *page) row(r store.Row) timer.Row {
	t := timer.Row{At: r.At.UnixNano(), Key: r.Key, Revision: r.Revision, Slack: timer.Apart, Band: int8(r.Priority.Band())}
	if !schedule.IsDeadLetterKey(r.Key) {
		t.Slack = int64(p.s.Spec().Resolve(r.Slack))
	}
	return t
}

// set gives the page what has changed of the settings of its source. With another slack its rows are read again.
func (p *page) set(old, now *schedule.Spec) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rows.Awake(int64(now.Company))
	p.rows.Order(!now.Scale.Sinkless)
	if old.Slack != now.Slack {
		p.rows.Restart()
	}
}

// add puts an entry into the page and reports whether it is the next one.
func (p *page) add(key string, e *schedule.Entry) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rows.Add(p.row(rowOf(key, e)))
}

// rowOf is the row that an entry has in the due index.
func rowOf(key string, e *schedule.Entry) store.Row {
	return store.Row{Position: store.Position{At: e.At(), Key: key}, Revision: e.Revision, Slack: e.OwnSlack(), Priority: e.Rank()}
}

// resize gives the page another size.
func (p *page) resize(rows int) {
	p.mu.Lock()
	p.rows.Resize(rows)
	p.mu.Unlock()
}

// load reads the next page of the due index in the background when the page
// in memory runs low.
func (p *page) load() {
	p.mu.Lock()
	_, needed := p.rows.NeedsLoad()
	needed = needed && !p.queued
	p.queued = p.queued || needed
	p.mu.Unlock()
	if !needed {
		return
	}
	q := p.s.q
	q.work.Go(func() {
		// The load begins when its turn has come: rows that arrive during the load are
		// put aside, and too many of them make it void.
		q.loads <- struct{}{}
		err := p.readAll()
		<-q.loads
		if errors.Is(err, errRemoved) || errors.Is(err, store.ErrClosed) {
			return
		}
		if err != nil {
			q.cfg.Log.Error("the due index cannot be read; trying again", "source", p.s.Spec().Path(), "error", err)
			select {
			case <-time.After(time.Second):
				p.loaded()
				p.load()
			case <-q.stop:
			}
			return
		}
		p.loaded()
		p.load() // too many rows may have arrived, which made it void
		q.cfg.Wake(p.s)
	})
}

// loaded lets the next load begin.
func (p *page) loaded() {
	p.mu.Lock()
	p.queued = false
	p.mu.Unlock()
}

var errRemoved = errors.New("queue: the source was removed")

// readAll reads rows of each priority that runs low.
func (p *page) readAll() error {
	for {
		p.mu.Lock()
		band, low := p.rows.NeedsLoad()
		if !low {
			p.mu.Unlock()
			return nil
		}
		after, n := p.rows.BeginLoad(band)
		p.mu.Unlock()
		if err := p.read(band, after, n); err != nil {
			return err
		}
	}
}

// read reads n rows of the index into the page.
func (p *page) read(band int, after timer.Row, n int) error {
	if err := p.s.enter(); err != nil {
		p.mu.Lock()
		p.rows.AbortLoad(band)
		p.mu.Unlock()
		return errRemoved
	}
	defer p.s.leave()
	from := store.Position{At: time.Unix(0, after.At), Key: after.Key}
	rows, more, err := p.s.q.store.Due(make([]store.Row, 0, n), p.s.uid, schedule.Priorities[band], from, n)
	loaded := make([]timer.Row, len(rows))
	for i, r := range rows {
		loaded[i] = p.row(r)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err != nil {
		p.rows.AbortLoad(band)
		return err
	}
	p.rows.EndLoad(band, loaded, more)
	return nil
}

// maxRereads is how many keys of a source may wait for another read. With more of them
// the disk cannot be read at all, and the whole source waits.
const maxRereads = 64

func (p *page) readsFail() bool { return p.again.Load() >= maxRereads }

// retry puts back a key whose entry could not be read, after a second.
func (p *page) retry(row timer.Row, err error) {
	if errors.Is(err, store.ErrClosed) {
		return
	}
	p.again.Add(1)
	s := p.s
	s.q.cfg.Log.Error("an entry cannot be read; trying again", "source", s.Spec().Path(), "key", row.Key, "error", err)
	s.q.work.Go(func() {
		select {
		case <-s.q.stop:
			return
		case <-time.After(time.Second):
		}
		unlock := s.stripes.lock(row.Key)
		e, _, err := s.get(row.Key, outline)
		if err == nil && e != nil {
			row = p.row(rowOf(row.Key, e))
		}
		unlock()
		p.mu.Lock()
		p.rows.Add(row)
		p.mu.Unlock()
		p.again.Add(-1)
		s.q.cfg.Wake(s)
	})
}
