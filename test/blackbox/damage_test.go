package blackbox

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// Two damaged bytes anywhere stop neither the start nor the source: what can be read is delivered.
func TestDamagedBlock_StopsNeitherStartNorSource(t *testing.T) {
	t.Parallel()
	const keys, places = 1000, 5
	s, filler := &source{name: "damaged", spec: "suspend: true\nlimits: {maxInFlight: 1000}"}, &source{name: "zz-filler", spec: "suspend: true"}
	o := alone(t, nil, s, filler)
	s.bulk(t, keys, func(i int) string {
		return fmt.Sprintf(`{"key":"some/longer/key/%06d","event":{"data":"%032d"}}`, i*7919%keys, i*i)
	})
	// As much as the store writes into one table: what comes first in it is what
	// follows from the records, and then the rows of the first source.
	noise := rand.New(rand.NewPCG(1, 2))
	filler.bulk(t, 4500, func(i int) string {
		data := make([]byte, 4000)
		for n := range data {
			data[n] = byte(noise.Uint32())
		}
		return fmt.Sprintf(`{"key":"k%d","event":{"data_base64":%q}}`, i, base64.StdEncoding.EncodeToString(data))
	})
	o.terminate(t)
	s.spec = strings.Replace(s.spec, "suspend: true", "suspend: false", 1)
	o.write(t, s, filler)
	for place := range places {
		data := filepath.Join(t.TempDir(), "data")
		must(t, os.CopyFS(data, os.DirFS(o.data)))
		offset := damage(t, data, place, places)
		var got atomic.Int64
		s.answer("", func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
			got.Add(1)
			w.WriteHeader(http.StatusNoContent)
		})
		began := time.Now()
		a, err := harness.Launch(harness.Flags(o.file, data)...)
		// What no record tells, the format and the revisions handed out, has to be
		// there at the start: one command copies the rest, and the refusal names it.
		var refused *harness.ExitError
		if errors.As(err, &refused) && strings.Contains(refused.Log, "adapter repair") {
			repaired := data + ".repaired"
			if code, out := harness.Run("repair", data, repaired); code > 1 { // 1: whole, but for what could not be read
				t.Errorf("damage at %d: repair: %d %s", offset, code, out)
			}
			a, err = harness.Launch(harness.Flags(o.file, repaired)...)
		}
		if err != nil {
			t.Errorf("damage at %d: %v", offset, err)
			continue
		}
		// A block holds some hundred keys or index rows at most.
		eventually(t, fmt.Sprintf("damage at %d: all but what was in the block is delivered", offset), func() bool {
			return got.Load() >= keys*3/4
		})
		t.Logf("damage at %d: %d of %d after %s", offset, got.Load(), keys, time.Since(began).Round(time.Millisecond))
		s.at = func() string { return a.URL }
		if r := s.call(t, http.MethodGet, "", ""); r.Status != http.StatusOK {
			t.Errorf("damage at %d: the counts are %d %s", offset, r.Status, r.Body)
		}
		a.Kill()
	}
}

// damage changes two bytes of the table that holds the index of what is due, in
// one of so many places of its first part, and returns where.
func damage(t *testing.T, data string, place, places int) (at int64) {
	t.Helper()
	merger := *pebble.DefaultMerger // nothing is read
	data = filepath.Join(data, "store")
	merger.Name = mergerName(t, data)
	db, err := pebble.Open(data, &pebble.Options{Merger: &merger, Logger: quiet{}, ReadOnly: true})
	must(t, err)
	levels, err := db.SSTables(pebble.WithKeyRangeFilter([]byte("d/"), []byte("d0")))
	must(t, errors.Join(err, db.Close()))
	var path string
	var size int64
	for _, level := range levels {
		for _, table := range level {
			path, size = filepath.Join(data, table.FileNum.String()+".sst"), int64(table.Size)
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatalf("the index of what is due is in no table: %v", err)
	}
	defer f.Close()
	at = min(size/2, 60<<10) * int64(place) / int64(places)
	two := make([]byte, 2)
	_, err = f.ReadAt(two, at+100)
	must(t, err)
	two[0], two[1] = ^two[0], ^two[1]
	_, err = f.WriteAt(two, at+100)
	must(t, err)
	return at
}

// bulk schedules n keys, as many in a call as go into one.
func (s *source) bulk(t *testing.T, n int, item func(i int) string) {
	t.Helper()
	for from := 0; from < n; {
		var items []string
		for size := 0; from < n && len(items) < 1000 && size < 8<<20; from++ {
			items = append(items, item(from))
			size += len(items[len(items)-1])
		}
		if r := s.call(t, http.MethodPost, "/schedules", `{"items":[`+strings.Join(items, ",")+`]}`); r.Status != http.StatusOK {
			t.Fatalf("%d %s", r.Status, r.Body)
		}
	}
}

// mergerName is read from the store's own OPTIONS file.
func mergerName(t *testing.T, dir string) string {
	t.Helper()
	files, _ := filepath.Glob(filepath.Join(dir, "OPTIONS-*"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(t, err)
		for line := range strings.Lines(string(text)) {
			if name, ok := strings.CutPrefix(strings.TrimSpace(line), "merger="); ok {
				return name
			}
		}
	}
	t.Fatalf("no OPTIONS in %s", dir)
	return ""
}

type quiet struct{}

func (quiet) Infof(string, ...any)  {}
func (quiet) Errorf(string, ...any) {}
func (quiet) Fatalf(string, ...any) {}
