// Package report turns measurements into bench/RESULTS.md and its plots.
//
// Each scenario writes one JSON file with its conditions. The page and the plots
// are made from all of these files, so one scenario can be measured again
// without the others. The page is written by hand, except for the text between
// its markers.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Result is the result of one scenario.
type Result struct {
	Name       string // of the scenario, and of its files
	Title      string
	TakenAt    time.Time
	Took       string
	Conditions Conditions
	Parameters []string
	Header     []string
	Rows       [][]string
	Notes      []string `json:",omitempty"`
	Bars       []Bar
	Chart      *Chart `json:",omitempty"`
}

// Verdict says whether a bar was reached.
type Verdict string

// The verdicts.
const (
	Pass        Verdict = "pass"
	Fail        Verdict = "FAIL"
	NotMeasured Verdict = "not measured"
)

// Bar is one requirement of the design, and whether the adapter meets it.
type Bar struct {
	Wants   string // in words
	Got     string
	Verdict Verdict
}

// Reached makes a Bar of a comparison. It is not measured when a side is missing.
func Reached(wants, got string, measured, ok bool) Bar {
	switch {
	case !measured:
		return Bar{Wants: wants, Got: "–", Verdict: NotMeasured}
	case ok:
		return Bar{Wants: wants, Got: got, Verdict: Pass}
	default:
		return Bar{Wants: wants, Got: got, Verdict: Fail}
	}
}

// Conditions describe the machine: a figure means nothing without them.
type Conditions struct {
	CPU, Kernel, FileSystem, Go, Commit string
	Cores                               int
	MemoryGB                            float64
	LoadBefore                          float64 // one-minute load average as the scenario began
	FsyncP50, FsyncP99                  time.Duration
}

// String returns the conditions in one line.
func (c Conditions) String() string {
	return fmt.Sprintf("%s, %d cores, %.0f GB · Linux %s · %s · fsync of 4 KiB p50 %s, p99 %s · %s · commit %s · load average before %.2f",
		c.CPU, c.Cores, c.MemoryGB, c.Kernel, c.FileSystem, Short(c.FsyncP50), Short(c.FsyncP99), c.Go, c.Commit, c.LoadBefore)
}

// Short returns a duration with three digits.
func Short(d time.Duration) string {
	abs := d.Abs()
	switch {
	case abs >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case abs >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case abs >= 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
	case abs >= 100*time.Microsecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1e3)
	default:
		return fmt.Sprintf("%.0f µs", d.Seconds()*1e6)
	}
}

// Thousands returns a number with separators: 43,000.
func Thousands(v float64) string {
	s := fmt.Sprintf("%.0f", v)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Save writes the result into the directory of results.
func Save(dir string, r *Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("report: encoding %s: %w", r.Name, err)
	}
	if err := os.WriteFile(filepath.Join(dir, r.Name+".json"), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// Load reads the results with these names from the directory, in this order. A
// scenario that was never measured has none.
func Load(dir string, names []string) ([]*Result, error) {
	var results []*Result
	for _, name := range names {
		file := filepath.Join(dir, name+".json")
		text, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("report: %w", err)
		}
		r := new(Result)
		if err := json.Unmarshal(text, r); err != nil {
			return nil, fmt.Errorf("report: reading %s: %w", filepath.Base(file), err)
		}
		results = append(results, r)
	}
	return results, nil
}
