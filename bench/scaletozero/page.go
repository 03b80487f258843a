package main

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/reschedule-dev/reschedule/bench/report"
)

// ours and knative are the parts that all operators share.
var (
	ours    = []string{adapter, controller}
	knative = []string{activator, autoscaler, serving, ingress, eventing}
)

// render writes the generated part of the page, and the plot.
func render(repo string, r *results) error {
	if r.Idle == nil || r.Wakes == nil {
		return fmt.Errorf("scaletozero: nothing is measured yet: run the steps idle and wakes")
	}
	charts := []*report.Chart{overOperators(r)}
	if r.Run != nil {
		charts = []*report.Chart{overTime(r), overOperators(r)}
	}
	if err := report.Draw(filepath.Join(repo, "docs", "images", "scale-to-zero.svg"), charts...); err != nil {
		return err
	}
	return report.Replace(filepath.Join(repo, "docs", "scale-to-zero.md"), page(r))
}

func page(r *results) string {
	var b strings.Builder
	fmt.Fprintf(&b, "### While idle\n\n%s\n", idleTable(r))
	fmt.Fprintf(&b, "### One delivery\n\n%s\n", wakeTable(r))
	fmt.Fprintf(&b, "What one delivery costs in other places, in milliseconds of CPU: %s.\n\n", elsewhere(r))
	fmt.Fprintf(&b, "### One operator, one hour\n\n%s\n", hourTable(r))
	fmt.Fprintf(&b, "### From how many operators it pays, in memory\n\n%s\n", breakEvenTable(r))
	if r.Run != nil {
		fmt.Fprintf(&b, "### Does it add up?\n\n%s\n", runTable(r))
	}
	fmt.Fprintf(&b, "### Conditions\n\n%s; %s; %s. Idle for %s on %s, wakes for %s", r.Conditions.Node, strings.Join(r.Conditions.Versions, ", "), r.Conditions.Meter,
		minutes(r.Idle.Seconds), r.Idle.TakenAt.UTC().Format("2006-01-02 15:04 UTC"), minutes(r.Wakes.Seconds))
	if r.Run != nil {
		fmt.Fprintf(&b, ", the run of %s on %s", minutes(r.Run.Seconds), r.Run.TakenAt.UTC().Format("2006-01-02 15:04 UTC"))
	}
	fmt.Fprintf(&b, ". Commit %s.\n", r.Conditions.Commit)
	return b.String()
}

func idleTable(r *results) string {
	var rows [][]string
	for _, row := range []struct {
		part, what, who string
		each            bool // one pod is shown, not all
	}{
		{resident, "the operator, resident", "each operator", true},
		{serverless, "the operator at zero", "each operator", true},
		{watcher, "an ApiServerSource", "each operator that changes are to wake", true},
		{sharedWatcher, "or one for ten kinds", "all operators, with a Broker", true},
		{broker, "Knative's Broker on in-memory channels", "all Brokers", false},
		{adapter, "RescheduleSource: adapter", "all operators", false},
		{controller, "RescheduleSource: controller", "all operators", false},
		{activator, "Knative Serving: activator", "all Knative Services", false},
		{autoscaler, "Knative Serving: autoscaler", "all Knative Services", false},
		{serving, "Knative Serving: the rest", "all Knative Services", false},
		{ingress, "ingress", "all Knative Services", false},
		{eventing, "Knative Eventing without its Broker", "all sources", false},
	} {
		p, shim := r.Idle.Parts[row.part], r.Idle.Parts[shimOf+" "+row.part]
		shown := math.Round(p.Pods)
		if row.each {
			p.Rate, shim.Rate = p.Rate.times(1/max(p.Pods, 1)), shim.Rate.times(1/max(shim.Pods, 1))
			shown = min(shown, 1)
		}
		rows = append(rows, []string{
			row.what, row.who, fmt.Sprint(shown), mb(p.Rate.Memory), mb(p.Rate.Text), mb(shim.Rate.Memory), fmt.Sprintf("%.2f", (p.Rate.CPU+shim.Rate.CPU)*1000),
		})
	}
	return report.Table([]string{"", "for", "pods", "memory of its own, MB", "program, MB", "beside the pod, MB", "CPU, ‰ of a core"}, rows)
}

