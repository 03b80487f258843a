package report

import (
	"fmt"
	"math"
	"os"
	"strings"
)

// Figure is a picture of charts below each other.
type Figure []LineChart

// LineChart is lines over a number.
type LineChart struct {
	Title, Note    string
	XLabel, YLabel string
	Lines          []Line
	Marks          []Mark
}

// Mark is a point that matters.
type Mark struct {
	X, Y  float64
	Label string
}

// Line is one of them: points of x and y.
type Line struct {
	Label  string
	Points [][2]float64
	Ours   bool
	Dashed bool // computed, where the others were measured
}

// Write draws the figure into the file.
func (f Figure) Write(file string) error {
	if err := os.WriteFile(file, []byte(f.SVG()), 0o644); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

// SVG draws the figure.
func (f Figure) SVG() string {
	const height = 340
	s := newSVG(860, height*len(f), f[0].Title)
	for i, c := range f {
		top := float64(height * i)
		if i > 0 {
			s.text(20, top+28, ink, "start", `font-size="15" font-weight="600"`, c.Title)
		}
		c.draw(s, top)
	}
	s.WriteString("</svg>\n")
	return s.String()
}

func (c LineChart) draw(s *svg, offset float64) {
	const left, width, height = 70.0, 530.0, 210.0
	top := offset + 60
	xMost, yMost := 0.0, 0.0
	for _, l := range c.Lines {
		for _, p := range l.Points {
			xMost, yMost = max(xMost, p[0]), max(yMost, p[1])
		}
	}
	xStep, yStep := roundStep(xMost/8), roundStep(yMost/5)
	xEnd, yEnd := max(xMost, xStep), max(math.Ceil(yMost/yStep)*yStep, yStep)
	x := func(v float64) float64 { return left + width*v/xEnd }
	y := func(v float64) float64 { return top + height*(1-v/yEnd) }
	for v := 0.0; v <= yEnd*1.001; v += yStep {
		s.line(left, y(v), left+width, y(v), grid, `stroke-width="1"`)
		s.text(left-8, y(v)+4, quiet, "end", `font-size="12"`, fmt.Sprintf("%g", v))
	}
	for v := 0.0; v <= xEnd*1.001; v += xStep {
		s.text(x(v), top+height+18, quiet, "middle", `font-size="12"`, fmt.Sprintf("%g", v))
	}
	s.text(left-8, top-10, quiet, "end", `font-size="12"`, c.YLabel)
	s.text(left+width+22, top+height+18, quiet, "start", `font-size="12"`, c.XLabel)
	s.text(left, top+height+42, quiet, "start", `font-size="11"`, c.Note)

	var labels []float64
	for _, l := range c.Lines {
		if len(l.Points) == 0 {
			continue
		}
		stroke, more := quiet, ""
		if l.Ours {
			stroke = oursFill
		}
		if l.Dashed {
			more = ` stroke-dasharray="6 4"`
		}
		var points []string
		for _, p := range l.Points {
			points = append(points, fmt.Sprintf("%.1f,%.1f", x(p[0]), y(p[1])))
		}
		fmt.Fprintf(s, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2" stroke-linejoin="round"%s/>`+"\n", strings.Join(points, " "), stroke, more)
		at := y(l.Points[len(l.Points)-1][1]) + 4
		for free := false; !free; { // two that end close to each other
			free = true
			for _, other := range labels {
				if math.Abs(at-other) < 15 {
					at, free = other-15, false
				}
			}
		}
		labels = append(labels, at)
		s.text(left+width+10, at, stroke, "start", `font-size="12" font-weight="600"`, l.Label)
	}
	for _, m := range c.Marks {
		fmt.Fprintf(s, `<circle cx="%.1f" cy="%.1f" r="4" fill="%s"/>`+"\n", x(m.X), y(m.Y), ink)
		s.text(x(m.X)-7, y(m.Y)-7, ink, "end", `font-size="12" font-weight="600"`, m.Label)
	}
}

// roundStep is the next of 1, 2, 5, 10, … so that a grid's labels are round.
func roundStep(v float64) float64 {
	if v <= 0 {
		return 1
	}
	decade := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 2, 5} {
		if v <= m*decade*1.0001 {
			return m * decade
		}
	}
	return 10 * decade
}
