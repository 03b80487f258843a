package page

import (
	"fmt"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// The size of a chart in its own units. It is stretched to the width of the view.
const (
	bars      = 30
	barWide   = 8
	chartHigh = 60
)

// series is a part of each bar.
type series struct {
	Class, Name string
	Values      [bars]int
}

// Total is the sum of the values.
func (s *series) Total() (n int) {
	for _, v := range s.Values {
		n += v
	}
	return n
}

// chart is bars as SVG, with a table of the same numbers behind it. Without a value it is words alone.
type chart struct {
	ID, Title, About string
	Series           []*series
	From, To         string             // the time below the bars
	label            func(i int) string // of a bar
}

// rect is a part of a bar.
type rect struct {
	Class, Label string
	X, Y, High   int
}

// Rects are the parts of all bars, of a height that fits the chart.
func (c *chart) Rects() (all []rect) {
	sum, most := [bars]int{}, 0
	for _, s := range c.Series {
		for i, v := range s.Values {
			sum[i] += v
			most = max(most, sum[i])
		}
	}
	low := [bars]int{}
	for _, s := range c.Series {
		for i, v := range s.Values {
			if v > 0 {
				high := max(1, v*(chartHigh-2)/most)
				all = append(all, rect{s.Class, fmt.Sprintf("%s: %d %s", c.label(i), v, s.Name), i*barWide + 1, chartHigh - low[i] - high, high})
				low[i] += high
			}
		}
	}
	return all
}

// chartRow is the numbers of a bar.
type chartRow struct {
	Label  string
	Values []int
}

// Rows are the numbers of all bars that have some.
func (c *chart) Rows() (all []chartRow) {
	for i := range bars {
		row, sum := chartRow{Label: c.label(i)}, 0
		for _, s := range c.Series {
			row.Values = append(row.Values, s.Values[i])
			sum += s.Values[i]
		}
		if sum > 0 {
			all = append(all, row)
		}
	}
	return all
}

// spans are the lengths of time that a chart may show.
var spans = []time.Duration{
	30 * time.Second, 5 * time.Minute, 15 * time.Minute, time.Hour, 3 * time.Hour, 12 * time.Hour, 24 * time.Hour, 3 * 24 * time.Hour, 15 * 24 * time.Hour,
	60 * 24 * time.Hour, 360 * 24 * time.Hour, 100 * 366 * 24 * time.Hour,
}

// dueChart shows when the next keys become due.
func dueChart(keys []*sdk.Schedule, more bool, now time.Time) *chart {
	c := &chart{ID: "due", Title: "Next due", About: "No key waits for its time."}
	if len(keys) == 0 {
		return c
	}
	// One key that is far away must not squeeze all others into one bar.
	most := keys[(len(keys)-1)*9/10].DueAt.Sub(now)
	whole := keys[len(keys)-1].DueAt.Sub(now) + time.Nanosecond
	for _, s := range spans {
		if !more && s > most {
			whole = s
			break
		}
	}
	s := &series{Class: "due", Name: "keys"}
	for _, k := range keys {
		if i := int(float64(k.DueAt.Sub(now)) / float64(whole) * bars); i < bars {
			s.Values[max(i, 0)]++
		}
	}
	width := whole / bars
	c.About = fmt.Sprintf("%s of %s due within %s.", number(s.Total()), plural(len(keys), "key that waits is", "keys that wait are"), span(whole))
	if more {
		c.About = fmt.Sprintf("The next %s are due within %s.", plural(len(keys), "key", "keys"), span(whole))
	}
	c.Series, c.From, c.To = []*series{s}, "now", "in "+span(whole)
	c.label = func(i int) string {
		return fmt.Sprintf("in %s to %s", span(time.Duration(i)*width), span(time.Duration(i+1)*width))
	}
	return c
}

// chart shows the outcomes of the last hour, as far as they are remembered.
func (p *recent) chart(now time.Time) *chart {
	c := &chart{ID: "outcomes", Title: "Outcomes", About: "No delivery has ended since the first look. The adapter remembers events while this page is used."}
	if len(p.events) == 0 {
		return c
	}
	known := now.Sub(p.events[0].At)
	whole := time.Hour
	for _, s := range []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute} {
		if known < s {
			whole = s
			break
		}
	}
	delivered, failed := &series{Class: "good", Name: "delivered"}, &series{Class: "warn", Name: "failed, tried again"}
	givenUp, other := &series{Class: "bad", Name: "given up"}, &series{Class: "idle", Name: "other"}
	kinds := map[string]*series{"delivered": delivered, "retrying": failed, "dead_lettered": givenUp, "kept": givenUp, "dropped": givenUp}
	width, count := whole/bars, 0
	for _, e := range p.events {
		i := bars - 1 - int(now.Sub(e.At)/width)
		if e.Kind != sdk.KeyOutcome || i < 0 {
			continue
		}
		s := kinds[e.Result]
		if s == nil {
			s = other
		}
		s.Values[min(i, bars-1)]++
		count++
	}
	if count == 0 {
		return c
	}
	c.About = fmt.Sprintf("%s in the last %s that the adapter remembers", plural(count, "attempt", "attempts"), span(min(known, time.Hour)))
	if n := len(p.late); n > 0 {
		c.About += fmt.Sprintf("; the last runs began %s late in the median, %s at most", span(p.late[n/2]), span(p.late[n-1]))
	}
	c.About += "."
	c.Series, c.From, c.To = []*series{delivered, failed, givenUp, other}, span(whole)+" ago", "now"
	c.label = func(i int) string { return span(time.Duration(bars-i)*width) + " ago" }
	return c
}
