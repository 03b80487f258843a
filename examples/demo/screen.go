package main

import (
	"fmt"
	"strings"
	"time"
)

// The colours start and end within a line, so that a log reads the same without them.
const (
	bold  = "1"
	dim   = "2"
	red   = "31"
	green = "32"
	cyan  = "36"
)

const clock = "15:04:05.000"

func (t *demo) paint(colour, text string) string {
	if !t.colour {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if line != "" {
			lines[i] = "\x1b[" + colour + "m" + line + "\x1b[0m"
		}
	}
	return strings.Join(lines, "\n")
}

func (t *demo) print(colour, format string, args ...any) {
	fmt.Fprint(t.out, t.paint(colour, fmt.Sprintf(format, args...)))
}

// step prints an action of the demo.
func (t *demo) step(colour, verb, format string, args ...any) {
	fmt.Fprintf(t.out, "  %s %s\n", t.paint(colour, fmt.Sprintf("%-7s", verb)), fmt.Sprintf(format, args...))
}

// show judges a wake-up and prints it.
func (t *demo) show(w wakeUp) {
	if strings.HasPrefix(w.key, "Site/") && w.status < 300 { // see examples/operator
		t.ledger.want("Certificate/"+strings.TrimPrefix(w.key, "Site/"), w.cameAt.Add(t.beats(2)), 0)
	}
	j := t.ledger.came(w)
	mark := t.paint(green, "✓")
	if !j.ok {
		mark = t.paint(red, "✗")
	}
	fmt.Fprintf(t.out, "  %s %-18s %-13s %-13s %11s  %s\n", mark, w.key,
		j.plannedAt.Local().Format(clock), w.cameAt.Local().Format(clock), fmt.Sprintf("%+.1f ms", float64(j.off)/float64(time.Millisecond)), t.paint(dim, j.note))
}

// end prints the verdict and what it means.
func (t *demo) end() bool {
	text, ok := t.ledger.verdict()
	mark, colour := "✓", green
	if !ok {
		mark, colour = "✗", red
	}
	t.print(colour, "\n%s %s\n", mark, text)
	if ok {
		t.print(dim, `
You saw the real adapter and an operator without a single timer. It was woken when it had asked
to be, retried when it failed, not woken for what was cancelled, and kill -9 lost nothing.
`)
	}
	t.print(dim, "Next: examples/operator is the code to copy; docs/http-api.md has the calls with curl.\n")
	return ok
}