func wakeTable(r *results) string {
	var rows [][]string
	for _, row := range []struct{ form, what string }{
		{serverless, "window 10s, timeoutSeconds 30, as in the example"}, {warmed, "as in the example, `warmUp: " + warmUp + "`"}, {fed, "as in the example, behind an ApiServerSource"}, {defaults, "Knative's own settings: window 60s, timeoutSeconds 300"}, {shared, "as in the example, behind a Broker"},
	} {
		lives := r.Wakes.Pods[row.form]
		if len(lives) == 0 {
			continue
		}
		var seconds, memory, cpu []float64
		for _, life := range lives {
			all := life.Pod.plus(life.Shim)
			seconds, memory, cpu = append(seconds, life.Seconds), append(memory, all.bytes()/1e6), append(cpu, all.CPU)
		}
		rows = append(rows, []string{
			row.what, fmt.Sprint(r.Wakes.Asked[row.form]), fmt.Sprint(len(lives)), spread(seconds, "%.0f"), spread(memory, "%.0f"), spread(cpu, "%.2f"), spread(r.Wakes.Late[row.form], "%.1f"),
		})
	}
	rows = append(rows, []string{"resident", fmt.Sprint(r.Wakes.Asked[resident]), "", "", "", fmt.Sprintf("%.3f", r.Wakes.CPU[resident]), spread(r.Wakes.Late[resident], "%.1f")})
	return report.Table([]string{"", "deliveries", "pods", "a pod is there, s", "MB·s", "CPU, s", "done after its time, s"}, rows)
}

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

func elsewhere(r *results) string {
	var found []string
	for _, row := range []struct {
		what  string
		parts []string
	}{
		{"kubelet, container runtime, API server, etcd, scheduler and controllers of Kubernetes", []string{kubernetes}},
		{"activator, autoscaler and the rest of Knative Serving", []string{activator, autoscaler, serving}},
		{"ingress", []string{ingress}},
		{"ApiServerSource's pods", []string{watcher, sharedWatcher}},
		{"RescheduleSource", ours},
		{"Knative Eventing", []string{eventing, broker}},
	} {
		found = append(found, fmt.Sprintf("%s %.0f", row.what, r.Wakes.elsewhere(row.parts...)*1000))
	}
	return strings.Join(found, "; ")
}

// all returns the CPU time of one delivery in other places.
func (w *wakes) all() float64 {
	sum := 0.0
	for _, extra := range w.Extra {
		sum += extra
	}
	return sum
}

var deliveriesAnHour = []float64{0, 1, 4, 12, 30, 60}

func hourTable(r *results) string {
	var rows [][]string
	home := r.hour(resident, 0).bytes()
	for _, k := range deliveriesAnHour {
		row := []string{fmt.Sprintf("%g", k)}
		for _, bytes := range []float64{
			r.hour(serverless, k).bytes(), r.hour(defaults, k).bytes(), r.hour(serverless, k).bytes() + r.Idle.each(watcher).Memory*3600,
		} {
			row = append(row, fmt.Sprintf("%.1f (%+.0f %%)", bytes/1e9, (bytes/home-1)*100))
		}
		zero := r.hour(serverless, k).CPU
		rows = append(rows, append(row, fmt.Sprintf("%.1f", r.hour(resident, k).CPU), fmt.Sprintf("%.1f", zero), fmt.Sprintf("%.0f", zero+k*r.Wakes.all())))
	}
	most := func(form string) string { // deliveries at which both forms take the same
		if len(r.Wakes.Pods[form]) == 0 {
			return "not measured"
		}
		return fmt.Sprintf("%.0f", home/r.Wakes.of(form).bytes())
	}
	return fmt.Sprintf("Resident it takes %.1f GB·s. At zero, in GB·s, with the difference to that; from %s deliveries an hour on (with Knative's own settings %s) the resident form takes less:\n\n",
		home/1e9, most(serverless), most(defaults)) +
		report.Table([]string{"deliveries", "at zero", "with Knative's own settings", "with an ApiServerSource of its own", "CPU s, resident", "CPU s, at zero", "and the work elsewhere"}, rows)
}

// sizes of operators that were not measured, in bytes.
var sizes = []float64{50e6, 100e6, 250e6}

// sized returns the memory of an operator with size bytes, resident and at zero.
// A bigger operator is assumed to take as much while it is awake as when it is
// resident, although at zero it would have no cache.
func (r *results) sized(size, deliveries float64) (home, zero float64) {
	measured := r.Idle.Parts[resident]
	more := size - measured.Rate.bytes()/max(measured.Pods, 1)
	home = r.hour(resident, 0).bytes()/3600 + more
	zero = r.hour(serverless, deliveries).bytes()/3600 + more*r.life(serverless)*deliveries/3600
	return home, zero
}

func breakEvenTable(r *results) string {
	measured := r.Idle.Parts[resident]
	small := measured.Rate.bytes() / max(measured.Pods, 1)
	watch := r.Idle.each(watcher)
	var rows [][]string
	for _, size := range append([]float64{small, 0}, sizes...) {
		name, count := mb(size)+" MB, computed", cost.bytes
		switch size {
		case 0:
			name, count = mb(measured.Rate.Memory/max(measured.Pods, 1))+" MB: the same, programs not counted", func(c cost) float64 { return c.Memory }
		case small:
			name = mb(size) + " MB, measured"
		}
		for _, k := range []float64{1, 4, 12} {
			home, zero := r.sized(size, k)
			program := watch.Text
			if size == 0 {
				home, zero, program = r.hour(resident, 0).Memory/3600, r.hour(serverless, k).Memory/3600, 0
			}
			row := []string{name, fmt.Sprintf("%g", k)}
			for _, c := range []struct{ each, share float64 }{
				{0, 0},
				{0, count(r.Idle.all(ours...))},
				{0, count(r.Idle.all(slices.Concat(ours, knative)...))},
				{watch.Memory, program + count(r.Idle.all(ours...))},
				{0, count(r.Idle.all(slices.Concat(ours, []string{sharedWatcher, broker})...))},
			} {
				n, pays := from(home-zero-c.each, c.share)
				row = append(row, map[bool]string{true: fmt.Sprint(n), false: "never"}[pays])
			}
			rows = append(rows, row)
		}
	}
	return report.Table([]string{
		"the operator, resident", "deliveries an hour", "all is there already", "Knative is there", "nothing is there",
		"Knative is there, an ApiServerSource each", "Knative is there, one ApiServerSource and the Broker for all",
	}, rows)
}

