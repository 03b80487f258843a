// Package report writes what bench measures: the generated parts of its pages, and plots.
package report

import (
	"bytes"
	"fmt"
	"os"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Table returns a table in Markdown. The first row is its header.
func Table(rows ...[]string) string {
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return strings.TrimSpace(b.String())
}

// Replace replaces the part of the page between the marker of a name and the next end.
func Replace(page, name, part string) error {
	old, err := os.ReadFile(page)
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	const end = "<!-- results:end -->"
	begin := "<!-- results:" + name + ", generated -->\n"
	head, rest, found := strings.Cut(string(old), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return fmt.Errorf("report: %s lacks the markers of %s", page, name)
	}
	return os.WriteFile(page, []byte(head+begin+"\n"+strings.TrimSpace(part)+"\n\n"+end+tail), 0o644)
}

// Chart is one plot of lines: for each its label and its points, as plotutil takes them.
type Chart struct {
	Title, X, Y string
	Lines       []any
}

// Draw writes the charts into one SVG file, below each other.
func Draw(file string, charts ...Chart) error {
	plot.DefaultFont = font.Font{Typeface: "Liberation", Variant: "Sans"}
	canvas := vgsvg.New(18*vg.Centimeter, 8*vg.Centimeter*vg.Length(len(charts)))
	tiles := draw.Tiles{Rows: len(charts), Cols: 1}
	for i, c := range charts {
		p := plot.New()
		p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
		p.Legend.Top, p.Legend.Left, p.Legend.XOffs = true, true, 8
		p.Add(plotter.NewGrid())
		if err := plotutil.AddLines(p, c.Lines...); err != nil {
			return fmt.Errorf("report: plotting %q: %w", c.Title, err)
		}
		p.Y.Min, p.Y.Max = 0, p.Y.Max*1.4 // the legend is above the lines
		p.Draw(draw.Crop(tiles.At(draw.New(canvas), 0, i), 8, -16, 8, -8))
	}
	var svg bytes.Buffer
	if _, err := canvas.WriteTo(&svg); err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return os.WriteFile(file, svg.Bytes(), 0o644)
}
