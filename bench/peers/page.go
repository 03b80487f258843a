package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/bench/peers/judge"
)

// describe prints the machine of a directory: a figure means nothing without it.
const describe = `printf '%s, %s cores, Linux %s, %s, commit %s' "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1)" \
	"$(nproc)" "$(uname -r)" "$(findmnt -n -o FSTYPE -T "$0")" "$(git describe --always --dirty)"`

// conditions describes the machine, with the time of an fsync of 4 KiB in a directory.
func conditions(dir string) string {
	found, err := exec.Command("sh", "-c", describe, dir).Output()
	if err != nil {
		return err.Error()
	}
	f, err := os.CreateTemp(dir, "fsync")
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	var times []time.Duration
	for range 200 {
		f.Write(make([]byte, 4096))
		began := time.Now()
		f.Sync()
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return fmt.Sprintf("%s, fsync p50 %s, %s", found, short(judge.Percentile(times, 0.5)), runtime.Version())
}

// load is the load average of the last minute, which this program is a part of.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	one, _, _ := strings.Cut(string(text), " ")
	return one
}

// short prints a duration with two digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for d.Abs() >= 100*unit {
		unit *= 10
	}
	return d.Round(unit).String()
}

// thousands prints a number with separators and at most three digits that count.
func thousands(v float64) string {
	unit := 1.0
	for v >= 1000*unit {
		unit *= 10
	}
	text := fmt.Sprint(int(v/unit+0.5) * int(unit))
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// markdown makes the generated part of the page.
func markdown(results []*result, size sizes, conditions string) string {
	speed := [][]string{{"", "puts/s", "p50 / p99 of a put", fmt.Sprintf("%s due at once, /s", thousands(float64(size.burst))), "late, p50 / p99"}}
	kill := [][]string{{fmt.Sprintf("%d × kill -9", size.kills), "keys", "lost", "early", "twice at once", "after a cancel", "repeats", "takes calls after", "late, p99 / most"}}
	about := [][]string{{"", "version", "settings"}}
	var notes []string
	for _, r := range results {
		about = append(about, []string{r.name, r.version, r.settings})
		if r.absent != "" {
			speed = append(speed, []string{r.name, r.absent, "", "", ""})
			continue
		}
		speed = append(speed, []string{
			r.name, thousands(r.puts()), short(r.took50()) + " / " + short(r.took99()), thousands(r.delivered), short(r.l50()) + " / " + short(r.l99()),
		})
		early := fmt.Sprint(r.kills.Early)
		if r.kills.Early > 0 {
			early += ", by up to " + short(r.kills.MostEarly)
		}
		row := []string{
			r.name, thousands(float64(r.kills.Scheduled)), fmt.Sprint(r.kills.Lost), early, fmt.Sprint(r.kills.AtOnce), fmt.Sprint(r.kills.AfterCancel),
			fmt.Sprint(r.kills.Repeats), short(r.kills.start()), short(r.kills.late(0.99)) + " / " + short(r.kills.late(1)),
		}
		for i, heading := range kill[0] {
			if note := r.notes[heading]; note != "" {
				notes = append(notes, wrap(fmt.Sprintf("%d. %s, *%s*: %s", len(notes)+1, r.name, heading, note), "   "))
				row[i] += fmt.Sprintf("<sup>%d</sup>", len(notes))
			}
		}
		kill = append(kill, row)
	}
	parts := []string{table(speed), table(kill), strings.Join(notes, "\n"), better(results), table(about), wrap(conditions+".", "")}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), "\n\n")
}

// wrap breaks a paragraph into lines of at most 120 characters. Each but the first has the indent.
func wrap(text, indent string) string {
	var b strings.Builder
	for length, words := 0, strings.Fields(text); len(words) > 0; words = words[1:] {
		switch {
		case length == 0:
		case length+1+len(words[0]) > 120:
			b.WriteString("\n" + indent)
			length = len(indent)
		default:
			b.WriteByte(' ')
			length++
		}
		b.WriteString(words[0])
		length += len(words[0])
	}
	return b.String()
}

func table(rows [][]string) string {
	var b strings.Builder
	for i, row := range rows {
		fmt.Fprintf(&b, "| %s |\n", strings.Join(row, " | "))
		if i == 0 {
			b.WriteString(strings.Repeat("|---", len(row)) + "|\n")
		}
	}
	return strings.TrimSpace(b.String())
}

// better says in which figures a peer is better than the first of the results, which is the adapter. A tenth is noise.
func better(results []*result) string {
	us := results[0]
	if us.peer != thisAdapter || us.absent != "" {
		return "The adapter was not measured."
	}
	var lines []string
	for _, r := range results[1:] {
		if r.absent != "" {
			continue
		}
		var of []string
		for _, c := range []struct {
			what         string
			theirs, ours float64 // more is better
		}{
			{"puts", r.puts(), us.puts()},
			{"p50 of a put", 1 / r.took50().Seconds(), 1 / us.took50().Seconds()},
			{"p99 of a put", 1 / r.took99().Seconds(), 1 / us.took99().Seconds()},
			{"deliveries", r.delivered, us.delivered},
			{"lateness, p50", 1 / r.l50().Seconds(), 1 / us.l50().Seconds()},
			{"lateness, p99", 1 / r.l99().Seconds(), 1 / us.l99().Seconds()},
			{"start after a kill", 1 / r.kills.start().Seconds(), 1 / us.kills.start().Seconds()},
			{"longest delay with kills", 1 / r.kills.late(1).Seconds(), 1 / us.kills.late(1).Seconds()},
		} {
			if c.theirs > 1.1*c.ours {
				of = append(of, fmt.Sprintf("%s (%.1f times)", c.what, c.theirs/c.ours))
			}
		}
		for _, c := range []struct {
			what         string
			theirs, ours int
		}{
			{"lost", r.kills.Lost, us.kills.Lost}, {"early", r.kills.Early, us.kills.Early}, {"twice at once", r.kills.AtOnce, us.kills.AtOnce},
			{"after a cancel", r.kills.AfterCancel, us.kills.AfterCancel}, {"repeats", r.kills.Repeats, us.kills.Repeats},
		} {
			if c.theirs < c.ours {
				of = append(of, fmt.Sprintf("%s (%d, here %d)", c.what, c.theirs, c.ours))
			}
		}
		if len(of) > 0 {
			lines = append(lines, wrap("- **"+r.name+"** is better in: "+strings.Join(of, ", ")+".", "  "))
		}
	}
	if len(lines) == 0 {
		return "No peer is better in any of these figures."
	}
	return strings.Join(lines, "\n")
}

// replace replaces the generated part of a page.
func replace(page, part string) error {
	const begin, end = "<!-- peers, generated -->\n", "<!-- peers:end -->"
	old, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	head, rest, found := strings.Cut(string(old), begin)
	_, tail, closed := strings.Cut(rest, end)
	if !found || !closed {
		return errors.New(page + " lacks the markers of the peers")
	}
	return os.WriteFile(page, []byte(head+begin+"\n"+part+"\n\n"+end+tail), 0o644)
}
