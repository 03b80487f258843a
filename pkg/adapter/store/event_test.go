package store

import (
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// countingLog is the log of a group of one that counts the bytes of its batches.
type countingLog struct {
	ownLog
	bytes uint64
}

func (l *countingLog) Append(batch []byte) error {
	l.bytes += uint64(len(batch))
	return l.ownLog.Append(batch)
}

// A failed attempt, Reschedule-After and maxInterval write no event again, in a single adapter and in a group.
func TestOutcome_WritesNoEventBytes(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (db *DB, written func() uint64){
		"single": func(t *testing.T) (*DB, func() uint64) {
			db := open(t, Options{FS: vfs.NewMem()})
			return db, func() uint64 { return db.db.Metrics().WAL.BytesIn }
		},
		"group": func(t *testing.T) (*DB, func() uint64) {
			v, err := OpenView(Options{Dir: "data", FS: vfs.NewMem()})
			must(t, err)
			log := &countingLog{ownLog: ownLog{view: v}}
			db, err := v.Own(log)
			must(t, err)
			t.Cleanup(func() {
				must(t, db.Close())
				must(t, v.Close())
			})
			return db, func() uint64 { return log.bytes }
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, written := open(t)
			event := &schedule.Event{ID: "ingested", Source: "/s", Type: "t", Data: make([]byte, 30_000)}
			e := &schedule.Entry{Revision: 1, Occurrence: 1, ScheduledAt: golden, DueAt: golden, Event: event}
			must(t, errorOf(db.Apply(false, Change{Source: "s", Key: "k", New: e})))
			if n := written(); n < 30_000 {
				t.Fatalf("the event itself took %d bytes", n)
			}
			in := schedule.Inputs{Key: "k", Source: &schedule.Spec{MaxInterval: time.Hour}, Revision: 2, StoreID: "x", Now: golden}
			outcomes := map[string]schedule.Outcome{
				"a failure":        {Kind: schedule.Failed, Failure: schedule.Failure{Code: 500}},
				"Reschedule-After": {Kind: schedule.Succeeded, Again: &schedule.RescheduleAfter{After: time.Minute}},
				"maxInterval":      {Kind: schedule.Succeeded},
			}
			for name, o := range outcomes {
				f := schedule.Flight{Entry: e, Own: true}
				in.Revision++
				step := f.Finish(in, e, o)
				before := written()
				must(t, errorOf(db.Apply(false, Change{Source: "s", Key: "k", Old: e, New: step.Next})))
				if n := written() - before; n == 0 || n > 300 {
					t.Errorf("%s wrote %d bytes", name, n)
				}
				var err error
				if e, err = db.Get("s", "k"); err != nil || !e.Event.SameBody(event) {
					t.Fatalf("after %s: %+v %v", name, e, err)
				}
			}
		})
	}
}

// An event that is missing, or is not the record's, makes its key alone unreadable.
func TestEvent_MissingIsItsKeysDamage(t *testing.T) {
	t.Parallel()
	fs := vfs.NewMem()
	db := open(t, Options{FS: fs})
	fill(t, db, "a", "b", "c", "d")
	other, err := appendEvent(nil, &schedule.Event{Type: "other"})
	must(t, err)
	for _, err := range []error{
		db.db.Delete(appendEventKey(nil, "s", "a"), pebble.Sync), db.db.Set(appendEventKey(nil, "s", "b"), other, pebble.Sync),
		db.db.Set(appendEventKey(nil, "s", "c"), []byte{0xff}, pebble.Sync), db.db.Set(appendEventKey(nil, "s", "stray"), other, pebble.Sync),
	} {
		must(t, err)
	}
	for key, want := range map[string]string{"a": "is missing", "b": "the record says", "c": "ends too soon"} {
		if _, err := db.Get("s", key); !isCorrupt(err) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", key, err)
		}
	}
	items, _, err := db.List("s", "", "", 10, true)
	if err != nil || len(items) != 4 || items[0].Entry != nil || items[3].Entry == nil || items[3].Entry.Event.Omitted {
		t.Errorf("%+v %v", items, err)
	}
	if r, err := db.verify(); err != nil || r.ProblemCount != 4 || r.Keys != 4 {
		t.Errorf("%+v %v", r, err)
	}
	outline, err := db.Outline("s", "b", 0)
	must(t, err)
	next := goldenEntries()["full"]
	next.Revision = 9
	if _, err := db.Apply(false, Change{Source: "s", Key: "a", New: next, Corrupt: true}, Change{Source: "s", Key: "b", Old: outline},
		Change{Source: "s", Key: "c", Corrupt: true}, Change{Source: "s", Key: "stray", Corrupt: true, New: goldenEntries()["bare"]}); err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]bool{"a": true, "b": false, "c": false, "d": true} {
		if e, err := db.Get("s", key); err != nil || (e != nil) != want {
			t.Errorf("%s: %+v %v", key, e, err)
		}
	}
	if r, err := db.verify(); err != nil || r.Keys != 3 || strings.Contains(strings.Join(r.Problems, ""), "event") {
		t.Errorf("%+v %v", r, err)
	}
}
