package store_test

import (
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// A page ends after about 1 MiB of events, whatever its limit, and the pages together have all keys.
func TestPageOfLargeEvents_EndsEarly(t *testing.T) {
	t.Parallel()
	db := mustOpen(t, vfs.NewMem(), "data")
	defer db.Close()
	const keys = 40
	at := time.Unix(1_900_000_000, 0)
	var changes []store.Change
	for i := range keys {
		changes = append(changes, store.Change{Source: "src", Key: strconv.Itoa(100 + i), New: &schedule.Entry{
			Revision: uint64(i + 1), Occurrence: uint64(i + 1), ScheduledAt: at, DueAt: at, Event: &schedule.Event{Data: make([]byte, 255<<10)},
		}})
	}
	commit, err := db.Apply(false, changes...)
	must(t, err)
	must(t, commit.Wait())
	for name, list := range map[string]func(after store.Position) ([]store.Item, bool, error){
		"by key": func(after store.Position) ([]store.Item, bool, error) {
			return db.List("src", "", after.Key, keys, true)
		},
		"by due time": func(after store.Position) ([]store.Item, bool, error) {
			items, next, err := db.ListDue("src", "", after, keys, 1000)
			return items, next.Key != "", err
		},
	} {
		var after store.Position
		seen := 0
		for more := true; more; {
			var items []store.Item
			if items, more, err = list(after); err != nil {
				t.Fatal(err)
			}
			if len(items) > 5 || len(items) == 0 && more {
				t.Fatalf("%s: a page of %d", name, len(items))
			}
			if seen += len(items); len(items) > 0 {
				after = store.Position{At: at, Key: items[len(items)-1].Key}
			}
		}
		if seen != keys {
			t.Errorf("%s: %d keys of %d", name, seen, keys)
		}
	}
}

// An outline has the size of its entry, and the event only of an entry that is small enough. A change that keeps the
// event keeps it; where there is none to keep, it is refused.
func TestOutline_KeepsTheEvent(t *testing.T) {
	t.Parallel()
	db := mustOpen(t, vfs.NewMem(), "data")
	defer db.Close()
	at := time.Unix(1_900_000_000, 0)
	entry := func(data int) *schedule.Entry {
		return &schedule.Entry{Revision: 1, Occurrence: 1, ScheduledAt: at, DueAt: at, ExpiresAt: at, UID: "u", Event: &schedule.Event{
			ID: "i", Type: "t", Extensions: map[string]any{"team": "a", "n": int32(1)}, Data: make([]byte, data),
		}}
	}
	keys, entries := []string{"small", "large", "none"}, make([]*schedule.Entry, 3)
	small, large := entry(3<<10), entry(5<<10)
	must(t, errorOf(db.Apply(false, store.Change{Source: "src", Key: "small", New: small}, store.Change{Source: "src", Key: "large", New: large})))
	must(t, db.Outlines("src", keys, entries))
	alone, err := db.Outline("src", "large", 4<<10)
	must(t, err)
	items, _, err := db.List("src", "", "", 10, false)
	if err != nil || len(items) != 2 {
		t.Fatal(items, err)
	}
	for _, e := range []*schedule.Entry{entries[1], alone, items[0].Entry} {
		if !e.Event.Omitted || e.Event.ID != "i" || e.Event.Data != nil || e.Size("large") != large.Size("large") || e.UID != "u" {
			t.Errorf("large: %+v", e)
		}
	}
	if e, err := db.Outline("src", "small", 4<<10); err != nil || !e.Event.Equal(small.Event) {
		t.Errorf("small: %+v %v", e, err)
	}
	if entries[2] != nil {
		t.Error("there is an outline of nothing")
	}
	most := small.Size("small") + large.Size("large")
	if err := db.GetAll("src", keys, entries, most); err != nil || !entries[1].Event.Equal(large.Event) {
		t.Errorf("within the bytes: %v", err)
	}
	if err := db.GetAll("src", keys, entries, most-1); !errors.Is(err, store.ErrLarge) {
		t.Errorf("beyond them: %v", err)
	}
	kept := *alone
	kept.Tries = 1
	must(t, errorOf(db.Apply(false, store.Change{Source: "src", Key: "large", Old: alone, New: &kept})))
	if e, err := db.Get("src", "large"); err != nil || e.Tries != 1 || !e.Event.Equal(large.Event) {
		t.Errorf("kept: %+v %v", e, err)
	}
	if _, err := db.Apply(false, store.Change{Source: "src", Key: "other", New: alone}); err == nil {
		t.Error("an event was kept where there is none")
	}
	must(t, errorOf(db.Apply(false, store.Change{Source: "src", Key: "large", Old: alone})))
	rows, _, err := db.Expired(at, store.SourceRow{}, 10)
	if n, bytesErr := db.Bytes("src"); err != nil || bytesErr != nil || n != small.Size("small") || len(rows) != 1 {
		t.Errorf("%d bytes and %d rows are left: %v %v", n, len(rows), err, bytesErr)
	}
}
