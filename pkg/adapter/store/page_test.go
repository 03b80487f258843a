package store_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

func TestPageOfLargeEvents_EndsEarly(t *testing.T) {
	t.Parallel()
	// A page of keys with events of 255 KiB has about a MiB of them, whatever
	// its limit, and the next page goes on behind it.
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
	if err != nil {
		t.Fatal(err)
	}
	if err := commit.Wait(); err != nil {
		t.Fatal(err)
	}
	for name, list := range map[string]func(after store.Position) ([]store.Item, bool, error){
		"by key": func(after store.Position) ([]store.Item, bool, error) { return db.List("src", "", after.Key, keys) },
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
