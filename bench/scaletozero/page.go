package main

import (
	_ "embed"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"text/template"
	"time"

	"github.com/reschedule-dev/reschedule/bench/report"
)

// ours and knative are the parts that all operators share.
var (
	ours    = []string{adapter, controller}
	knative = []string{activator, autoscaler, serving, ingress, eventing}
)

//go:embed page.md.tmpl
var pageText string

var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"warmUp":  func() string { return warmUp },
	"join":    strings.Join,
	"spread":  spread,
	"minutes": func(seconds float64) string { return fmt.Sprintf("%.0f minutes", seconds/60) },
	"day":     func(at time.Time) string { return at.UTC().Format("2006-01-02 15:04 UTC") },
}).Parse(pageText))

// render writes the generated part of the page, and the plot.
func render(repo string, r *results) error {
	if r.Idle == nil || r.Wakes == nil {
		return errors.New("scaletozero: nothing is measured yet: run the steps idle and wakes")
	}
	charts := []*report.Chart{overOperators(r)}
	if r.Run != nil {
		charts = []*report.Chart{overTime(r), overOperators(r)}
	}
	if err := report.Draw(filepath.Join(repo, "docs", "images", "scale-to-zero.svg"), charts...); err != nil {
		return err
	}
	var text strings.Builder
	if err := page.Execute(&text, r); err != nil {
		return fmt.Errorf("scaletozero: %w", err)
	}
	return report.Replace(filepath.Join(repo, "docs", "scale-to-zero.md"), text.String())
}

// cells joins what the page's tables have beside the names of their rows.
func cells(values ...string) string { return strings.Join(values, " | ") }

// IdleAll returns the idle usage of a part: of all of its pods.
func (r *results) IdleAll(part string) string {
	p, shim := r.Idle.Parts[part], r.Idle.Parts[shimOf+" "+part]
	return idleRow(math.Round(p.Pods), p.Rate, shim.Rate)
}

// IdleEach returns the idle usage of one pod of a part.
func (r *results) IdleEach(part string) string {
	p, shim := r.Idle.Parts[part], r.Idle.Parts[shimOf+" "+part]
	return idleRow(min(math.Round(p.Pods), 1), p.Rate.times(1/max(p.Pods, 1)), shim.Rate.times(1/max(shim.Pods, 1)))
}

func idleRow(pods float64, pod, shim cost) string {
	return cells(fmt.Sprint(pods), mb(pod.Memory), mb(pod.Text), mb(shim.Memory), fmt.Sprintf("%.2f", (pod.CPU+shim.CPU)*1000))
}

// Wake returns the cost of the pods of a form that deliveries started, "" when there are none.
func (r *results) Wake(form string) string {
	var seconds, memory, cpu []float64
	for _, life := range r.Wakes.Pods[form] {
		all := life.Pod.plus(life.Shim)
		seconds, memory, cpu = append(seconds, life.Seconds), append(memory, all.bytes()/1e6), append(cpu, all.CPU)
	}
	if len(seconds) == 0 {
		return ""
	}
	return cells(fmt.Sprint(r.Wakes.Asked[form]), fmt.Sprint(len(seconds)),
		spread(seconds, "%.0f"), spread(memory, "%.0f"), spread(cpu, "%.2f"), spread(r.Wakes.Late[form], "%.1f"))
}

// spread returns the mean, the least and the most.
func spread(values []float64, format string) string {
	if len(values) == 0 {
		return "–"
	}
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return fmt.Sprintf(format+" ("+format+" to "+format+")", sum/float64(len(values)), slices.Min(values), slices.Max(values))
}

// Elsewhere returns the CPU time of one delivery in other parts, in milliseconds.
func (r *results) Elsewhere(parts ...string) string {
	sum := 0.0
	for _, p := range parts {
		sum += r.Wakes.Extra[p] + r.Wakes.Extra[shimOf+" "+p]
	}
	return fmt.Sprintf("%.0f", sum*1000)
}

// Resident returns the memory of the resident operator in an hour.
func (r *results) Resident() string { return fmt.Sprintf("%.1f", r.hour(resident, 0).bytes()/1e9) }

// Most returns the deliveries an hour at which a form takes as much memory as the resident one.
func (r *results) Most(form string) string {
	if len(r.Wakes.Pods[form]) == 0 {
		return "not measured"
	}
	return fmt.Sprintf("%.0f", r.hour(resident, 0).bytes()/r.Wakes.of(form).bytes())
}

// HourRows has the cost of one operator in an hour, for more and more deliveries.
func (r *results) HourRows() (rows []string) {
	home := r.hour(resident, 0).bytes()
	elsewhere := 0.0
	for _, extra := range r.Wakes.Extra {
		elsewhere += extra
	}
	for _, k := range []float64{0, 1, 4, 12, 30, 60} {
		against := func(bytes float64) string { return fmt.Sprintf("%.1f (%s)", bytes/1e9, percent(bytes, home)) }
		zero := r.hour(serverless, k)
		rows = append(rows, cells(fmt.Sprintf("%g", k), against(zero.bytes()), against(r.hour(defaults, k).bytes()), against(zero.bytes()+r.Idle.each(watcher).Memory*3600),
			fmt.Sprintf("%.1f", r.hour(resident, k).CPU), fmt.Sprintf("%.1f", zero.CPU), fmt.Sprintf("%.0f", zero.CPU+k*elsewhere)))
	}
	return rows
}

