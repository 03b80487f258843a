package report

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Chart is one plot: bars, curves over percentiles, or lines over a number.
type Chart struct {
	Title, Unit string       // the unit of the values
	Note        string       `json:",omitempty"` // below the plot
	Bars        []ChartBar   `json:",omitempty"`
	Curves      []ChartCurve `json:",omitempty"`
	Lines       []ChartLine  `json:",omitempty"`
	Marks       []ChartMark  `json:",omitempty"`
}

// ChartBar is a median with the least and the most.
type ChartBar struct {
	Label            string
	Value, Low, High float64
	Ours             bool
	Target           float64 `json:",omitempty"` // the value that ours must reach beside this one
}

// ChartCurve is a value for each of Percentiles.
type ChartCurve struct {
	Label  string
	Values []float64
	Ours   bool
}

// Percentiles are the places on the x axis of curves, as shares.
var Percentiles = []float64{0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1}

// ChartLine is a line through points of x and y.
type ChartLine struct {
	Label  string
	Points [][2]float64
	Ours   bool
	Dashed bool
}

// ChartMark is a point with a label.
type ChartMark struct {
	X, Y  float64
	Label string
}

var (
	oursColor   = color.RGBA{R: 0x1a, G: 0x7f, B: 0x64, A: 0xff}
	otherColor  = color.RGBA{R: 0xa9, G: 0xb4, B: 0xc0, A: 0xff}
	quietColor  = color.RGBA{R: 0x59, G: 0x63, B: 0x6e, A: 0xff}
	targetColor = color.RGBA{R: 0xb3, G: 0x26, B: 0x1e, A: 0xff}
	small       = font.Font{Typeface: "Liberation", Variant: "Sans", Size: 10}
)

// Draw writes the charts into one SVG file, below each other.
func Draw(file string, charts ...*Chart) error {
	const width, height = 18 * vg.Centimeter, 8 * vg.Centimeter
	canvas := vgsvg.New(width, height*vg.Length(len(charts)))
	tiles := draw.Tiles{Rows: len(charts), Cols: 1}
	for i, c := range charts {
		p, err := c.plot()
		if err != nil {
			return fmt.Errorf("report: plotting %q: %w", c.Title, err)
		}
		p.Draw(draw.Crop(tiles.At(draw.New(canvas), 0, i), 8, -16, 8, -8))
	}
	var svg bytes.Buffer
	_, err := canvas.WriteTo(&svg)
	if err == nil {
		err = os.WriteFile(file, svg.Bytes(), 0o644)
	}
	if err != nil {
		return fmt.Errorf("report: %w", err)
	}
	return nil
}

func (c *Chart) plot() (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text, p.Title.Padding = c.Title, 8
	p.X.Label.Text, p.Y.Label.Text = c.Note, c.Unit
	p.Title.TextStyle.Font = font.Font{Typeface: small.Typeface, Variant: small.Variant, Weight: 2, Size: 12}
	for _, style := range []*text.Style{&p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font = small
	}
	p.Legend.Top, p.Legend.Left, p.Legend.XOffs, p.Legend.Padding = true, true, 8, 2
	switch {
	case len(c.Curves) > 0:
		return p, c.addCurves(p)
	case len(c.Lines) > 0:
		return p, c.addLines(p)
	}
	return p, c.addBars(p)
}

