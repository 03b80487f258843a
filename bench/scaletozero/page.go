package main

import (
	_ "embed"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/reschedule-dev/reschedule/bench/report"
	"gonum.org/v1/plot/plotter"
)

// ours and knative are the parts that all operators share.
var (
	ours    = []string{adapter, controller}
	knative = []string{activator, autoscaler, serving, ingress, eventing}
)

// each returns the idle cost a second of one of the part's pods, with the process beside it.
func (r *results) each(part string) cost {
	u := r.Idle.Used[part]
	return u.Pod.plus(u.Shim).times(1 / max(u.There, 1))
}

// pod returns the same without the process beside it.
func (r *results) pod(part string) cost {
	return r.Idle.Used[part].Pod.times(1 / max(r.Idle.Used[part].There, 1))
}

// all returns the idle cost a second of several parts.
func (r *results) all(parts ...[]string) (c cost) {
	for _, p := range slices.Concat(parts...) {
		c = c.plus(r.Idle.Used[p].Pod).plus(r.Idle.Used[p].Shim)
	}
	return c.times(1 / r.Idle.Seconds)
}

// extra returns the CPU seconds of a part in the step wakes above its idle usage, of the
// pods and of the processes beside them.
func (r *results) extra(part string) (pod, shim float64) {
	idle, wakes, times := r.Idle.Used[part], r.Wakes.Used[part], r.Wakes.Seconds/r.Idle.Seconds
	return wakes.Pod.CPU - idle.Pod.CPU*times, wakes.Shim.CPU - idle.Shim.CPU*times
}

// Delivery returns the cost of one delivery in the operator itself, and for how long its pod is there.
func (r *results) Delivery(form string) (l life) {
	if form == resident {
		l.Cost.CPU, _ = r.extra(resident)
	}
	for _, one := range r.Wakes.Used[form].Lives {
		l.Seconds, l.Cost = l.Seconds+one.Seconds, l.Cost.plus(one.Cost)
	}
	share := 1 / float64(max(r.Wakes.Asked[form], 1))
	return life{l.Seconds * share, l.Cost.times(share)}
}

// Elsewhere returns the CPU milliseconds of one delivery to an operator at zero in other parts.
func (r *results) Elsewhere(parts ...string) (sum float64) {
	asked := 0
	for form, n := range r.Wakes.Asked {
		if form != resident {
			asked += n
		}
	}
	for _, part := range parts {
		pod, shim := r.extra(part)
		if part == resident {
			pod = 0
		}
		sum += pod + shim
	}
	return sum * 1000 / float64(max(asked, 1))
}

// hour returns the cost of one operator in an hour with so many deliveries, without shared parts.
func (r *results) hour(form string, deliveries float64) cost {
	c := r.Delivery(form).Cost.times(deliveries)
	if form == resident {
		c = c.plus(r.each(resident).times(3600))
	}
	return c
}

// from returns the least number of operators that pays: each saves so many bytes, and all share so many.
func from(saved, share float64) string {
	if saved <= 0 {
		return "never"
	}
	return fmt.Sprint(int(share/saved) + 1)
}

// sized returns the memory of an operator with size bytes, resident and at zero. A bigger
// operator is assumed to take as much while it is awake as when it is resident, although at
// zero it would have no cache.
func (r *results) sized(size, deliveries float64) (home, zero float64) {
	more := size - r.pod(resident).bytes()
	return r.hour(resident, 0).bytes()/3600 + more, r.hour(serverless, deliveries).bytes()/3600 + more*r.Delivery(serverless).Seconds*deliveries/3600
}

// predicted computes the usage of the run from idle and wakes.
func (r *results) predicted(part string) cost {
	c := r.Delivery(part).Cost.times(float64(r.Run.Asked[part]))
	if part == resident || part == watcher || part == sharedWatcher {
		c = c.plus(r.each(part).times(r.Run.Used[part].There))
	}
	return c
}

//go:embed pages.tmpl
var pagesText string

// pages are the pages with a generated part, and the names of the templates for it.
var pages = []string{"docs/scale-to-zero.md", "bench/scaletozero/RESULTS.md"}

