package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/pkg/printable"
	"github.com/reschedule-dev/reschedule/sdk"
)

// list is the command of that name.
func newList(p *program) *cobra.Command {
	var o *output
	var all bool
	c := p.command("list", "List sources, by the status that the controller and the adapter wrote", `
$ list
$ list -A -o name`,
		cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
			s, err := p.session()
			if err != nil {
				return err
			}
			if err := s.cluster("list", "use top with --metrics-server"); err != nil {
				return err
			}
			objects, err := s.objects(cmd.Context(), all)
			if err != nil {
				return err
			}
			names := columns("Name", "Ready", "Pending", "Retrying", "In flight", "Next due", "Scale", "Suspended", "Age", "Reason*", "Sink*")
			if all {
				names = append(columns("Namespace"), names...)
			}
			l := o.list(p.out, "reschedulesource.sources.reschedule.dev/", names)
			for _, s := range objects {
				if err := l.add(s.raw, s.Name, p.listed(s, all)...); err != nil {
					return err
				}
			}
			return l.end(p.err, "No sources found.")
		})
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "list the sources of all namespaces")
	o = outputFlags(c, "wide", "json", "yaml", "name")
	return c
}

func (e *env) listed(s *object, all bool) []any {
	ready := s.condition("Ready")
	next := "-"
	if t := s.Status.NextDueAt; t != nil {
		next = e.relative(t.Time)
	}
	row := []any{
		s.Name, ready.Status, number(s.Status.Pending), number(s.Status.Retrying), number(s.Status.InFlight), next, s.scaleState(), fmt.Sprint(s.Spec.Suspend),
		why.Short(e.now().Sub(s.CreationTimestamp.Time).Round(time.Second)), dash(ready.Reason), dash(s.sinkText()),
	}
	if all {
		return append([]any{s.Namespace}, row...)
	}
	return row
}

// describe is the command of that name.
func newDescribe(p *program) *cobra.Command {
	var o *output
	var verbose bool
	c := p.command("describe NAME", "Show one source: conditions, limits, counts", `
$ describe git-repos`,
		cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
			s, err := p.session()
			if err != nil {
				return err
			}
			defer s.close()
			if s.config != nil && o.format != "" {
				object, err := s.get(cmd.Context(), args[0])
				if err != nil {
					return err
				}
				return o.printOne(p.out, object.raw)
			}
			object, counts, err := s.looked(cmd.Context(), args[0])
			if o.format != "" && err == nil {
				return o.printOne(p.out, counts)
			}
			if err == nil || object != nil && object.raw != nil {
				p.described(object, counts, err)
			}
			if verbose && object != nil && object.raw != nil {
				return errors.Join(err, p.describedWhole(object))
			}
			return err
		})
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the whole spec and status too")
	c.ValidArgsFunction = p.completeSources
	o = outputFlags(c, "json", "yaml")
	return c
}

// looked finds a source and its counts. With an error there may be the object alone.
func (s *session) looked(ctx context.Context, name string) (*object, *sdk.Counts, error) {
	o, err := s.get(ctx, name)
	if err != nil {
		return nil, nil, err
	}
	src, err := s.connect(ctx, o, nil)
	if err != nil {
		return o, nil, err
	}
	counts, err := src.Counts(ctx)
	return o, counts, err
}

