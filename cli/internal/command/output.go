package command

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/util/jsonpath"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/pkg/printable"
)

// output is how a command prints.
type output struct {
	format    string
	template  *jsonpath.JSONPath // of -o jsonpath=…, with the format json
	noHeaders bool
	screen    bool // the output is a terminal
	cut       bool // long cells of a table are cut
}

// outputFlags adds -o with these formats; "" is a table, or text.
func outputFlags(c *cobra.Command, formats ...string) *output {
	o := &output{}
	accepted := strings.Join(formats, ", ")
	if slices.Contains(formats, "json") {
		accepted += ", jsonpath=TEMPLATE"
	}
	c.Flags().StringVarP(&o.format, "output", "o", "", "output format: "+accepted)
	complete(c, "output", formats...)
	if slices.Contains(formats, "name") {
		c.Flags().BoolVar(&o.noHeaders, "no-headers", false, "print no headers")
	}
	run := c.RunE
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if text, ok := strings.CutPrefix(o.format, "jsonpath="); ok && slices.Contains(formats, "json") {
			o.format, o.template = "json", jsonpath.New("output").AllowMissingKeys(true)
			if err := o.template.Parse(text); err != nil {
				return usage("--output: %w", err)
			}
		}
		if o.format != "" && !slices.Contains(formats, o.format) {
			return usage("--output %q is not one of %s", o.format, accepted)
		}
		p, ok := cmd.OutOrStdout().(*printer)
		o.screen = ok && p.terminal
		o.cut = o.screen && o.format == "" && slices.Contains(formats, "wide")
		return run(cmd, args)
	}
	return o
}

// printOne prints a value as JSON or YAML.
func (o *output) printOne(w io.Writer, v any) error {
	b, err := line(v)
	if err != nil {
		return err
	}
	if o.template != nil {
		return o.pick(w, b)
	}
	if o.format == "yaml" {
		b, err = toYAML(b)
	} else {
		var indented bytes.Buffer
		err = json.Indent(&indented, b, "", "  ")
		b = indented.Bytes()
	}
	if err != nil {
		return err
	}
	_, err = w.Write(o.shown(b))
	return err
}

// shown is JSON or YAML for the output. On a terminal, what cannot be printed is escaped, with marks that
// reorder text: a program reads the same values, and a person sees what is there.
func (o *output) shown(text []byte) []byte {
	switch {
	case !o.screen:
		return text
	case o.format == "yaml":
		return printable.YAML(text)
	}
	return printable.JSON(text, printable.Hidden)
}

// decoded is JSON whose numbers stay as they are written.
func decoded(b []byte) (v any, err error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	return v, d.Decode(&v)
}

// node is a value with the numbers as scalars of the same text.
func node(v any) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode}
	switch v := v.(type) {
	case map[string]any:
		n.Kind = yaml.MappingNode
		for _, name := range slices.Sorted(maps.Keys(v)) {
			n.Content = append(n.Content, node(name), node(v[name]))
		}
		return n
	case []any:
		n.Kind = yaml.SequenceNode
		for _, item := range v {
			n.Content = append(n.Content, node(item))
		}
		return n
	case json.Number:
		n.Value = v.String()
		return n
	case string:
		// A block whose first line is indented, and the key of a merge, are read as something else. Only
		// in quotes can a character be escaped.
		if v == "<<" || strings.ContainsFunc(v, printable.Hidden) || strings.Contains(v, "\n") && strings.TrimLeft(v, " \t\n") != v {
			n.Value, n.Style = v, yaml.DoubleQuotedStyle
			return n
		}
	}
	_ = n.Encode(v) // a text, a bool and nil have a form in any case
	return n
}

// toYAML is JSON as YAML. An event's data may have numbers that no Go type holds.
func toYAML(b []byte) ([]byte, error) {
	v, err := decoded(b)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	e := yaml.NewEncoder(&text)
	e.SetIndent(2)
	e.CompactSeqIndent()
	err = errors.Join(e.Encode(node(v)), e.Close())
	return text.Bytes(), err
}

// pick prints what the template selects.
func (o *output) pick(w io.Writer, b []byte) error {
	v, err := decoded(b)
	if err != nil {
		return err
	}
	var picked strings.Builder
	if err := o.template.Execute(&picked, v); err != nil {
		return usage("--output: %w", err)
	}
	rows := strings.Split(strings.TrimSuffix(picked.String(), "\n"), "\n")
	for i := range rows {
		rows[i] = o.exact(rows[i])
	}
	_, err = fmt.Fprintln(w, strings.Join(rows, "\n"))
	return err
}