// render writes the generated parts of the pages, and the plot.
func render(repo string, r *results) error {
	charts := []report.Chart{r.overOperators()}
	if r.Run != nil {
		charts = []report.Chart{r.overTime(), r.overOperators()}
	}
	if err := report.Draw(filepath.Join(repo, "docs", "images", "scale-to-zero.svg"), charts...); err != nil {
		return err
	}
	parts, err := template.New("").Funcs(template.FuncMap{"spread": spread}).Parse(pagesText)
	if err != nil {
		return err
	}
	for _, page := range pages {
		var text strings.Builder
		if err := parts.ExecuteTemplate(&text, page, r); err != nil {
			return err
		}
		if err := report.Replace(filepath.Join(repo, page), "scale-to-zero", text.String()); err != nil {
			return err
		}
	}
	return nil
}

// IdleRow returns the idle usage of one pod of a part, or of all of its pods. The methods
// with capitals are for the page; the rows lack the names of their tables.
func (r *results) IdleRow(part string, all bool) string {
	u, per := r.Idle.Used[part], max(r.Idle.Used[part].There, 1)
	if all {
		per = r.Idle.Seconds
	}
	pod, shim := u.Pod.times(1/per), u.Shim.times(1/per)
	return fmt.Sprintf("%.0f | %.0f | %.0f | %.0f | %.2f", math.Round(u.There/per), pod.Memory/1e6, pod.Text/1e6, shim.Memory/1e6, (pod.CPU+shim.CPU)*1000)
}