// life returns the seconds that the pod of a delivery exists.
func (r *results) life(form string) float64 {
	sum := 0.0
	for _, life := range r.Wakes.Pods[form] {
		sum += life.Seconds
	}
	return sum / float64(max(r.Wakes.Asked[form], 1))
}

func runTable(r *results) string {
	var rows [][]string
	for _, row := range []struct{ part, what string }{
		{resident, "resident"}, {serverless, "at zero"}, {warmed, "at zero, warmed up"}, {fed, "at zero, behind an ApiServerSource"}, {defaults, "at zero, Knative's own settings"}, {shared, "at zero, behind a Broker"},
		{watcher, "pods of the ApiServerSources"}, {sharedWatcher, "pod of the shared ApiServerSource"},
	} {
		want, got := r.foretold(row.part), r.Run.Used[row.part]
		if got == (cost{}) {
			continue // the run was without this form
		}
		rows = append(rows, []string{
			row.what, fmt.Sprint(r.Run.Asked[row.part]), fmt.Sprint(r.Run.Pods[row.part]),
			fmt.Sprintf("%.1f", want.bytes()/1e9), fmt.Sprintf("%.1f (%s)", got.bytes()/1e9, percent(got.bytes(), want.bytes())),
			fmt.Sprintf("%.2f", want.CPU), fmt.Sprintf("%.2f (%s)", got.CPU, percent(got.CPU, want.CPU)),
		})
	}
	return fmt.Sprintf("%s of sparse work, all forms at the same time, four deliveries to each operator; foretold is idle × time + deliveries × one delivery, from the tables above.\n\n", minutes(r.Run.Seconds)) +
		report.Table([]string{"", "deliveries", "pods", "GB·s foretold", "measured", "CPU s foretold", "measured"}, rows)
}

func percent(got, want float64) string {
	if want == 0 {
		return "–"
	}
	return fmt.Sprintf("%+.0f %%", (got/want-1)*100)
}

func mb(bytes float64) string { return fmt.Sprintf("%.0f", bytes/1e6) }

func minutes(seconds float64) string { return fmt.Sprintf("%.0f minutes", seconds/60) }

// overTime draws the measured memory of one operator in each form.
func overTime(r *results) *report.Chart {
	c := &report.Chart{
		Title: "Memory of one operator that is woken four times", Unit: "MB",
		Note: "minutes; measured; the pod with its queue-proxy, without what it shares with others",
	}
	for _, l := range []struct{ form, label string }{{resident, "resident"}, {defaults, "Knative's own settings"}, {serverless, "as in the example"}} {
		line := report.ChartLine{Label: l.label, Ours: l.form == serverless, Dashed: l.form == defaults}
		for _, p := range r.Run.Traces[l.form] {
			line.Points = append(line.Points, [2]float64{math.Round(p[0]/6) / 10, math.Round(p[1]/1e5) / 10})
		}
		c.Lines = append(c.Lines, line)
	}
	return c
}

// overOperators draws the computed memory of many operators.
func overOperators(r *results) *report.Chart {
	const deliveries, most = 4.0, 40
	home, zero := r.hour(resident, deliveries).bytes()/3600, r.hour(serverless, deliveries).bytes()/3600
	watch := r.Idle.each(watcher)
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
		{"at zero", false, r.Idle.all(ours...).bytes(), zero},
		{"… with an ApiServerSource each", true, r.Idle.all(ours...).bytes() + watch.Text, zero + watch.Memory},
		{"… if Knative is there only for them", true, r.Idle.all(slices.Concat(ours, knative)...).bytes(), zero},
	} {
		at := func(n int) float64 { return math.Round((l.share+float64(n)*l.each)/1e5) / 10 }
		c.Lines = append(c.Lines, report.ChartLine{Label: l.label, Ours: l.share > 0, Dashed: l.dashed, Points: [][2]float64{{0, at(0)}, {most, at(most)}}})
		if n, pays := from(home-l.each, l.share); l.share > 0 && pays && n <= most {
			c.Marks = append(c.Marks, report.ChartMark{X: float64(n), Y: at(n), Label: fmt.Sprint(n)})
		}
	}
	return c
}
