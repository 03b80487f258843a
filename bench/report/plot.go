package report

import (
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// Chart is one plot: bars, or curves over percentiles.
type Chart struct {
	Title, Unit string
	Bars        []ChartBar   `json:",omitempty"`
	Curves      []ChartCurve `json:",omitempty"`
}

// ChartBar is a median with what it was at least and at most.
type ChartBar struct {
	Label            string
	Value, Low, High float64
	Ours             bool
	Target           float64 `json:",omitempty"` // what ours has to reach because of this one, in the chart's unit
}

// ChartCurve is a value for each of Percentiles.
type ChartCurve struct {
	Label  string
	Values []float64
	Ours   bool
}

// Percentiles are the places on the x axis of curves, as shares.
var Percentiles = []float64{0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1}

const (
	ink, quiet, grid = "#1f2328", "#59636e", "#d1d9e0"
	oursFill         = "#1a7f64"
	othersFill       = "#a9b4c0"
)

type svg struct {
	strings.Builder
}

func newSVG(width, height int, title string) *svg {
	s := new(svg)
	fmt.Fprintf(s, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" font-family="system-ui,-apple-system,'Segoe UI',Roboto,sans-serif" font-size="13">`+"\n",
		width, height, width, height)
	fmt.Fprintf(s, `<title>%s</title><rect width="%d" height="%d" rx="6" fill="#ffffff"/>`+"\n", html.EscapeString(title), width, height)
	s.text(20, 28, ink, "start", `font-size="15" font-weight="600"`, title)
	return s
}

func (s *svg) text(x, y float64, fill, anchor, more, text string) {
	fmt.Fprintf(s, `<text x="%.1f" y="%.1f" fill="%s" text-anchor="%s" %s>%s</text>`+"\n", x, y, fill, anchor, more, html.EscapeString(text))
}

func (s *svg) line(x1, y1, x2, y2 float64, stroke, more string) {
	fmt.Fprintf(s, `<line x1="%.1f" y1="%.1f" x2="%.1f" y2="%.1f" stroke="%s" %s/>`+"\n", x1, y1, x2, y2, stroke, more)
}

// Plot writes the plots of the results that have one.
func Plot(dir string, results []*Result) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	for _, r := range results {
		if r.Chart == nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, r.Name+".svg"), []byte(r.Chart.SVG()), 0o644); err != nil {
			return fmt.Errorf("report: %w", err)
		}
	}
	return nil
}

// SVG draws the chart.
func (c *Chart) SVG() string {
	if len(c.Curves) > 0 {
		return c.curves()
	}
	return c.bars()
}

func (c *Chart) bars() string {
	const left, width, top, row = 210.0, 430.0, 52.0, 34.0
	s := newSVG(760, int(top+row*float64(len(c.Bars))+22), c.Title)
	most, asked := 1e-9, 0.0
	for _, b := range c.Bars {
		most = max(most, b.Value, b.High, b.Target)
		asked = max(asked, b.Target)
	}
	scale := width / most
	ours := -1
	for i, b := range c.Bars {
		if b.Ours {
			ours = i
		}
		y, fill := top+row*float64(i), othersFill
		if b.Ours {
			fill = oursFill
		}
		s.text(left-10, y+16, ink, "end", "", b.Label)
		fmt.Fprintf(s, `<rect x="%.1f" y="%.1f" width="%.1f" height="22" rx="2" fill="%s"/>`+"\n", left, y, max(b.Value*scale, 1), fill)
		s.line(left+b.Low*scale, y+11, left+b.High*scale, y+11, ink, `stroke-width="1.5" opacity="0.55"`)
		end := max(b.Value, b.High)
		if b.Ours {
			end = max(end, asked)
		}
		s.text(left+end*scale+8, y+16, ink, "start", "", Thousands(b.Value)+" "+c.Unit)
	}
	for _, b := range c.Bars {
		if b.Target <= 0 || ours < 0 {
			continue
		}
		x, y := left+b.Target*scale, top+row*float64(ours)
		s.line(x, y-4, x, y+26, "#b3261e", `stroke-width="2"`)
	}
	s.text(left, top+row*float64(len(c.Bars))+10, quiet, "start", `font-size="11"`, "median; thin line: least to most of the rounds; red: what the bar asks of the adapter")
	s.WriteString("</svg>\n")
	return s.String()
}

func (c *Chart) curves() string {
	const left, width, top, height = 70.0, 520.0, 56.0, 260.0
	s := newSVG(760, int(top+height)+56, c.Title)
	low, high := math.Inf(1), 0.0
	for _, curve := range c.Curves {
		for _, v := range curve.Values {
			if v > 0 {
				low = min(low, v)
			}
			high = max(high, v)
		}
	}
	if high == 0 {
		low, high = 0.1, 1
	}
	// Whole decades, so that the grid's labels are round.
	first, last := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high))
	if last == first {
		last++
	}
	y := func(v float64) float64 {
		at := (math.Log10(max(v, math.Pow(10, first))) - first) / (last - first)
		return top + height*(1-at)
	}
	x := func(i int) float64 { return left + width*float64(i)/float64(len(Percentiles)-1) }
	for e := first; e <= last; e++ {
		v := math.Pow(10, e)
		s.line(left, y(v), left+width, y(v), grid, `stroke-width="1"`)
		s.text(left-8, y(v)+4, quiet, "end", `font-size="12"`, fmt.Sprintf("%g %s", v, c.Unit))
	}
	for i, p := range Percentiles {
		label := fmt.Sprintf("p%g", p*100)
		if p == 1 {
			label = "max"
		}
		s.text(x(i), top+height+20, quiet, "middle", `font-size="12"`, label)
	}
	var labels []float64
	for _, curve := range c.Curves {
		stroke := quiet
		if curve.Ours {
			stroke = oursFill
		}
		var points []string
		for i, v := range curve.Values {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(i), y(v)))
		}
		fmt.Fprintf(s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2.2" stroke-linejoin="round"/>`+"\n", strings.Join(points, " "), stroke)
		if n := len(curve.Values); n > 0 {
			at := y(curve.Values[n-1]) + 4
			for _, other := range labels { // two that end close to each other
				if math.Abs(at-other) < 16 {
					at = other + 16
				}
			}
			labels = append(labels, at)
			s.text(x(n-1)+10, at, stroke, "start", `font-weight="600"`, curve.Label)
		}
	}
	s.text(left, top+height+42, quiet, "start", `font-size="11"`, "logarithmic; all rounds together")
	s.WriteString("</svg>\n")
	return s.String()
}