// describedWhole prints what the object holds, as YAML.
func (e *env) describedWhole(o *object) error {
	b, err := line(map[string]any{"labels": o.Labels, "annotations": o.Annotations, "uid": o.UID, "generation": o.Generation, "spec": o.raw.Object["spec"], "status": o.raw.Object["status"]})
	if err == nil {
		b, err = toYAML(b)
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(e.out)
	for row := range strings.Lines(string(b)) {
		fmt.Fprintln(e.out, printable.Line(strings.TrimSuffix(row, "\n")))
	}
	return nil
}

func (e *env) described(o *object, counts *sdk.Counts, failed error) {
	pairs := [][2]string{{"Name", o.Name}, {"Namespace", o.Namespace}}
	add := func(name, format string, args ...any) {
		pairs = append(pairs, [2]string{name, fmt.Sprintf(format, args...)})
	}
	if o.raw != nil {
		add("Age", "%s", why.Short(e.now().Sub(o.CreationTimestamp.Time).Round(time.Second)))
		add("Sink", "%s", dash(o.sinkText()))
		if a := o.Status.Address; a != nil {
			add("Address", "%s", a.URL)
		}
		add("Suspended", "%t", o.Spec.Suspend)
		f := o.facts()
		add("Delivery timeout", "%s", f.Timeout)
		add("In flight at most", "%d", f.MaxInFlight)
		if f.MaxPerSecond > 0 {
			add("A second at most", "%d", f.MaxPerSecond)
		}
		if f.MaxPending > 0 {
			add("Keys at most", "%d", f.MaxPending)
		}
		if w := o.workload(); w != nil {
			add("Workload", "%s %s, mode %s", w.Kind, w.Name, dash(w.Mode))
			if w.Status != nil {
				add("Workload state", "%s", e.scaleText(cmp.Or(countedScale(counts), w.Status)))
			}
		}
		for _, c := range o.Status.Conditions {
			text := c.Status
			if c.Reason != "" {
				text += " (" + c.Reason + ") " + c.Message
			}
			add("Condition "+c.Type, "%s", text)
		}
	}
	if failed == nil {
		add("Keys", "%d pending, %d due, %d retrying, %d in flight", counts.Pending, counts.Due, counts.Retrying, counts.InFlight)
		if text := why.Priorities(counts); text != "" {
			add("By priority", "%s", text)
		}
		add("Dead letters", "%d", counts.DeadLetters)
		add("Next due", "%s", e.relative(counts.NextDueAt))
		add("Oldest due", "%s", e.relative(counts.OldestDueAt))
	}
	section(e.out, pairs...)
}

// countedScale is the state of the workload among the counts, nil if it is not there.
func countedScale(n *sdk.Counts) *sdk.Scale {
	if n == nil {
		return nil
	}
	return n.Scale
}

// scaleState is the state of the workload, at most 30 s old.
func (o *object) scaleState() string {
	if o.Status.Scale == nil {
		return "-"
	}
	return dash(o.Status.Scale.State)
}

// scaleText is the state of a workload with its figures.
func (e *env) scaleText(s *sdk.Scale) string {
	text := dash(s.State) + why.Since(e.now(), s)
	if s.ObservedSeconds > 0 {
		text += fmt.Sprintf("; asleep for %s of %s", percent(s), why.Short(time.Duration(s.ObservedSeconds)*time.Second))
	}
	text += "; " + why.Plural(s.Starts, "start", "starts")
	if s.LastStart != "" {
		text += ", the last one took " + s.LastStart
	}
	if s.Reason != "" {
		text += "; it " + why.Fault(s.Reason) + " (" + s.Reason + "): " + s.Message
	}
	return text
}

// topRow is a row of top, in JSON.
type topRow struct {
	Namespace string      `json:"namespace"`
	Name      string      `json:"name"`
	Counts    *sdk.Counts `json:"counts,omitempty"`
	Error     string      `json:"error,omitempty"`

	err   error
	works bool // a workload without a sink is at it: its keys are due until it is idle
}

// top is the command of that name.
func newTop(p *program) *cobra.Command {
	var o *output
	var all, watch bool
	var every, timeout time.Duration
	c := p.command("top [NAME...]", "Show the counts of sources as they are now, the ones in trouble first", `
$ top
$ top -A --watch`,
		nil, func(cmd *cobra.Command, args []string) error {
			s, err := p.session()
			if err != nil {
				return err
			}
			defer s.close()
			if err := allOrNames(all, args); err != nil {
				return err
			}
			if watch && o.format != "" && o.format != "wide" && o.format != "ndjson" {
				return usage("--watch prints a table or ndjson")
			}
			if every <= 0 {
				return usage("--interval: %s is not a positive duration such as 2s", every)
			}
			for {
				var lines []topRow
				var group why.Group
				if err := limited(cmd.Context(), timeout, func(ctx context.Context) error {
					if s.config != nil && (o.format == "" || o.format == "wide") {
						group = s.members(ctx, s.adapterSet(ctx))
					}
					lines, err = s.counted(ctx, args, all)
					return err
				}); err != nil {
					return err
				}
				if watch && p.colour {
					fmt.Fprint(p.out, "\x1b[H\x1b[2J")
				}
				if len(group) > 0 {
					fmt.Fprintln(p.out, memberLine(group))
				}
				failed, err := p.printTop(o, lines, all)
				if err != nil || !watch {
					if err == nil && failed > 0 {
						code := exitSome
						if len(lines) == 1 {
							code = codeOf(lines[0].err)
						}
						err = &exitError{code, fmt.Errorf("%d of %d sources did not answer", failed, len(lines))}
					}
					return err
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(every):
				}
			}
		})
	c.Flags().BoolVarP(&all, "all-namespaces", "A", false, "the sources of all namespaces")
	c.Flags().BoolVarP(&watch, "watch", "w", false, "repeat until interrupted")
	c.Flags().DurationVar(&every, "interval", 2*time.Second, "with --watch: time between two")
	timeoutFlag(c, &timeout)
	c.ValidArgsFunction = p.completeSources
	o = outputFlags(c, "wide", "json", "yaml", "name", "ndjson")
	return c
}

// counted asks each source for its counts, with one token for a namespace.
func (s *session) counted(ctx context.Context, names []string, all bool) ([]topRow, error) {
	objects, err := s.chosen(ctx, names, all)
	if err != nil {
		return nil, err
	}
	lines := make([]topRow, len(objects))
	concurrently(len(objects), func(i int) {
		o := objects[i]
		src, err := s.connect(ctx, o, objects)
		if err == nil {
			lines[i].Counts, err = src.Counts(ctx)
			lines[i].works = err == nil && (&why.Source{Workload: o.workload()}).Works(lines[i].Counts.Scale)
		}
		lines[i].Namespace, lines[i].Name = o.Namespace, o.Name
		if err != nil {
			lines[i].err, lines[i].Error = err, words(err)
		}
	})
	return lines, interrupted(ctx)
}

// printTop prints the lines, and returns how many sources did not answer.
func (e *env) printTop(o *output, lines []topRow, all bool) (failed int, err error) {
	sortTop(lines)
	names := columns("Name", "Pending", "Due", "High/normal/low?", "Retrying", "In flight", "Dead letters", "Oldest due", "Next due", "Scale", "Watched*", "Error")
	if all {
		names = append(columns("Namespace"), names...)
	}
	l := o.list(e.out, "reschedulesource.sources.reschedule.dev/", names)
	for _, t := range lines {
		row := []any{t.Name, "-", "-", "-", "-", "-", "-", "-", "-", "-", "-", t.Error}
		if c := t.Counts; c != nil {
			row = []any{t.Name, c.Pending, c.Due, dueByPriority(c), c.Retrying, c.InFlight, c.DeadLetters, e.relative(c.OldestDueAt), e.relative(c.NextDueAt), dash(cmp.Or(c.Scale, &sdk.Scale{}).State), c.Watched, ""}
		} else {
			failed++
		}
		if all {
			row = append([]any{t.Namespace}, row...)
		}
		if err := l.add(t, t.Name, row...); err != nil {
			return failed, err
		}
	}
	return failed, l.end(e.err, "No sources found.")
}

// dueByPriority are the due keys of each priority, "-" while all keys are normal.
func dueByPriority(n *sdk.Counts) string {
	p := n.Priorities
	if p == nil {
		return "-"
	}
	return fmt.Sprintf("%d/%d/%d", p[sdk.HighPriority].Due, p[sdk.NormalPriority].Due, p[sdk.LowPriority].Due)
}

// sortTop puts sources that do not answer first, then by the oldest due key, then by name.
func sortTop(lines []topRow) {
	slices.SortStableFunc(lines, func(a, b topRow) int {
		if c := cmp.Compare(a.trouble(), b.trouble()); c != 0 {
			return c
		}
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

// trouble is smaller for a source that is in more of it.
func (t *topRow) trouble() int64 {
	const calm = 1 << 62
	switch {
	case t.Counts == nil:
		return 0
	case t.Counts.OldestDueAt.IsZero(), !t.Counts.CompanyUntil.IsZero(), t.works:
		return calm
	}
	return t.Counts.OldestDueAt.UnixNano()
}
