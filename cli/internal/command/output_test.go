package command

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// A person who is asked may say no; only yes changes anything.
func TestConfirm_AsksAPerson(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]bool{"y\n": true, "YES\n": true, "n\n": false, "\n": false, "": false, "yep\n": false} {
		var said strings.Builder
		e := &env{in: strings.NewReader(answer), err: &said, asks: true}
		if err := e.confirm(false, "Cancel %d keys\x1b of %q?", 3, "x"); (err == nil) != want {
			t.Errorf("%q: %v", answer, err)
		}
		if said.String() != "Cancel 3 keys\ufffd of \"x\"? [y/N] " {
			t.Errorf("asked %q", said.String())
		}
	}
	if err := (&env{asks: true}).confirm(true, ""); err != nil {
		t.Errorf("--yes: %v", err)
	}
}

// Progress is shown on a terminal only, and removed at the end.
func TestProgress_OnATerminalOnly(t *testing.T) {
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
			default:
				if strings.Contains(text, "\x07") || strings.Contains(text, "more") != (format == "wide" && n > 0) {
					t.Errorf("%q prints %q", format, text[:min(len(text), 200)])
				}
				if format != "name" && n > 0 {
					got-- // the headers
				}
			}
			if got != n {
				t.Errorf("%q prints %d items, want %d", format, got, n)
			}
		}
	}
}

// Colours are for terminals.
func TestPaint_OnATerminalOnly(t *testing.T) {
	t.Parallel()
	if got := (&env{}).paint(red, "x"); got != "x" {
		t.Errorf("painted %q", got)
	}
	if got := (&env{colour: true}).paint(red, "x"); got != "\x1b[31mx\x1b[0m" {
		t.Errorf("painted %q", got)
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
