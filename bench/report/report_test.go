package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func example() *Result {
	return &Result{
		Name: "put", Title: "Durable PUT", TakenAt: time.Date(2026, 11, 21, 9, 0, 0, 0, time.UTC), Took: "1m0s",
		Conditions: Conditions{CPU: "CPU", Cores: 2, FsyncP50: 300 * time.Microsecond},
		Parameters: []string{"64 callers"}, Header: []string{"", "PUT/s"}, Rows: [][]string{{"adapter", "a|b"}},
		Bars: []Bar{
			Reached("at least 60 %", "70 %", true, true), Reached("above <X>", "50 %", true, false), Reached("above Y", "", false, true),
		},
		Chart: &Chart{Title: "PUT & <more>", Unit: "/s", Bars: []ChartBar{
			{Label: "adapter", Value: 30, Low: 20, High: 40, Ours: true}, {Label: "bare", Value: 43, Low: 43, High: 43, Target: 25},
		}},
	}
}

// The page has bars, tables and conditions.
func TestMarkdown_Contents(t *testing.T) {
	t.Parallel()
	page := Markdown([]*Result{example()})
	for _, want := range []string{
		"| [put](#put) | at least 60 % | 70 % | ✅ pass |", "| ❌ **FAIL** |", "| above Y | – | not measured |",
		"## put", `| adapter | a\|b |`, "![PUT & <more>](plots/put.svg)", "2026-11-21 09:00 UTC", "p50 0.30 ms", "64 callers",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
}

// Only the text between the markers is replaced.
func TestBetween_KeepsTheRest(t *testing.T) {
	t.Parallel()
	page := "head\n" + begin + "\nold\n" + end + "\ntail\n"
	once, err := between(page, "new")
	if err != nil {
		t.Fatal(err)
	}
	if want := "head\n" + begin + "\n\nnew\n" + end + "\ntail\n"; once != want {
		t.Errorf("%q, want %q", once, want)
	}
	if twice, err := between(once, "new"); err != nil || twice != once {
		t.Errorf("a second time: %q, %v", twice, err)
	}
	for _, bad := range []string{"", begin, end, end + begin} {
		if _, err := between(bad, "new"); err == nil {
			t.Errorf("between(%q) is no error", bad)
		}
	}
}

// Saved results can be loaded, in the order of the names.
func TestLoad_InOrder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"put", "bulk", "other"} {
		r := example()
		r.Name = name
		if err := Save(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	results, err := Load(dir, []string{"bulk", "absent", "put"})
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 2 || results[0].Name != "bulk" {
		t.Fatalf("%+v", results)
	}
	if diff := cmp.Diff(example(), results[1]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "put.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir, []string{"put"}); err == nil {
		t.Error("a broken file is no error")
	}
}

// Every kind of chart is well-formed XML with numbers, also without data.
func TestDraw_WellFormed(t *testing.T) {
	t.Parallel()
	values := make([]float64, len(Percentiles))
	for i := range values {
		values[i] = float64(i) - 1 // also early ones
	}
	lines := &Chart{Title: "MB & hours", Note: "hours", Unit: "MB", Lines: []ChartLine{
		{Label: "one", Points: [][2]float64{{0, 1}, {1, 30}}, Ours: true}, {Label: "same", Points: [][2]float64{{0, 1}, {1, 30}}, Dashed: true}, {Label: "none"},
	}, Marks: []ChartMark{{0.5, 15, "here & there"}}}
	for name, charts := range map[string][]*Chart{
		"bars": {example().Chart}, "no bars": {{Title: "none"}},
		"curves":      {{Title: "late", Unit: "ms", Curves: []ChartCurve{{Label: "adapter", Values: values, Ours: true}, {Label: "queue", Values: values}}}},
		"flat curves": {{Title: "late", Unit: "ms", Curves: []ChartCurve{{Label: "adapter", Values: make([]float64, len(Percentiles))}}}},
		"lines":       {lines, {Title: "nothing"}},
	} {
		file := filepath.Join(t.TempDir(), "plot.svg")
		if err := Draw(file, charts...); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		decoder := xml.NewDecoder(bytes.NewReader(text))
		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v:\n%s", name, err, text)
			}
		}
		if bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("Inf")) {
			t.Errorf("%s: not a number in\n%s", name, text)
		}
	}
}

// Numbers and durations are readable.
func TestNumbers_Readable(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0", 999: "999", 1000: "1,000", 1234567: "1,234,567", -1000: "-1,000", -100: "-100"} {
		if got := Thousands(v); got != want {
			t.Errorf("Thousands(%v) = %q, want %q", v, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		0: "0 µs", 99 * time.Microsecond: "99 µs", 300 * time.Microsecond: "0.30 ms", 12 * time.Millisecond: "12.0 ms",
		1500 * time.Millisecond: "1.50 s", 90 * time.Second: "90.0 s", -2 * time.Millisecond: "-2.00 ms",
	} {
		if got := Short(d); got != want {
			t.Errorf("Short(%v) = %q, want %q", d, got, want)
		}
	}
}
