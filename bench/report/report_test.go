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
)

// The page and the plots of the committed results are the committed ones.
func TestMarkdown_CommittedResults(t *testing.T) {
	t.Parallel()
	var results []*Result
	for _, name := range []string{"put", "bulk", "burst", "lateness", "growth", "churn", "memory", "idle"} {
		r := new(Result)
		if err := Load(filepath.Join("..", "results", name+".json"), r); err != nil {
			t.Fatal(err)
		}
		results = append(results, r)
		if r.Chart == nil {
			continue
		}
		file := filepath.Join(t.TempDir(), "plot.svg")
		if err := Draw(file, r.Chart); err != nil {
			t.Fatal(err)
		}
		got, _ := os.ReadFile(file)
		if want, err := os.ReadFile(filepath.Join("..", "plots", name+".svg")); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the plot of %s is another, %v", name, err)
		}
	}
	generated, err := Markdown(results)
	if err != nil {
		t.Fatal(err)
	}
	committed, err := os.ReadFile(filepath.Join("..", "RESULTS.md"))
	if err != nil {
		t.Fatal(err)
	}
	if page, err := between(string(committed), generated); err != nil || page != string(committed) {
		t.Errorf("%v: the page has\n%s", err, generated)
	}
}

// A cell keeps its bar and its line, and each verdict is marked.
func TestMarkdown_Cells(t *testing.T) {
	t.Parallel()
	r := &Result{
		Name: "put", Rows: [][]string{{"a|b\nc"}},
		Bars: []Bar{Reached("one", "70 %", true, true), Reached("two", "50 %", true, false), Reached("three", "", false, true)},
	}
	page, err := Markdown([]*Result{r})
	for _, want := range []string{
		`| a\|b c |`, "| [put](#put) | one | 70 % | ✅ pass |", "| two | 50 % | ❌ **FAIL** |", "| three | – | not measured |",
	} {
		if err != nil || !strings.Contains(page, want) {
			t.Errorf("%v: the page lacks %q:\n%s", err, want, page)
		}
	}
	for _, bad := range []string{"", begin, end, end + begin} {
		if _, err := between(bad, page); err == nil {
			t.Errorf("between(%q) is no error", bad)
		}
	}
}

// Every kind of chart is well-formed XML with numbers, also without data.
func TestDraw_WellFormed(t *testing.T) {
	t.Parallel()
	values := make([]float64, len(Percentiles))
	for i := range values {
		values[i] = float64(i) - 1 // also early ones
	}
	for name, chart := range map[string]*Chart{
		"nothing": {Title: "none & <less>"}, "a bar of nothing": {Bars: []ChartBar{{Label: "adapter", Ours: true}}},
		"curves":      {Curves: []ChartCurve{{Label: "adapter", Values: values, Ours: true}, {Label: "queue", Values: values}}},
		"flat curves": {Curves: []ChartCurve{{Label: "adapter", Values: make([]float64, len(Percentiles))}}},
		"lines":       {Lines: []ChartLine{{Label: "one", Points: [][2]float64{{0, 1}, {1, 30}}}, {Label: "none"}}, Marks: []ChartMark{{0.5, 15, "here & there"}}},
	} {
		file := filepath.Join(t.TempDir(), "plot.svg")
		if err := Draw(file, chart); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		text, err := os.ReadFile(file)
		if err != nil || bytes.Contains(text, []byte("NaN")) || bytes.Contains(text, []byte("Inf")) {
			t.Errorf("%s: %v, or not a number in\n%s", name, err, text)
		}
		for decoder := xml.NewDecoder(bytes.NewReader(text)); err == nil; {
			_, err = decoder.Token()
		}
		if !errors.Is(err, io.EOF) {
			t.Errorf("%s: %v:\n%s", name, err, text)
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
