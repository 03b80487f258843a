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

// ours, knative and kube are the parts that all operators share. An operator at zero by
// its source needs only ours.
var (
	ours    = []string{adapter, controller}
	knative = []string{activator, autoscaler, serving, ingress, eventing}
	kube    = []string{apiServer, kubernetesItself}
)

// each returns the idle cost a second of one of the part's pods, with the process beside it. It
// is nothing at zero.
func (r *results) each(part string) cost {
	if atZeroForm(part) {
		return cost{}
	}
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

// extra returns the CPU seconds of a part that the deliveries to a form took, above its use
// before them, of the pods and of the processes beside them.
func (r *results) extra(form, part string) float64 {
	before, wakes := r.Wakes[form].Before, r.Wakes[form].Wakes
	idle, used, times := before.Used[part], wakes.Used[part], wakes.Seconds/before.Seconds
	return used.Pod.CPU + used.Shim.CPU - (idle.Pod.CPU+idle.Shim.CPU)*times
}

// CPU returns the CPU seconds of one delivery to a form in parts, in all of them if none is named.
func (r *results) CPU(form string, parts ...string) (sum float64) {
	if len(parts) == 0 {
		parts = append(slices.Concat(ours, knative, kube), form)
	}
	for _, part := range parts {
		sum += r.extra(form, part)
	}
	return sum / float64(max(r.Wakes[form].Wakes.Asked[form], 1))
}

// Delivery returns the cost of one delivery in the operator itself, and for how long its pod is there.
func (r *results) Delivery(form string) (l life) {
	if !atZeroForm(form) {
		return life{Cost: cost{CPU: r.CPU(form, form)}}
	}
	wakes := r.Wakes[form].Wakes
	for _, one := range wakes.Used[form].Lives {
		l.Seconds, l.Cost = l.Seconds+one.Seconds, l.Cost.plus(one.Cost)
	}
	share := 1 / float64(max(wakes.Asked[form], 1))
	return life{l.Seconds * share, l.Cost.times(share)}
}

// hour returns the cost of one operator in an hour with so many deliveries, without shared parts.
func (r *results) hour(form string, deliveries float64) cost {
	return r.Delivery(form).Cost.times(deliveries).plus(r.each(form).times(3600))
}

// from returns the least number of operators that pays: each saves so many bytes, and all share so many.
func from(saved, share float64) string {
	if saved <= 0 {
		return "never"
	}
	return fmt.Sprint(int(share/saved) + 1)
}

// sized returns the memory of an operator with size bytes, resident and in a form at zero. A
// bigger operator is assumed to take as much while it is awake as when it is resident, although
// at zero it would have no cache. count is of what counts: all memory, or without programs.
func (r *results) sized(form string, size, deliveries float64, count func(cost) float64) (home, zero float64) {
	more, one := size-count(r.pod(resident)), r.Delivery(form)
	return count(r.each(resident)) + more, (count(one.Cost) + more*one.Seconds) * deliveries / 3600
}

// predicted computes the usage of the run from idle and wakes.
func (r *results) predicted(part string) cost {
	return r.Delivery(part).Cost.times(float64(r.Run.Asked[part])).plus(r.each(part).times(r.Run.Used[part].There))
}

//go:embed pages.tmpl
var pagesText string

// pages are the pages with a generated part, which the template of the same name makes. The
// first has the commands of the template calculator too.
var pages = []string{"docs/scale-to-zero.md", "bench/scaletozero/RESULTS.md"}

// render writes the generated parts of the pages, and the plots, of what is measured.
func render(repo string, r *results) error {
	images := filepath.Join(repo, "docs", "images")
	if r.Wakes != nil {
		charts := []report.Chart{r.overOperators()}
		if r.Run != nil {
			charts = []report.Chart{r.overTime(), charts[0]}
		}
		if err := report.Draw(filepath.Join(images, "scale-to-zero.svg"), charts...); err != nil {
			return err
		}
	}
	if r.Density != nil {
		if err := report.Draw(filepath.Join(images, "density.svg"), r.Density.overTime(), r.Density.overStorm()); err != nil {
			return err
		}
	}
	if r.Published != nil {
		if err := report.Draw(filepath.Join(images, "published.svg"), r.Published.overTime()); err != nil {
			return err
		}
	}
	parts, err := template.New("").Funcs(template.FuncMap{"spread": spread}).Parse(pagesText)
	if err != nil {
		return err
	}
	for _, part := range [][3]string{{pages[0], "scale-to-zero", pages[0]}, {pages[0], "calculator", "calculator"}, {pages[1], "scale-to-zero", pages[1]}} {
		var text strings.Builder
		if err := parts.ExecuteTemplate(&text, part[2], r); err != nil {
			return err
		}
		if err := report.Replace(filepath.Join(repo, part[0]), part[1], text.String()); err != nil {
			return err
		}
	}
	return nil
}

// FormRow returns what a form costs. The methods with capitals are for the pages; the rows lack
// the names of their tables.
func (r *results) FormRow(form string) string {
	one, late, pod := r.Delivery(form), r.Wakes[form].Wakes.Late[form], "0 | –"
	if atZeroForm(form) {
		pod = fmt.Sprintf("%.0f | %.1f", one.Cost.bytes()/1e6, one.Seconds)
	}
	return fmt.Sprintf("%.0f | %s | %s | %s | %.3f | %s", r.each(form).bytes()/1e6, pod, percentile(late, 0.5), percentile(late, 0.95), r.CPU(form), r.Most(form))
}

// Shared returns the megabytes that all operators of a form share.
func (r *results) Shared(form string) string {
	switch form {
	case resident:
		return "0"
	case serverless:
		return fmt.Sprintf("%.0f", r.all(ours, knative).bytes()/1e6)
	}
	return fmt.Sprintf("%.0f", r.all(ours).bytes()/1e6)
}

// IdleRow returns the idle usage of one pod of a part, or of all of its pods.
func (r *results) IdleRow(part string, all bool) string {
	if r.Idle.Used[part].Pods == 0 && !atZeroForm(part) {
		return "0 | – | – | – | –" // it was not there
	}
	u, per := r.Idle.Used[part], max(r.Idle.Used[part].There, 1)
	if all {
		per = r.Idle.Seconds
	}
	pod, shim := u.Pod.times(1/per), u.Shim.times(1/per)
	return fmt.Sprintf("%.0f | %.0f | %.0f | %.0f | %.2f", math.Round(u.There/per), pod.Memory/1e6, pod.Text/1e6, shim.Memory/1e6, (pod.CPU+shim.CPU)*1000)
}

// Wake returns the cost of the pods of a form at zero that deliveries started.
func (r *results) Wake(form string) string {
	var seconds, memory, cpu []float64
	wakes := r.Wakes[form].Wakes
	for _, l := range wakes.Used[form].Lives {
		seconds, memory, cpu = append(seconds, l.Seconds), append(memory, l.Cost.bytes()/1e6), append(cpu, l.Cost.CPU)
	}
	return fmt.Sprintf("%d | %d | %s | %s | %s", wakes.Asked[form], len(seconds), spread(seconds, "%.1f"), spread(memory, "%.0f"), spread(cpu, "%.2f"))
}

// LateRow returns how many timers of a form were measured, and by how many seconds they were late.
func (r *results) LateRow(form string) string {
	late := r.Wakes[form].Wakes.Late[form]
	return fmt.Sprintf("%d | %s | %s | %s", len(late), percentile(late, 0.5), percentile(late, 0.95), percentile(late, 1))
}

// CPURow returns the CPU seconds of one delivery: of the operator's pod with the process beside
// it, of Kubernetes, of RescheduleSource, of Knative, and of all.
func (r *results) CPURow(form string) string {
	return fmt.Sprintf("%.3f | %.3f | %.3f | %.3f | %.3f", r.CPU(form, form), r.CPU(form, kube...), r.CPU(form, ours...), r.CPU(form, knative...), r.CPU(form))
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

// percentile returns the least value that so large a share of all does not exceed.
func percentile(values []float64, share float64) string {
	if len(values) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", slices.Sorted(slices.Values(values))[max(int(math.Ceil(share*float64(len(values))))-1, 0)])
}

// Resident returns the memory of the resident operator in an hour, in GB·s.
func (r *results) Resident() float64 { return r.hour(resident, 0).bytes() / 1e9 }

// Most returns the deliveries an hour at which a form takes as much memory as the resident one.
func (r *results) Most(form string) string {
	if bytes := r.Delivery(form).Cost.bytes(); bytes > 0 {
		return fmt.Sprintf("%.0f", r.hour(resident, 0).bytes()/bytes)
	}
	return "–"
}

// HourRows has the cost of one operator in an hour, for more and more deliveries.
func (r *results) HourRows() (rows []string) {
	home := r.hour(resident, 0).bytes()
	for _, k := range []float64{0, 1, 4, 12, 30, 60, 120, 300} {
		row := fmt.Sprintf("%g", k)
		for _, form := range []string{thin, asleep, serverless} {
			bytes := r.hour(form, k).bytes()
			row += fmt.Sprintf(" | %.1f (%s)", bytes/1e9, percent(bytes, home))
		}
		for _, f := range forms {
			row += fmt.Sprintf(" | %.0f", r.each(f.name).CPU*3600+k*r.CPU(f.name))
		}
		rows = append(rows, row)
	}
	return rows
}

// pays returns from how many operators of a size it pays: by their source, by Knative that is
// there, and by Knative that is installed only for this.
func (r *results) pays(size, deliveries float64, count func(cost) float64) string {
	pays := func(form string, shared ...[]string) string {
		home, zero := r.sized(form, size, deliveries, count)
		return from(home-zero, count(r.all(shared...)))
	}
	return strings.Join([]string{pays(asleep, ours), pays(serverless, ours), pays(serverless, ours, knative)}, " | ")
}

// sizes are of operators, in bytes.
var sizes = []float64{25e6, 50e6, 100e6, 250e6}

// PaysRows has the number of operators from which it pays at four deliveries an hour.
func (r *results) PaysRows() (rows []string) {
	for _, size := range sizes {
		rows = append(rows, fmt.Sprintf("%.0f MB | %s", size/1e6, r.pays(size, 4, cost.bytes)))
	}
	return rows
}

// BreakEvenRows has it for more deliveries, for the measured operator, and without programs.
func (r *results) BreakEvenRows() (rows []string) {
	measured := r.pod(resident)
	add := func(name string, size float64, count func(cost) float64) {
		for _, k := range []float64{1, 4, 12, 60} {
			rows = append(rows, fmt.Sprintf("%s | %g | %s", name, k, r.pays(size, k, count)))
		}
	}
	add(fmt.Sprintf("%.0f MB, measured", measured.bytes()/1e6), measured.bytes(), cost.bytes)
	add(fmt.Sprintf("%.0f MB: the same, programs not counted", measured.Memory/1e6), measured.Memory, func(c cost) float64 { return c.Memory })
	for _, size := range sizes {
		add(fmt.Sprintf("%.0f MB, computed", size/1e6), size, cost.bytes)
	}
	return rows
}

// Calculator returns the lines of awk that compute the tables for other numbers.
func (r *results) Calculator() string {
	line := func(name, form string, shared ...[]string) string {
		one := r.Delivery(form)
		beside := one.Cost.bytes()/max(one.Seconds, 1) - r.pod(resident).bytes()
		return fmt.Sprintf("  form(%q, %.1f, %.1f, %.0f)\n", name, one.Seconds, beside/1e6, r.all(shared...).bytes()/1e6)
	}
	return fmt.Sprintf("  resident = operator + %.1f\n  printf \"resident: %%.0f MB\\n\", resident\n", (r.each(resident).bytes()-r.pod(resident).bytes())/1e6) +
		line("by its source", asleep, ours) + line("by Knative, if it is there", serverless, ours) + line("by Knative, only for this", serverless, ours, knative)
}

// Ran returns the predicted and the measured cost of a form in the run.
func (r *results) Ran(form string) string {
	used := r.Run.Used[form]
	want, got := r.predicted(form), used.Pod.plus(used.Shim)
	return fmt.Sprintf("%d | %d | %.1f | %.1f (%s) | %.2f | %.2f (%s)", r.Run.Asked[form], used.Pods,
		want.bytes()/1e9, got.bytes()/1e9, percent(got.bytes(), want.bytes()), want.CPU, got.CPU, percent(got.CPU, want.CPU))
}

func percent(got, want float64) string {
	if want == 0 {
		return "–"
	}
	return fmt.Sprintf("%+.0f %%", (got/want-1)*100)
}

// Row returns what an operator with many objects takes, and the API server with it, in MB, and
// how long its pod takes to start.
func (t thinner) Row(form string) string {
	got := t.Forms[form]
	own, server := got.Idle.Used[form], got.Idle.Used[apiServer]
	return fmt.Sprintf("%.0f | %.0f | %.0f | %.0f | %.0f | %s | %.2f", own.Pod.bytes()/max(own.There, 1)/1e6, got.Starts.Used[form].Peak/1e6,
		got.Before.Used[apiServer].Pod.bytes()/got.Before.Seconds/1e6, server.Pod.bytes()/got.Idle.Seconds/1e6, got.Starts.Used[apiServer].Peak/1e6,
		spread(got.Ready, "%.2f"), got.Starts.Used[apiServer].Pod.CPU/float64(max(len(got.Ready), 1)))
}

// memory returns the mean memory of the node while a bill was taken, in bytes.
func (b *bill) memory() float64 { return b.Used[nodeItself].Pod.Memory / b.Seconds }

// Row returns what many operators take of the node, in MB, and how long a storm takes.
func (d *dense) Row(form string) string {
	got := d.Forms[form]
	pods := got.Idle.Used[form]
	return fmt.Sprintf("%.0f | %.0f | %.0f | %.0f | %.0f | %d | %s | %s", got.Empty.memory()/1e6, got.Idle.memory()/1e6, (got.Idle.memory()-got.Empty.memory())/1e6,
		pods.Pod.plus(pods.Shim).Memory/got.Idle.Seconds/1e6, (got.Storm.Used[nodeItself].Peak-got.Empty.memory())/1e6,
		got.Starting, percentile(got.Ran, 0.5), percentile(got.Ran, 1))
}

// overTime draws the measured memory of one operator in each form.
func (r *results) overTime() report.Chart {
	c := report.Chart{
		Title: "Memory of one operator that is woken four times", Y: "MB",
		X: "minutes; measured; the pod with all of its containers, without what it shares",
	}
	for _, l := range [][2]string{{resident, "resident"}, {serverless, "asleep by Knative"}, {asleep, "asleep by its source"}} {
		c.Lines = append(c.Lines, l[1], points(r.Run.Traces[l[0]], 1.0/60, 0, 0))
	}
	return c
}

// points returns a trace in X units of its seconds, after so many of them, and in MB above so many bytes.
func points(trace [][2]float64, unit, after, above float64) (xys plotter.XYs) {
	for _, p := range trace {
		xys = append(xys, plotter.XY{X: after + p[0]*unit, Y: (p[1] - above) / 1e6})
	}
	return xys
}

// denseForms are the forms of the step density, as its plots call them.
var denseForms = [][2]string{{denseResident, "resident"}, {denseAsleep, "asleep by its source"}}

// overTime draws the memory that the operators take of the node.
func (d *dense) overTime() report.Chart {
	c := report.Chart{Title: fmt.Sprintf("Memory that %d operators take of the node", d.Operators), Y: "MB", X: "minutes; measured; at the end all are woken at once"}
	for _, l := range denseForms {
		var line plotter.XYs
		got := d.Forms[l[0]]
		for _, b := range []*bill{got.Deploy, got.Idle, got.Storm} {
			line = append(line, points(b.Traces[nodeItself], 1.0/60, b.TakenAt.Sub(got.Deploy.TakenAt).Minutes(), got.Empty.memory())...)
		}
		c.Lines = append(c.Lines, l[1], line)
	}
	return c
}

// overStorm draws how many operators have run since all were woken.
func (d *dense) overStorm() report.Chart {
	c := report.Chart{Title: "All are woken at once: operators that have run", Y: "operators", X: "seconds since their objects were changed; measured"}
	for _, l := range denseForms {
		line := plotter.XYs{{}}
		for i, seconds := range d.Forms[l[0]].Ran {
			line = append(line, plotter.XY{X: seconds, Y: float64(i + 1)})
		}
		c.Lines = append(c.Lines, l[1], line)
	}
	return c
}

// overOperators draws the computed memory of many operators.
func (r *results) overOperators() report.Chart {
	const deliveries, most = 4.0, 40
	c := report.Chart{
		Title: fmt.Sprintf("Memory of so many operators, %g deliveries an hour to each", deliveries), Y: "MB",
		X: "operators; computed mean over an hour",
	}
	for _, l := range []struct {
		label, form string
		shared      [][]string
	}{
		{"resident", resident, nil},
		{"awake, without informers", thin, [][]string{ours}},
		{"asleep by their source", asleep, [][]string{ours}},
		{"asleep by Knative that is there", serverless, [][]string{ours}},
		{"asleep by Knative only for them", serverless, [][]string{ours, knative}},
	} {
		at := func(n float64) plotter.XY {
			return plotter.XY{X: n, Y: (r.all(l.shared...).bytes() + n*r.hour(l.form, deliveries).bytes()/3600) / 1e6}
		}
		c.Lines = append(c.Lines, l.label, plotter.XYs{at(0), at(most)})
	}
	return c
}