// exact is a value as it is, for programs, also one with marks that reorder text. On a
// terminal it is clean, as in a table: a terminal obeys control characters, which a sink's
// answer may have.
func (o *output) exact(s string) string {
	if o.screen {
		return printable.Line(s)
	}
	return s
}

// line is a value as a line of JSON. It is no part of an HTML page, so <, > and & stay. Control
// characters that JSON need not escape are escaped, since a terminal obeys them.
func line(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return printable.JSON(b.Bytes(), printable.IsTerminalControl), err
}

// column is a column of a table. A wide one is printed with -o wide only, and an optional one from
// the first row on that has a value for it, other than "-".
type column struct {
	name           string
	wide, optional bool
}

func columns(names ...string) []column {
	var all []column
	for _, n := range names {
		name, wide := strings.CutSuffix(n, "*")
		name, optional := strings.CutSuffix(name, "?")
		all = append(all, column{name, wide, optional})
	}
	return all
}

// rowsAtOnce is how many rows a table aligns together, so that a long list is printed
// while it is read.
const rowsAtOnce = 500

// lister prints items one by one: a table, JSON, YAML, names or NDJSON. It holds a
// bounded part of them, except for YAML and JSONPath.
type lister struct {
	o       *output
	w       *bufio.Writer
	columns []column
	kind    string // of the names
	rows    []metav1.TableRow
	shown   int // columns of the last table
	count   int
	all     []any // for YAML and JSONPath
}

func (o *output) list(w io.Writer, kind string, columns []column) *lister {
	return &lister{o: o, w: bufio.NewWriter(w), columns: slices.Clone(columns), kind: kind}
}

// add prints an item: the value itself, its name, or its cells.
func (l *lister) add(v any, name string, cells ...any) error {
	l.count++
	switch l.o.format {
	case "json":
		if l.o.template != nil {
			l.all = append(l.all, v)
			return nil
		}
		separator := ",\n"
		if l.count == 1 {
			separator = "{\"items\":[\n"
		}
		b, err := line(v)
		if err != nil {
			return err
		}
		_, _ = l.w.WriteString(separator)
		_, err = l.w.Write(l.o.shown(bytes.TrimSuffix(b, []byte{'\n'})))
		return err
	case "ndjson":
		b, err := line(v)
		if err != nil {
			return err
		}
		_, err = l.w.Write(l.o.shown(b))
		return err
	case "yaml":
		l.all = append(l.all, v)
		return nil
	case "name":
		_, err := fmt.Fprintln(l.w, l.kind+l.o.exact(name))
		return err
	}
	last := len(l.columns) - 1
	for last > 0 && l.columns[last].wide {
		last--
	}
	for i := range cells {
		if s, ok := cells[i].(string); ok {
			s = printable.Line(s)
			if l.o.cut && i != last { // nothing stands behind the last one
				s = cut(s)
			}
			cells[i] = s
		}
	}
	l.rows = append(l.rows, metav1.TableRow{Cells: cells})
	if len(l.rows) == rowsAtOnce {
		return l.table()
	}
	return nil
}

// table prints the rows so far. The headers come again before rows that have more columns.
func (l *lister) table() error {
	t := &metav1.Table{Rows: l.rows}
	for i := len(l.columns) - 1; i >= 0; i-- {
		c := &l.columns[i]
		if c.optional = c.optional && !slices.ContainsFunc(l.rows, func(r metav1.TableRow) bool { return r.Cells[i] != "-" }); c.optional {
			for j := range l.rows {
				l.rows[j].Cells = slices.Delete(l.rows[j].Cells, i, i+1)
			}
		}
	}
	for _, c := range l.columns {
		definition := metav1.TableColumnDefinition{Name: c.name, Type: "string"}
		if c.wide {
			definition.Priority = 1
		}
		if !c.optional {
			t.ColumnDefinitions = append(t.ColumnDefinitions, definition)
		}
	}
	p := printers.NewTablePrinter(printers.PrintOptions{NoHeaders: l.o.noHeaders || len(t.ColumnDefinitions) == l.shown, Wide: l.o.format == "wide"})
	l.shown = len(t.ColumnDefinitions)
	l.rows = nil
	if err := p.PrintObj(t, l.w); err != nil {
		return err
	}
	return l.w.Flush()
}

