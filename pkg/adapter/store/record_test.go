package store

import (
	"bytes"
	"encoding/hex"
	"flag"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

var update = flag.Bool("update", false, "write the golden files anew: only for a new format version")

var golden = time.Date(2026, 11, 21, 9, 0, 0, 123456789, time.UTC)

// goldenEntries have one entry of each kind. The files must never change while the version stays.
func goldenEntries() map[string]*schedule.Entry {
	hours, slack := 10*time.Hour, 10*time.Minute
	return map[string]*schedule.Entry{
		"bare": {Revision: 1, Occurrence: 1, ScheduledAt: golden, DueAt: golden.Add(time.Minute)},
		"full": {
			Revision: 184467, Occurrence: 184460, ScheduledAt: golden, DueAt: golden.Add(time.Minute), RetryAt: golden.Add(time.Hour),
			ExpiresAt: golden.Add(2 * time.Hour), UnfinishedAt: golden.Add(-time.Second), Attempt: 3, Tries: 2, MaxInterval: &hours,
			UID: "0b1c", Cause: schedule.Cause{Reason: "requeue", TraceParent: "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", TraceState: "k=v"},
			Event: &schedule.Event{
				ID: "7", Source: "/apis", Time: time.Date(2020, 2, 29, 23, 59, 59, 0, time.FixedZone("", 3600)), Type: "dev.knative.apiserver.ref.update",
				Subject: strings.Repeat("s", smallBody), DataContentType: "application/json", DataSchema: "https://schema",
				Extensions: map[string]any{"kind": "GitRepo", "n": int32(-5), "yes": true, "no": false},
				Data:       []byte(`{"a":1}`), DataBase64: true,
			},
		},
		"deadletter": {
			Revision: 9, Occurrence: 9, ScheduledAt: golden, DueAt: golden, Event: &schedule.Event{Type: "small", Data: []byte{}},
			DeadLetter: &schedule.DeadLetter{Key: "GitRepo/a/b", Due: golden, ID: "id-8", Attempt: 20, Revision: 8,
				Failure: schedule.Failure{Dest: "http://sink", Code: 400, Data: []byte("bad")}},
		},
		"lastfailure": {
			Revision: 9, Occurrence: 8, ScheduledAt: golden, DueAt: golden, RetryAt: golden.Add(time.Minute), Attempt: 1, Tries: 1,
			LastFailure: &schedule.LastFailure{At: golden.Add(time.Second), Code: 503, Data: []byte("down")},
		},
		"moved": {Revision: 2, Occurrence: 2, ScheduledAt: golden, DueAt: golden.Add(time.Hour), PreviousDueAt: golden.Add(time.Minute)},
		"kept": {
			Revision: 9, Occurrence: 9, ScheduledAt: golden, DueAt: golden.Add(150 * 365 * 24 * time.Hour), ExpiresAt: golden.Add(168 * time.Hour),
			DeadLetter: &schedule.DeadLetter{Key: "GitRepo/a/b", Due: golden, ID: "id-8", Attempt: 20, Tries: 21, Revision: 8,
				Failure: schedule.Failure{Dest: "http://sink", Data: []byte("dispatch error")}},
		},
		"mayWait":    {Revision: 3, Occurrence: 3, DueAt: golden, Timing: schedule.Timing{MayWait: true}},
		"slack":      {Revision: 3, Occurrence: 3, DueAt: golden, Timing: schedule.Timing{MayWait: true, Slack: &slack}},
		"onSchedule": {Revision: 3, Occurrence: 3, DueAt: golden, Timing: schedule.Timing{OnSchedule: true}},
		"calendar": {Revision: 3, Occurrence: 3, DueAt: golden, Timing: schedule.Timing{
			MayWait: true, Calendar: &schedule.Calendar{Cron: "0 9 * * MON", TimeZone: "Europe/Berlin", Jitter: 0.25, Until: golden.Add(time.Hour)},
		}},
		"hourly":     {Revision: 3, Occurrence: 3, DueAt: golden, Timing: schedule.Timing{Calendar: &schedule.Calendar{Cron: "@hourly"}}},
		"before1970": {Revision: 1<<64 - 1, ScheduledAt: time.Unix(-1, 5).UTC(), DueAt: time.Unix(0, -1<<63).UTC()},
	}
}

// compareGolden compares text with testdata/name.
func compareGolden(t *testing.T, name, text string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		must(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want, err := os.ReadFile(path)
	must(t, err)
	if d := cmp.Diff(string(want), text); d != "" {
		t.Fatalf("%s changed: data on disk would be misread (-want +got):\n%s", path, d)
	}
}

// encoded is the record of an entry, and its event if that is apart.
func encoded(t testing.TB, e *schedule.Entry) (record, event []byte) {
	t.Helper()
	record, err := appendRecord(nil, e)
	must(t, err)
	if apart(e) != nil {
		event, err = appendEvent(nil, e.Event)
		must(t, err)
	}
	return record, event
}

// decoded is the entry of a record and an event.
func decoded(record, event []byte) (*schedule.Entry, error) {
	e, err := decodeRecord(record)
	if err == nil && apart(e) != nil {
		err = decodeEvent(event, e)
	}
	return e, err
}

func mustDecode(t *testing.T, record []byte) *schedule.Entry {
	t.Helper()
	e, err := decodeRecord(record)
	must(t, err)
	return e
}

// Records have the bytes of their version.
func TestRecord_BytesOfItsVersion(t *testing.T) {
	t.Parallel()
	for name, e := range goldenEntries() {
		record, event := encoded(t, e)
		compareGolden(t, "record-v1-"+name+".hex", hex.Dump(record)+"event\n"+hex.Dump(event))
		got, err := decoded(record, event)
		must(t, err)
		if d := cmp.Diff(e, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// Rows have the bytes of their version.
func TestRows_BytesOfTheirVersion(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	for _, name := range []string{"bare", "full", "deadletter", "before1970"} {
		var r rows
		r.derive("uid-1", "GitRepo/a/b", goldenEntries()[name])
		text.WriteString(name + "\n" + hex.Dump(appendRecordKey(nil, "uid-1", "GitRepo/a/b")) + hex.Dump(appendEventKey(nil, "uid-1", "GitRepo/a/b")))
		for i := range r.n {
			text.WriteString("\n" + hex.Dump(r.key(i)) + "=" + hex.EncodeToString(r.value(i)) + "\n")
		}
		text.WriteString("\n")
	}
	text.WriteString("counter\n" + hex.Dump(appendCounterKey(nil, "uid-1")) + "=" + hex.EncodeToString((&sum{keys: 300, dead: -1}).append(nil)) + "\n")
	text.WriteString("purge\n" + hex.Dump(purgeKey("uid-1")))
	compareGolden(t, "rows-v1.hex", text.String())
}

// An invalid record is refused.
func TestRecord_InvalidIsRefused(t *testing.T) {
	t.Parallel()
	good, event := encoded(t, goldenEntries()["full"])
	future := bytes.Clone(good)
	future[0] = recordVersion + 1
	for _, test := range []struct {
		name, want string
		record     []byte
	}{
		{"empty", "ends too soon", nil},
		{"of the next version", "its version is 2, this program reads 1", future},
		{"with something behind it", "something follows", append(bytes.Clone(good), 0)},
		{"with a field of the future", "does not know", []byte{recordVersion, 0x80, 0x80, 0x10, 0}},
	} {
		if _, err := decodeRecord(test.record); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	for n := range good {
		if _, err := decodeRecord(good[:n]); err == nil {
			t.Errorf("its first %d bytes were taken for a record", n)
		}
	}
	for n := range event {
		if _, err := decoded(good, event[:n]); err == nil {
			t.Errorf("its first %d bytes were taken for an event", n)
		}
	}
	if _, other := encoded(t, sized(10)); decodeEvent(other, mustDecode(t, good)) == nil {
		t.Error("the event of another entry was taken for the event of this one")
	}
}

// An extension of another type is refused.
func TestRecord_ExtensionOfAnotherType(t *testing.T) {
	t.Parallel()
	_, err := appendEvent(nil, &schedule.Event{Extensions: map[string]any{"x": 1.5}})
	if err == nil || !strings.Contains(err.Error(), `extension "x" is a float64`) {
		t.Fatal(err)
	}
}

// A record that can be decoded gives the same entry after it is encoded and decoded again.
func FuzzRecord(f *testing.F) {
	for _, e := range goldenEntries() {
		record, event := encoded(f, e)
		f.Add(record, event)
	}
	f.Fuzz(func(t *testing.T, record, event []byte) {
		e, err := decoded(record, event)
		if err != nil {
			return
		}
		got, err := decoded(encoded(t, e))
		if err != nil {
			t.Fatalf("%x and %x were read, but not what was written of them: %v", record, event, err)
		}
		if d := cmp.Diff(e, got, cmpopts.EquateApproxTime(0), cmpopts.EquateEmpty()); d != "" {
			t.Fatal(d)
		}
	})
}

// A row key that can be parsed is the key that its parts encode to, and no row makes a parser panic.
func FuzzRows(f *testing.F) {
	var r rows
	r.derive("s", "k", goldenEntries()["full"])
	for i := range r.n {
		f.Add(r.key(i), r.value(i))
	}
	f.Fuzz(func(t *testing.T, key, value []byte) {
		if row, err := parseExpiry(key); err == nil {
			again := appendExpiryKey(nil, row.Source, row.At, row.Key, row.Revision)
			if !bytes.Equal(again[2:], key[2:]) {
				t.Fatalf("%x became %x", key, again)
			}
		}
		if row, err := parseDue(key, value); err == nil {
			if again := appendDueKey(nil, "s", row.Priority, row.At, row.Key, row.Revision); !bytes.Equal(again[4:], key) {
				t.Fatalf("%x became %x", key, again)
			}
		}
		if row, err := parseRetry(key, value); err == nil {
			if again := appendRetryKey(nil, "s", row.At, row.Key, row.Revision); !bytes.Equal(again[4:], key) {
				t.Fatalf("%x became %x", key, again)
			}
		}
		_, _ = parseUnfinished(key, value)
		_ = (&sum{}).add(value)
	})
}

// Rows sort as their positions do, and appendAfter is behind all rows of its position and before all later rows.
func FuzzKeys(f *testing.F) {
	f.Add(int64(0), "a", int64(0), "ab")
	f.Add(int64(-1), "é", int64(1), "\x01z")
	f.Fuzz(func(t *testing.T, n1 int64, k1 string, n2 int64, k2 string) {
		if checkNames("s", k1) != nil || checkNames("s", k2) != nil {
			return
		}
		p1, p2 := Position{time.Unix(0, n1), k1}, Position{time.Unix(0, n2), k2}
		r1 := appendRetryKey(nil, "s", p1.At, k1, 1<<63)
		r2 := appendRetryKey(nil, "s", p2.At, k2, 1)
		if k1 != k2 || n1 != n2 {
			if p1.Before(p2) != (bytes.Compare(r1, r2) < 0) {
				t.Fatalf("%v, %v: %x, %x", p1, p2, r1, r2)
			}
		}
		after := appendAfter(appendSource(nil, tableRetry, "s"), p1)
		if bytes.Compare(after, r1) <= 0 || p1.Before(p2) != (bytes.Compare(after, r2) <= 0) {
			t.Fatalf("after %v: %x, rows %x, %x", p1, after, r1, r2)
		}
	})
}

// A record decodes to its entry, whatever the offset of a time, and whether or not its strings share one copy.
func TestRecord_ComesBack(t *testing.T) {
	t.Parallel()
	for _, offset := range []int{86_400, 86_401, 24*3600 + 30*60, -100 * 3600, 1 << 30} {
		e := goldenEntries()["full"]
		e.Event.Time = time.Date(2026, 1, 1, 0, 0, 0, 0, time.FixedZone("", offset))
		got, err := decoded(encoded(t, e))
		must(t, err)
		if _, o := got.Event.Time.Zone(); o != offset || !got.Event.Time.Equal(e.Event.Time) {
			t.Errorf("offset %d came back as %s", offset, got.Event.Time)
		}
	}
	// Records below and above the length up to which strings share one copy.
	for _, n := range []int{0, 1, maxShared - 200, maxShared, maxShared + 1, schedule.MaxDataBytes} {
		e := &schedule.Entry{Revision: 1, Occurrence: 1, DueAt: golden, UID: "u", Cause: schedule.Cause{Reason: "r"}, Event: &schedule.Event{
			Type: "t", Subject: "s", Data: bytes.Repeat([]byte("x"), n), Extensions: map[string]any{"a": "b"},
		}}
		got, err := decoded(encoded(t, e))
		if diff := cmp.Diff(e, got); diff != "" || err != nil {
			t.Errorf("%d bytes: %v %s", n, err, diff)
		}
	}
}

// A decoded entry does not keep its record beside the data, which would double the memory of a delivery.
func TestEntry_DoesNotKeepItsDataTwice(t *testing.T) {
	record, event := encoded(t, &schedule.Entry{Revision: 1, Occurrence: 1, UID: "u", Event: &schedule.Event{
		Type: "t", Subject: "s", Data: make([]byte, schedule.MaxDataBytes),
	}})
	const n = 64
	entries := make([]*schedule.Entry, n)
	before := heap.Held()
	for i := range entries {
		var err error
		if entries[i], err = decoded(record, event); err != nil {
			t.Fatal(err)
		}
	}
	if each := (heap.Held() - before) / n; each > schedule.MaxDataBytes*3/2 {
		t.Errorf("an entry with %d bytes of data keeps %d", schedule.MaxDataBytes, each)
	}
	runtime.KeepAlive(entries)
}

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// errorOf is the error of a step whose value is not needed.
func errorOf[T any](_ T, err error) error { return err }
