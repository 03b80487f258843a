package command

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/pkg/printable"
	"github.com/reschedule-dev/reschedule/sdk"
)

// A person who is asked may say no; only yes changes anything.
func TestConfirm_AsksAPerson(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "\n": false, "": false, "yep\n": false} {
		var said strings.Builder
		e := &env{in: strings.NewReader(answer), err: &said, asks: true}
		if err := e.confirm(false, lookFirst, "Cancel %d keys\x1b of %q?", 3, "x"); (err == nil) != want {
			t.Errorf("%q: %v", answer, err)
		}
		if said.String() != "Cancel 3 keys\ufffd of \"x\"? [y/N] " {
			t.Errorf("asked %q", said.String())
		}
	}
	if err := (&env{asks: true}).confirm(true, "", ""); err != nil {
		t.Errorf("--yes: %v", err)
	}
}

// Progress is one line of a terminal, and removed at the end. Elsewhere it is a line every
// five seconds.
func TestProgress_OnATerminal(t *testing.T) {
	t.Parallel()
	for terminal, want := range map[bool]string{false: "", true: "\rrunning [###############...............] 5/10\r\x1b[K"} {
		var said strings.Builder
		e := &env{err: &said, progress: terminal}
		p := e.progressOf("running", 10)
		p.show(5)
		p.end()
		if said.String() != want {
			t.Errorf("on a terminal %t: %q, want %q", terminal, said.String(), want)
		}
	}
	var said strings.Builder
	e := &env{err: &said}
	p := e.progressOf("running", 10)
	for i := range 4 {
		if i%2 == 1 {
			p.shown = p.shown.Add(-5 * time.Second)
		}
		p.show(i)
	}
	p.end()
	if want := "running 1/10\nrunning 3/10\n"; said.String() != want {
		t.Errorf("in a log: %q, want %q", said.String(), want)
	}
}

// Each format prints the same items, also none and more than fit one table.
func TestLister_Formats(t *testing.T) {
	t.Parallel()
	type item struct {
		Key string `json:"key"`
	}
	for _, n := range []int{0, 1, 2, rowsAtOnce + 1} {
		for _, format := range []string{"", "wide", "json", "yaml", "name", "ndjson"} {
			var out strings.Builder
			l := (&output{format: format}).list(&out, "kind/", columns("Key", "More*"))
			for i := range n {
				if err := l.add(item{fmt.Sprint("k\x07", i)}, fmt.Sprint("k\x07", i), fmt.Sprint("k\x07", i), "more"); err != nil {
					t.Fatal(err)
				}
			}
			if err := l.end(io.Discard, "nothing"); err != nil {
				t.Fatal(err)
			}
			text := out.String()
			got := strings.Count(text, "\n")
			var list struct{ Items []item }
			switch format {
			case "json", "yaml":
				if err := yaml.Unmarshal([]byte(text), &list); err != nil {
					t.Errorf("%s: %v", format, err)
				}
				got = len(list.Items)
			case "ndjson":
				for line := range strings.Lines(text) {
					if err := json.Unmarshal([]byte(line), &item{}); err != nil {
						t.Errorf("ndjson: %v", err)
					}
				}
			case "name":
				if strings.Count(text, "\x07") != n {
					t.Errorf("the names are %q", text[:min(len(text), 200)])
				}
			default:
				if strings.Contains(text, "\x07") || strings.Contains(text, "more") != (format == "wide" && n > 0) {
					t.Errorf("%q prints %q", format, text[:min(len(text), 200)])
				}
				if n > 0 {
					got-- // the headers
				}
			}
			if got != n {
				t.Errorf("%q prints %d items, want %d", format, got, n)
			}
		}
	}
}