// addBars draws bars from the top down, each with its spread and its value.
func (c *Chart) addBars(p *plot.Plot) error {
	p.X.Label.Text = "median; thin line: least to most of the rounds; red: the bars that the adapter must reach"
	p.Y.Label.Text = ""
	names := make([]string, len(c.Bars))
	var values plotter.XYLabels
	var spreads struct {
		plotter.XYs
		plotter.XErrors
	}
	most, asked := 1/1.2, 0.0
	for _, b := range c.Bars {
		most, asked = max(most, b.Value, b.High, b.Target), max(asked, b.Target)
	}
	p.X.Min, p.X.Max = 0, most*1.2
	for i, b := range c.Bars {
		row := len(c.Bars) - 1 - i
		bar, err := plotter.NewBarChart(plotter.Values{b.Value}, 16)
		if err != nil {
			return err
		}
		bar.Horizontal, bar.XMin, bar.LineStyle.Width, bar.Color = true, float64(row), 0, otherColor
		end := max(b.Value, b.High)
		if b.Ours {
			bar.Color, end = oursColor, max(end, asked)
		}
		p.Add(bar)
		names[row] = b.Label
		spreads.XYs = append(spreads.XYs, plotter.XY{X: b.Value, Y: float64(row)})
		spreads.XErrors = append(spreads.XErrors, struct{ Low, High float64 }{b.Low - b.Value, b.High - b.Value})
		values.XYs = append(values.XYs, plotter.XY{X: end, Y: float64(row)})
		values.Labels = append(values.Labels, "  "+Thousands(b.Value)+" "+c.Unit)
	}
	if len(c.Bars) == 0 {
		return nil
	}
	p.NominalY(names...)
	p.Y.Min, p.Y.Max = -0.6, float64(len(c.Bars))-0.4
	errorBars, err := plotter.NewXErrorBars(spreads)
	if err != nil {
		return err
	}
	labels, err := plotter.NewLabels(values)
	if err != nil {
		return err
	}
	for i := range labels.TextStyle {
		labels.TextStyle[i].Font, labels.TextStyle[i].YAlign = small, text.YCenter
	}
	p.Add(errorBars, labels)
	for _, b := range c.Bars {
		for i, ours := range c.Bars {
			if row := float64(len(c.Bars) - 1 - i); ours.Ours && b.Target > 0 {
				if err := addLine(p, plotter.XYs{{X: b.Target, Y: row - 0.4}, {X: b.Target, Y: row + 0.4}}, targetColor, nil, ""); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// addCurves draws values over percentiles on a logarithmic axis of whole decades.
func (c *Chart) addCurves(p *plot.Plot) error {
	low, high := math.Inf(1), 0.0
	for _, curve := range c.Curves {
		for _, v := range curve.Values {
			high = max(high, v)
			if v > 0 {
				low = min(low, v)
			}
		}
	}
	if high == 0 {
		low, high = 0.1, 1
	}
	floor := math.Pow(10, math.Floor(math.Log10(low)))
	ceiling := max(math.Pow(10, math.Ceil(math.Log10(high))), floor*10)
	var ticks plot.ConstantTicks
	for i, share := range Percentiles {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: fmt.Sprintf("p%g", share*100)})
	}
	ticks[len(ticks)-1].Label = "max"
	p.X.Tick.Marker, p.X.Label.Text = ticks, "all rounds together"
	lines := &Chart{}
	for _, curve := range c.Curves {
		line := ChartLine{Label: curve.Label, Ours: curve.Ours}
		for i, v := range curve.Values {
			line.Points = append(line.Points, [2]float64{float64(i), max(v, floor)})
		}
		lines.Lines = append(lines.Lines, line)
	}
	err := lines.addLines(p)
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	p.Y.Min, p.Y.Max = floor, ceiling
	return err
}

// addLines draws lines from the origin, and the marks on them.
func (c *Chart) addLines(p *plot.Plot) error {
	p.Add(plotter.NewGrid())
	most, dashed := 1.0, 0
	for _, l := range c.Lines {
		var points plotter.XYs
		for _, at := range l.Points {
			points = append(points, plotter.XY{X: at[0], Y: at[1]})
			most = max(most, at[1])
		}
		var dashes []vg.Length
		if l.Dashed { // each dashed line has its own pattern
			dashes = [][]vg.Length{{5, 3}, {1.5, 3}}[dashed%2]
			dashed++
		}
		colour := quietColor
		if l.Ours {
			colour = oursColor
		}
		if err := addLine(p, points, colour, dashes, l.Label); err != nil {
			return err
		}
	}
	// The legend is above the lines.
	p.Y.Min, p.Y.Max = 0, most*1.4
	if len(c.Marks) == 0 {
		return nil
	}
	var marks plotter.XYLabels
	for _, m := range c.Marks {
		marks.XYs, marks.Labels = append(marks.XYs, plotter.XY{X: m.X, Y: m.Y}), append(marks.Labels, m.Label)
	}
	dots, err := plotter.NewScatter(marks)
	if err != nil {
		return err
	}
	labels, err := plotter.NewLabels(marks)
	if err != nil {
		return err
	}
	dots.Shape, labels.Offset = draw.CircleGlyph{}, vg.Point{X: -12, Y: 5}
	p.Add(dots, labels)
	return nil
}

// addLine draws one line; one without points is left out.
func addLine(p *plot.Plot, points plotter.XYs, c color.Color, dashes []vg.Length, label string) error {
	if len(points) == 0 {
		return nil
	}
	line, err := plotter.NewLine(points)
	if err != nil {
		return err
	}
	line.Color, line.Width, line.Dashes = c, 1.5, dashes
	p.Add(line)
	if label != "" {
		p.Legend.Add(label, line)
	}
	return nil
}