// Wake returns the cost of the pods of a form that deliveries started, "" when there are none.
func (r *results) Wake(form string) string {
	var seconds, memory, cpu []float64
	for _, l := range r.Wakes.Used[form].Lives {
		seconds, memory, cpu = append(seconds, l.Seconds), append(memory, l.Cost.bytes()/1e6), append(cpu, l.Cost.CPU)
	}
	if len(seconds) == 0 {
		return ""
	}
	return fmt.Sprintf("%d | %d | %s | %s | %s | %s", r.Wakes.Asked[form], len(seconds),
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

// Resident returns the memory of the resident operator in an hour, in GB·s.
func (r *results) Resident() float64 { return r.hour(resident, 0).bytes() / 1e9 }

// Most returns the deliveries an hour at which a form takes as much memory as the resident one.
func (r *results) Most(form string) string {
	if bytes := r.Delivery(form).Cost.bytes(); bytes > 0 {
		return fmt.Sprintf("%.0f", r.hour(resident, 0).bytes()/bytes)
	}
	return "not measured"
}

// HourRows has the cost of one operator in an hour, for more and more deliveries.
func (r *results) HourRows() (rows []string) {
	home, others := r.hour(resident, 0).bytes(), append(slices.Concat(ours, knative), resident, watcher, sharedWatcher, broker, kubernetesItself)
	against := func(bytes float64) string { return fmt.Sprintf("%.1f (%s)", bytes/1e9, percent(bytes, home)) }
	for _, k := range []float64{0, 1, 4, 12, 30, 60} {
		zero := r.hour(serverless, k)
		rows = append(rows, fmt.Sprintf("%g | %s | %s | %s | %.1f | %.1f | %.0f", k, against(zero.bytes()), against(r.hour(defaults, k).bytes()), against(zero.bytes()+r.each(watcher).Memory*3600),
			r.hour(resident, k).CPU, zero.CPU, zero.CPU+k*r.Elsewhere(others...)/1000))
	}
	return rows
}

// BreakEvenRows has the number of operators from which it pays, for the measured operator,
// for the same without programs, and for computed sizes in bytes.
func (r *results) BreakEvenRows() (rows []string) {
	measured, watch := r.pod(resident), r.each(watcher)
	const withoutPrograms = 0
	for _, size := range []float64{measured.bytes(), withoutPrograms, 50e6, 100e6, 250e6} {
		name, count := fmt.Sprintf("%.0f MB, computed", size/1e6), cost.bytes
		switch size {
		case measured.bytes():
			name = fmt.Sprintf("%.0f MB, measured", size/1e6)
		case withoutPrograms:
			name, count = fmt.Sprintf("%.0f MB: the same, programs not counted", measured.Memory/1e6), func(c cost) float64 { return c.Memory }
		}
		for _, k := range []float64{1, 4, 12} {
			home, zero := r.sized(size, k)
			program := watch.Text
			if size == withoutPrograms {
				home, zero, program = r.hour(resident, 0).Memory/3600, r.hour(serverless, k).Memory/3600, 0
			}
			row, platform := fmt.Sprintf("%s | %g", name, k), count(r.all(ours))
			for _, c := range []struct{ each, share float64 }{
				{0, 0}, {0, platform}, {0, count(r.all(ours, knative))}, {watch.Memory, program + platform}, {0, count(r.all(ours, []string{sharedWatcher, broker}))},
			} {
				row += " | " + from(home-zero-c.each, c.share)
			}
			rows = append(rows, row)
		}
	}
	return rows
}

// StartRows has the memory of one operator at zero against the resident one.
func (r *results) StartRows() (rows []string) {
	home := r.hour(resident, 0).bytes()
	for _, k := range []float64{1, 4, 12, 30, 60} {
		rows = append(rows, fmt.Sprintf("%g | %s | %s", k, percent(r.hour(serverless, k).bytes(), home), percent(r.hour(defaults, k).bytes(), home)))
	}
	return rows
}

// PaysRows has the number of operators from which it pays, without an ApiServerSource, for sizes in bytes.
func (r *results) PaysRows() (rows []string) {
	for _, size := range []float64{r.pod(resident).bytes(), 50e6, 100e6, 250e6} {
		pays := func(k, platform float64) string {
			home, zero := r.sized(size, k)
			return from(home-zero, platform)
		}
		alone, all := r.all(ours).bytes(), r.all(ours, knative).bytes()
		rows = append(rows, fmt.Sprintf("%.0f MB | %s | %s | %s | %s", size/1e6, pays(1, alone), pays(4, alone), pays(12, alone), pays(4, all)))
	}
	return rows
}

// Ran returns the predicted and the measured cost of a part in the run, "" when the run was without it.
func (r *results) Ran(part string) string {
	used := r.Run.Used[part]
	want, got := r.predicted(part), used.Pod.plus(used.Shim)
	if got == (cost{}) {
		return ""
	}
	return fmt.Sprintf("%d | %d | %.1f | %.1f (%s) | %.2f | %.2f (%s)", r.Run.Asked[part], used.Pods,
		want.bytes()/1e9, got.bytes()/1e9, percent(got.bytes(), want.bytes()), want.CPU, got.CPU, percent(got.CPU, want.CPU))
}

func percent(got, want float64) string {
	if want == 0 {
		return "–"
	}
	return fmt.Sprintf("%+.0f %%", (got/want-1)*100)
}

// overTime draws the measured memory of one operator in each form.
func (r *results) overTime() report.Chart {
	c := report.Chart{
		Title: "Memory of one operator that is woken four times", Y: "MB",
		X: "minutes; measured; the pod with its queue-proxy, without what it shares",
	}
	for _, l := range [][2]string{{resident, "resident"}, {defaults, "Knative's own settings"}, {serverless, "as in the example"}} {
		var points plotter.XYs
		for _, p := range r.Run.Traces[l[0]] {
			points = append(points, plotter.XY{X: p[0] / 60, Y: p[1] / 1e6})
		}
		c.Lines = append(c.Lines, l[1], points)
	}
	return c
}

// overOperators draws the computed memory of many operators.
func (r *results) overOperators() report.Chart {
	const deliveries, most = 4.0, 40
	home, zero := r.hour(resident, deliveries).bytes()/3600, r.hour(serverless, deliveries).bytes()/3600
	watch, platform := r.each(watcher), r.all(ours).bytes()
	c := report.Chart{
		Title: fmt.Sprintf("Memory of so many operators, %g deliveries an hour to each", deliveries), Y: "MB",
		X: "operators; computed mean over an hour",
	}
	for _, l := range []struct {
		label       string
		share, each float64
	}{
		{"resident", 0, home},
		{"at zero", platform, zero},
		{"… with an ApiServerSource each", platform + watch.Text, zero + watch.Memory},
		{"… if Knative is there only for them", r.all(ours, knative).bytes(), zero},
	} {
		at := func(n float64) plotter.XY { return plotter.XY{X: n, Y: (l.share + n*l.each) / 1e6} }
		c.Lines = append(c.Lines, l.label, plotter.XYs{at(0), at(most)})
	}
	return c
}