// end prints the rest. Nothing is the text for a table without rows.
func (l *lister) end(errs io.Writer, nothing string) error {
	switch l.o.format {
	case "json":
		if l.o.template != nil {
			return l.whole()
		}
		if l.count == 0 {
			_, _ = l.w.WriteString(`{"items":[`)
		}
		_, _ = l.w.WriteString("\n]}\n")
	case "yaml":
		return l.whole()
	case "", "wide":
		if l.count == 0 {
			fmt.Fprintln(errs, nothing)
		}
		if len(l.rows) > 0 {
			return l.table()
		}
	}
	return l.w.Flush()
}

// whole prints all items at once.
func (l *lister) whole() error {
	if l.all == nil {
		l.all = []any{}
	}
	return errors.Join(l.o.printOne(l.w, map[string]any{"items": l.all}), l.w.Flush())
}

// maxCell is how many characters of a cell a terminal shows: one long key would move the
// columns of all rows off the screen.
const maxCell = 64

// cut shortens a text to maxCell characters. It leaves no mark without its letter.
func cut(s string) string {
	r := []rune(s)
	if len(r) <= maxCell {
		return s
	}
	end := maxCell - 1
	for end > 0 && unicode.IsMark(r[end]) {
		end--
	}
	return string(r[:end]) + "…"
}

// relative is an instant for people, to the second: "in 4m12s", "3h0m ago".
func (e *env) relative(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	now := e.now()
	return why.When(now, now.Add(t.Sub(now).Round(time.Second)))
}

func number(n *int64) string {
	if n == nil {
		return "-"
	}
	return fmt.Sprint(*n)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// The colours, for a terminal.
const (
	red   = "\x1b[31m"
	green = "\x1b[32m"
)

func (e *env) paint(colour, text string) string {
	if !e.colour {
		return text
	}
	return colour + text + "\x1b[0m"
}

// section prints aligned pairs of a name and a value.
func section(w io.Writer, pairs ...[2]string) {
	width := 0
	for _, p := range pairs {
		width = max(width, len(p[0]))
	}
	for _, p := range pairs {
		fmt.Fprintf(w, "%-*s  %s\n", width+1, p[0]+":", printable.Line(p[1]))
	}
}

// progress shows how far long work is: in one line of a terminal, and elsewhere with a line
// now and then, so that a log shows that it goes on.
type progress struct {
	w        io.Writer
	terminal bool
	what     string
	total    int
	shown    time.Time
}

func (e *env) progressOf(what string, total int) *progress {
	p := &progress{w: e.err, terminal: e.progress, what: what, total: total}
	if !p.terminal {
		p.shown = time.Now()
	}
	return p
}

// show shows how much is done, at most ten times a second on a terminal.
func (p *progress) show(done int) {
	every := 5 * time.Second
	if p.terminal {
		every = 100 * time.Millisecond
	}
	if time.Since(p.shown) < every {
		return
	}
	p.shown = time.Now()
	switch {
	case !p.terminal && p.total > 0:
		fmt.Fprintf(p.w, "%s %d/%d\n", p.what, done, p.total)
		return
	case !p.terminal:
		fmt.Fprintf(p.w, "%s %d\n", p.what, done)
		return
	case p.total <= 0:
		fmt.Fprintf(p.w, "\r%s %d", p.what, done)
		return
	}
	const width = 30
	full := min(width*done/p.total, width)
	fmt.Fprintf(p.w, "\r%s [%s%s] %d/%d", p.what, strings.Repeat("#", full), strings.Repeat(".", width-full), done, p.total)
}

// end removes the line.
func (p *progress) end() {
	if p.terminal && !p.shown.IsZero() {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}

// lookFirst is what confirm says of a command that has a dry run.
const lookFirst = ", or look first with --dry-run"

// confirm asks before something that cannot be undone. The hint says what else there is
// without a terminal.
func (e *env) confirm(yes bool, hint, format string, args ...any) error {
	if yes {
		return nil
	}
	question := printable.Line(fmt.Sprintf(format, args...))
	if !e.asks {
		return usage("%s Without a terminal there is no confirmation: add --yes%s", question, hint)
	}
	fmt.Fprintf(e.err, "%s [y/N] ", question)
	answer, err := bufio.NewReader(e.in).ReadString('\n')
	if a := strings.ToLower(strings.TrimSpace(answer)); err == nil && (a == "y" || a == "yes") {
		return nil
	}
	return &exitError{exitOther, fmt.Errorf("nothing was changed")}
}
