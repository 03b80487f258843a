package page

import (
	"fmt"
	"time"
)

// The size of a chart in its own units. It is stretched to the width of the view.
const (
	bars      = 30
	barWide   = 8
	chartHigh = 60
)

// series is a part of each bar.
type series struct {
	class, name constant
	values      [bars]int
}

// axis is the time below the bars of a chart.
type axis struct {
	from, to string
	label    func(bar int) string
}

// chart draws bars as SVG, with a table of the same numbers behind it.
func chart(id, title constant, sub markup, all []series, x axis) markup {
	most, sum := 0, [bars]int{}
	for _, s := range all {
		for i, v := range s.values {
			sum[i] += v
			most = max(most, sum[i])
		}
	}
	if most == 0 {
		return write(`<section class="card" aria-labelledby="%s-head"><h2 id="%s-head">%s</h2><p class="sub">%s</p></section>`, string(id), string(id), string(title), sub)
	}
	var rects, rows, legend []markup
	low := [bars]int{}
	for _, s := range all {
		total := 0
		for i, v := range s.values {
			if v == 0 {
				continue
			}
			total += v
			high := max(1, v*(chartHigh-2)/most)
			rects = append(rects, write(`<rect class="%s" x="%s" y="%s" width="%s" height="%s" rx="1"><title>%s: %s %s</title></rect>`,
				string(s.class), i*barWide+1, chartHigh-low[i]-high, barWide-2, high, x.label(i), v, string(s.name)))
			low[i] += high
		}
		if total > 0 && len(all) > 1 {
			legend = append(legend, write(`<li><span class="dot %s"></span>%s %s</li>`, string(s.class), number(int64(total)), string(s.name)))
		}
	}
	for i := range bars {
		if sum[i] == 0 {
			continue
		}
		var cells []markup
		for _, s := range all {
			cells = append(cells, write(`<td class="num">%s</td>`, s.values[i]))
		}
		rows = append(rows, write(`<tr><th scope="row">%s</th>%s</tr>`, x.label(i), join(cells)))
	}
	var heads []markup
	for _, s := range all {
		heads = append(heads, write(`<th scope="col" class="num">%s</th>`, string(s.name)))
	}
	return write(`<section class="card" aria-labelledby="%s-head"><h2 id="%s-head">%s</h2><p class="sub">%s</p>
<svg class="chart" viewBox="0 0 %s %s" preserveAspectRatio="none" role="img" aria-label="%s. The table below has the numbers.">%s</svg>
<p class="axis"><span>%s</span><span>%s</span></p>%s
<details id="%s-table"><summary>Table</summary><table><caption class="unseen">%s</caption><thead><tr><th scope="col">When</th>%s</tr></thead><tbody>%s</tbody></table></details></section>`,
		string(id), string(id), string(title), sub, bars*barWide, chartHigh, string(title), join(rects), x.from, x.to, legendOf(legend), string(id), string(title), join(heads), join(rows))
}

func legendOf(items []markup) markup {
	if len(items) == 0 {
		return ""
	}
	return write(`<ul class="legend">%s</ul>`, join(items))
}

// spans are the lengths of time that a chart may show.
var spans = []time.Duration{
	30 * time.Second, 5 * time.Minute, 15 * time.Minute, time.Hour, 3 * time.Hour, 12 * time.Hour, 24 * time.Hour, 3 * 24 * time.Hour, 15 * 24 * time.Hour,
	60 * 24 * time.Hour, 360 * 24 * time.Hour, 100 * 366 * 24 * time.Hour,
}

// dueChart shows when the next keys become due.
func dueChart(rows []row, more bool, now time.Time) markup {
	if len(rows) == 0 {
		return chart("due", "Next due", "No key waits for its time.", nil, axis{})
	}
	// One key that is far away must not squeeze all others into one bar.
	most := rows[(len(rows)-1)*9/10].DueAt.Sub(now)
	whole := rows[len(rows)-1].DueAt.Sub(now) + time.Nanosecond
	for _, s := range spans {
		if !more && s > most {
			whole = s
			break
		}
	}
	s := series{class: "due", name: "keys"}
	drawn := int64(0)
	for _, r := range rows {
		if i := int(float64(r.DueAt.Sub(now)) / float64(whole) * bars); i < bars {
			s.values[max(i, 0)]++
			drawn++
		}
	}
	width := whole / bars
	about := write("%s of %s due within %s.", number(drawn), plural(int64(len(rows)), "key that waits is", "keys that wait are"), span(whole))
	if more {
		about = write("The next %s are due within %s.", plural(int64(len(rows)), "key", "keys"), span(whole))
	}
	return chart("due", "Next due", about, []series{s}, axis{from: "now", to: "in " + span(whole), label: func(i int) string {
		return fmt.Sprintf("in %s to %s", span(time.Duration(i)*width), span(time.Duration(i+1)*width))
	}})
}

// chart shows the outcomes of the last hour, as far as they are remembered.
func (f *recent) chart(now time.Time) markup {
	whole := time.Hour
	for _, s := range []time.Duration{time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour} {
		if now.Sub(f.since) < s {
			whole = s
			break
		}
	}
	all := []series{{class: "good", name: "delivered"}, {class: "warn", name: "failed, tried again"}, {class: "bad", name: "given up"}, {class: "idle", name: "other"}}
	index := map[string]int{"delivered": 0, "retrying": 1, "dead_lettered": 2, "kept": 2, "dropped": 2}
	width := whole / bars
	count := 0
	for _, e := range f.events {
		i := bars - 1 - int(now.Sub(e.At)/width)
		if e.Kind != "outcome" || i < 0 {
			continue
		}
		n, ok := index[e.Result]
		if !ok {
			n = 3
		}
		all[n].values[min(i, bars-1)]++
		count++
	}
	about := markup("No delivery has ended since the first look. The adapter remembers events while this page is used.")
	if count > 0 {
		about = write("%s in the last %s that the adapter remembers", plural(int64(count), "attempt", "attempts"), span(min(now.Sub(f.since), time.Hour)))
		if n := len(f.late); n > 0 {
			about += write("; the last runs began <strong>%s</strong> late in the median, <strong>%s</strong> at most", span(f.late[n/2]), span(f.late[n-1]))
		}
		about += "."
	}
	return chart("outcomes", "Outcomes", about, all, axis{from: span(whole) + " ago", to: "now", label: func(i int) string {
		return span(time.Duration(bars-i)*width) + " ago"
	}})
}