// An optional column is there from the first row on that has a value for it, and the headers come again.
func TestLister_OptionalColumn(t *testing.T) {
	t.Parallel()
	some := columns("Key", "Priority?", "More*", "Due")
	for range 2 { // the columns are of many lists
		var out strings.Builder
		l := (&output{}).list(&out, "", some)
		for i := range 3 * rowsAtOnce {
			rank := "-"
			if i == rowsAtOnce+1 {
				rank = "low"
			}
			if err := l.add(nil, "", "k", rank, "more", "now"); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.end(io.Discard, ""); err != nil {
			t.Fatal(err)
		}
		var got []string
		for row := range strings.Lines(out.String()) {
			if row = strings.Join(strings.Fields(row), " "); len(got) == 0 || got[len(got)-1] != row {
				got = append(got, row)
			}
		}
		if want := []string{"KEY DUE", "k now", "KEY PRIORITY DUE", "k - now", "k low now", "k - now"}; !slices.Equal(got, want) {
			t.Errorf("printed %q, want %q", got, want)
		}
	}
}

// An answer is green, and red when it is about a problem.
func TestPaint_ByTheProblem(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, colour := range map[string]string{"web": "\x1b[32m", "nix": "\x1b[31m"} {
		var out strings.Builder
		p := c.program(false, &out, io.Discard)
		p.colour = true
		if p.run(t.Context(), []string{"why", name, "--kubeconfig", c.kubeconfig()}); !strings.HasPrefix(out.String(), colour) || !strings.Contains(out.String(), "\x1b[0m") {
			t.Errorf("%s: %q", name, out.String())
		}
	}
}

// The share of a key is the same each time, and the shares of many fill the duration.
func TestSpread_IsEvenAndStable(t *testing.T) {
	t.Parallel()
	counts := [4]int{}
	for i := range 4000 {
		d := share(fmt.Sprint("key-", i), time.Hour)
		if d < 0 || d >= time.Hour || d != share(fmt.Sprint("key-", i), time.Hour) {
			t.Fatalf("share %s", d)
		}
		counts[d/(15*time.Minute)]++
	}
	for _, n := range counts {
		if n < 800 || n > 1200 {
			t.Fatalf("quarters have %v", counts)
		}
	}
}

// hostileKeys are keys that a terminal, a shell, a path or a parser may take for something else.
var hostileKeys = []string{"a\u202eb", "\u200b", "\ufeff", "\u2028", " ", "%2F", "..", "'\"`$(id)", "null", "- a: {b}", "\U0001f469\u200d\U0001f467", "<&>", strings.Repeat("\u00fc", 256)}

// Keys were replaced by U+FFFD in names and JSONPath, also in a pipe: what a program reads
// is the key itself. On a terminal it is clean.
func TestOutput_DataHasTheKeyItself(t *testing.T) {
	t.Parallel()
	for _, screen := range []bool{false, true} {
		c := newCluster(t)
		var items []string
		for _, key := range hostileKeys {
			b, err := json.Marshal(sdk.Schedule{Key: key, Revision: 1, State: sdk.Due, DueAt: time.Now()})
			if err != nil {
				t.Fatal(err)
			}
			items = append(items, string(b))
		}
		c.answers["GET /ops/web/schedules"] = `200 {"items":[` + strings.Join(items, ",") + `],"continue":""}`
		list := func(format string) string {
			t.Helper()
			var out strings.Builder
			e := c.program(false, &out, io.Discard)
			e.screen = screen
			if code := e.run(t.Context(), []string{"key", "list", "web", "-o", format, "--kubeconfig", c.kubeconfig()}); code != 0 {
				t.Fatalf("%s: %d", format, code)
			}
			return out.String()
		}
		shown := slices.Clone(hostileKeys)
		for i := range shown {
			if screen {
				shown[i] = printable.Line(shown[i])
			}
		}
		for _, format := range []string{"name", "jsonpath={range .items[*]}{.key}{\"\\n\"}{end}"} {
			if got := list(format); got != strings.Join(shown, "\n")+"\n" {
				t.Errorf("on a terminal %t, %s prints %q", screen, format, got)
			}
		}
		for _, format := range []string{"json", "yaml"} {
			var all struct{ Items []struct{ Key string } }
			err := yaml.Unmarshal([]byte(list(format)), &all)
			var keys []string
			for _, item := range all.Items {
				keys = append(keys, item.Key)
			}
			if err != nil || !slices.Equal(keys, hostileKeys) {
				t.Errorf("%s has %q, %v, want %q", format, keys, err, hostileKeys)
			}
		}
	}
}

// One key of 512 bytes made a table 500 columns wide for all rows. A terminal shows its
// beginning; -o wide and a pipe have all of it.
func TestTable_OneLongKey(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("u\u0308", maxCell/2-1) + strings.Repeat("e\u0301", 120)
	for _, p := range []struct {
		screen bool
		format string
		whole  bool
	}{{true, "", false}, {true, "wide", true}, {false, "", true}, {false, "wide", true}} {
		c := newCluster(t)
		c.answers["GET /ops/web/schedules"] = `200 {"items":[{"key":"` + long + `","revision":1,"state":"due","dueAt":"2026-01-01T00:00:00Z","lastFailure":{"at":"2026-01-01T00:00:00Z","status":0,"error":"` + long + `"}}],"continue":""}`
		var out strings.Builder
		e := c.program(false, &out, io.Discard)
		e.screen = p.screen
		if code := e.run(t.Context(), []string{"key", "list", "web", "-o", p.format, "--kubeconfig", c.kubeconfig()}); code != 0 {
			t.Fatal(code)
		}
		row := strings.Split(out.String(), "\n")[1]
		if whole := strings.HasPrefix(row, long+" "); whole != p.whole {
			t.Errorf("on a terminal %t, -o %q prints %q", p.screen, p.format, row)
		}
		if short := strings.Repeat("u\u0308", maxCell/2-1) + "…  "; !p.whole && (!strings.HasPrefix(row, short) || !strings.HasSuffix(row, long)) {
			t.Errorf("it is cut to %q", row)
		}
	}
}

// -o yaml rounded numbers that a float64 does not hold.
func TestYAML_NumbersStay(t *testing.T) {
	t.Parallel()
	const data = `{"big":12345678901234567890123,"fine":0.1000000000000000055511151231257827,"cents":1.10,"huge":1e400,"text":"12:30:45","yes":"yes"}`
	var out strings.Builder
	if err := (&output{format: "yaml"}).printOne(&out, map[string]any{"items": []any{map[string]any{"data": json.RawMessage(data)}}}); err != nil {
		t.Fatal(err)
	}
	want := "items:\n- data:\n    big: 12345678901234567890123\n    cents: 1.10\n    fine: 0.1000000000000000055511151231257827\n    huge: 1e400\n    text: \"12:30:45\"\n    \"yes\": \"yes\"\n"
	if out.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", out.String(), want)
	}
}