// sized returns the memory of an operator with size bytes, resident and at zero.
// A bigger operator is assumed to take as much while it is awake as when it is
// resident, although at zero it would have no cache.
func (r *results) sized(size, deliveries float64) (home, zero float64) {
	more := size - r.Idle.pod(resident).bytes()
	home = r.hour(resident, 0).bytes()/3600 + more
	zero = r.hour(serverless, deliveries).bytes()/3600 + more*r.life(serverless)*deliveries/3600
	return home, zero
}

// BreakEvenRows has the number of operators from which it pays, for the measured
// operator, for the same without programs, and for computed sizes in bytes.
func (r *results) BreakEvenRows() (rows []string) {
	measured, watch := r.Idle.pod(resident), r.Idle.each(watcher)
	const withoutPrograms = 0
	for _, size := range []float64{measured.bytes(), withoutPrograms, 50e6, 100e6, 250e6} {
		name, count := mb(size)+" MB, computed", cost.bytes
		switch size {
		case measured.bytes():
			name = mb(size) + " MB, measured"
		case withoutPrograms:
			name, count = mb(measured.Memory)+" MB: the same, programs not counted", func(c cost) float64 { return c.Memory }
		}
		for _, k := range []float64{1, 4, 12} {
			home, zero := r.sized(size, k)
			program := watch.Text
			if size == withoutPrograms {
				home, zero, program = r.hour(resident, 0).Memory/3600, r.hour(serverless, k).Memory/3600, 0
			}
			platform := count(r.Idle.all(ours...))
			row := []string{name, fmt.Sprintf("%g", k)}
			for _, c := range []struct{ each, share float64 }{
				{0, 0},
				{0, platform},
				{0, count(r.Idle.all(slices.Concat(ours, knative)...))},
				{watch.Memory, program + platform},
				{0, count(r.Idle.all(slices.Concat(ours, []string{sharedWatcher, broker})...))},
			} {
				n, pays := from(home-zero-c.each, c.share)
				row = append(row, map[bool]string{true: fmt.Sprint(n), false: "never"}[pays])
			}
			rows = append(rows, cells(row...))
		}
	}
	return rows
}

// Ran returns the foretold and the measured cost of a part in the run, "" when the run was without it.
func (r *results) Ran(part string) string {
	want, got := r.foretold(part), r.Run.Used[part]
	if got == (cost{}) {
		return ""
	}
	return cells(fmt.Sprint(r.Run.Asked[part]), fmt.Sprint(r.Run.Pods[part]),
		fmt.Sprintf("%.1f", want.bytes()/1e9), fmt.Sprintf("%.1f (%s)", got.bytes()/1e9, percent(got.bytes(), want.bytes())),
		fmt.Sprintf("%.2f", want.CPU), fmt.Sprintf("%.2f (%s)", got.CPU, percent(got.CPU, want.CPU)))
}

func percent(got, want float64) string {
	if want == 0 {
		return "–"
	}
	return fmt.Sprintf("%+.0f %%", (got/want-1)*100)
}

func mb(bytes float64) string { return fmt.Sprintf("%.0f", bytes/1e6) }

// tenths returns a number of bytes as megabytes with one digit, for a plot.
func tenths(bytes float64) float64 { return math.Round(bytes/1e5) / 10 }

// overTime draws the measured memory of one operator in each form.
func overTime(r *results) *report.Chart {
	c := &report.Chart{
		Title: "Memory of one operator that is woken four times", Unit: "MB",
		Note: "minutes; measured; the pod with its queue-proxy, without what it shares with others",
	}
	for _, l := range []struct{ form, label string }{{resident, "resident"}, {defaults, "Knative's own settings"}, {serverless, "as in the example"}} {
		line := report.ChartLine{Label: l.label, Ours: l.form == serverless, Dashed: l.form == defaults}
		for _, p := range r.Run.Traces[l.form] {
			line.Points = append(line.Points, [2]float64{math.Round(p[0]/6) / 10, tenths(p[1])})
		}
		c.Lines = append(c.Lines, line)
	}
	return c
}

// overOperators draws the computed memory of many operators.
func overOperators(r *results) *report.Chart {
	const deliveries, most = 4.0, 40
	home, zero := r.hour(resident, deliveries).bytes()/3600, r.hour(serverless, deliveries).bytes()/3600
	watch, platform := r.Idle.each(watcher), r.Idle.all(ours...).bytes()
	c := &report.Chart{
		Title: fmt.Sprintf("Memory of so many operators, %g deliveries an hour to each", deliveries), Unit: "MB",
		Note: "operators; computed mean over an hour; dots: from here on less than resident",
	}
	for _, l := range []struct {
		label       string
		dashed      bool
		share, each float64
	}{
		{"resident", false, 0, home},
		{"at zero", false, platform, zero},
		{"… with an ApiServerSource each", true, platform + watch.Text, zero + watch.Memory},
		{"… if Knative is there only for them", true, r.Idle.all(slices.Concat(ours, knative)...).bytes(), zero},
	} {
		at := func(n int) float64 { return tenths(l.share + float64(n)*l.each) }
		c.Lines = append(c.Lines, report.ChartLine{Label: l.label, Ours: l.share > 0, Dashed: l.dashed, Points: [][2]float64{{0, at(0)}, {most, at(most)}}})
		if n, pays := from(home-l.each, l.share); l.share > 0 && pays && n <= most {
			c.Marks = append(c.Marks, report.ChartMark{X: float64(n), Y: at(n), Label: fmt.Sprint(n)})
		}
	}
	return c
}