// JSON on a terminal had the control characters that JSON does not require to be escaped.
func TestJSON_NoControlCharacters(t *testing.T) {
	t.Parallel()
	const answer = "X\u009b31m\u0085\u007f\u202e"
	b, err := line(map[string]string{"detail": answer})
	var got map[string]string
	if err := errors.Join(err, json.Unmarshal(b, &got)); err != nil || got["detail"] != answer {
		t.Errorf("%v: %q is read back as %q", err, b, got["detail"])
	}
	if strings.ContainsAny(string(b), "\u009b\u0085\u007f") || !strings.Contains(string(b), "\u202e") {
		t.Errorf("printed %q", b)
	}
	if compact([]byte(`"` + answer + `"`)) {
		t.Error("an export would change the data of an event")
	}
}

// Any text of an event is read back as it is, also by parsers of YAML 1.1.
func TestYAML_AnyText(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"a\x7f", "\u0085", "\ufeff", "\u2028", "\x01", "\r", "<<", "yes", "1:30", "", "\n", "\ta\nb", "a\nb", " a\n", "a: b #"} {
		var out strings.Builder
		want := map[string]any{text: []any{text}}
		if err := (&output{format: "yaml"}).printOne(&out, want); err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		var got map[string]any
		if err := yaml.Unmarshal([]byte(out.String()), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q is read back as %q, %v, from\n%s", text, got, err, out.String())
		}
	}
}

// JSON and YAML on a terminal have no mark that reorders text, and the values that they have elsewhere.
func TestOutput_NoMarksOnATerminal(t *testing.T) {
	t.Parallel()
	want := map[string]any{"key": "a\u202egnp \u200b \u009b2J \U000e0041 \u00e9", "text": "x\ny\u202e"}
	for _, format := range []string{"json", "yaml"} {
		var b, list bytes.Buffer
		o := &output{format: format, screen: true}
		if err := o.printOne(&b, want); err != nil {
			t.Fatal(err)
		}
		l := o.list(&list, "", nil)
		if err := errors.Join(l.add(want, ""), l.end(io.Discard, "")); err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{b.String(), list.String()} {
			if strings.ContainsFunc(text, printable.Hidden) || !strings.Contains(text, "\u00e9") {
				t.Errorf("%s: %q", format, text)
			}
		}
		var got map[string]any
		if err := yaml.Unmarshal(b.Bytes(), &got); format == "yaml" && (err != nil || !maps.Equal(got, want)) {
			t.Errorf("%s: %q, %v", format, got, err)
		}
		if err := json.Unmarshal(b.Bytes(), &got); format == "json" && (err != nil || !maps.Equal(got, want)) {
			t.Errorf("%s: %q, %v", format, got, err)
		}
	}
}
