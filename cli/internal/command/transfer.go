package command

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reschedule-dev/reschedule/pkg/printable"
	"github.com/reschedule-dev/reschedule/sdk"
)

// The bounds of an import: lines in one call, and bytes of a line. An event has 256 KiB,
// twice that in base64.
const (
	importAtOnce = 500
	maxLine      = 2 << 20
)

// export is the command of that name.
func newExport(p *program) *cobra.Command {
	var prefix string
	c := p.command("export NAME", "Write keys as NDJSON, one a line", `
$ export git-repos > keys.ndjson`,
		cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
			return p.opened(cmd.Context(), args[0], func(src *source) error { return p.exportKeys(cmd.Context(), src, prefix) })
		})
	c.Long = `Write keys as NDJSON, one a line. The list is not a snapshot: suspend the source first if that
matters. Events have data_base64 where a line of JSON would change their data.`
	c.Flags().StringVar(&prefix, "prefix", "", "only keys that begin with it")
	c.ValidArgsFunction = p.completeSources
	return c
}

func (e *env) exportKeys(ctx context.Context, src *source, prefix string) error {
	total := 0
	if counts, err := src.Counts(ctx); err == nil && prefix == "" {
		total = counts.Pending + counts.InFlight
	}
	onScreen := &output{screen: e.screen}
	p, n, w := e.progressOf("exporting", total), 0, bufio.NewWriter(e.out)
	defer p.end()
	for k, err := range src.List(ctx, sdk.ListOptions{Prefix: prefix, PageSize: 1000}) {
		if err != nil {
			return errors.Join(fmt.Errorf("after %d keys: %w", n, err), w.Flush())
		}
		if k.Event != nil {
			k.Event.Base64 = k.Event.Base64 || !compact(k.Event.Data)
		}
		b, err := line(k)
		if err != nil {
			return err
		}
		if _, err := w.Write(onScreen.shown(b)); err != nil {
			return err
		}
		n++
		p.show(n)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	p.end()
	if e.progress {
		fmt.Fprintf(e.err, "%d keys\n", n)
	}
	return nil
}

// compact reports that a line of JSON has the data as it is: blanks between the parts of
// JSON would be lost, control characters escaped, and data is delivered byte for byte.
func compact(data []byte) bool {
	var b bytes.Buffer
	return json.Compact(&b, data) != nil || bytes.Equal(b.Bytes(), data) && !bytes.ContainsFunc(data, printable.IsTerminalControl)
}

// importer reads a file into a source.
type importer struct {
	*env
	src    *source
	policy sdk.Policy
	spread time.Duration
	now    time.Time
	dryRun bool

	done, created, kept int // lines, and keys by result
	failed              tally
}

// importKeys is the command import.
func newImport(p *program) *cobra.Command {
	var file, policy, spread string
	var resume, dryRun bool
	c := p.command("import NAME -f FILE", "Schedule the keys of an export", `
$ import git-repos -f keys.ndjson --spread 1h
$ import git-repos -f keys.ndjson --resume`,
		cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return usage("give -f FILE, or -f - for the standard input")
			}
			if file == "-" && resume {
				return usage("--resume needs a file: the standard input cannot be read again")
			}
			i := &importer{env: &p.env, policy: sdk.Policy(policy), now: p.now(), dryRun: dryRun}
			if spread != "" {
				var err error
				if i.spread, err = parseDuration("spread", spread); err != nil {
					return err
				}
			}
			return p.opened(cmd.Context(), args[0], func(src *source) error {
				i.src = src
				return i.run(cmd.Context(), file, resume)
			})
		})
	c.Long = `Schedule the keys of an export. A key that waits already stays as it is, unless --policy says
otherwise, so an import may be repeated. Attempt counters and revisions are lost, and so are the
id, source and time of events that came in as CloudEvents. An import that stops leaves FILE.resume.`
	f := c.Flags()
	f.StringVarP(&file, "filename", "f", "", "file to read, - for the standard input")
	f.StringVar(&policy, "policy", string(sdk.Keep), "when a key waits already: replace, earliest, latest, keep, fail")
	choices(c, "policy", policies...)
	f.StringVar(&spread, "spread", "", "time over which keys are spread that are due in the past, and else delivered at once")
	f.BoolVar(&resume, "resume", false, "continue where an import of FILE stopped")
	f.BoolVar(&dryRun, "dry-run", false, "read the file, and change nothing")
	c.ValidArgsFunction = p.completeSources
	return c
}

// run imports a file, and leaves a mark of how far it came when it stops.
func (i *importer) run(ctx context.Context, file string, resume bool) error {
	mark := file + ".resume"
	skip := 0
	if resume {
		b, err := os.ReadFile(mark)
		if err != nil {
			return usage("--resume: there is nothing to resume: %w", err)
		}
		if skip, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
			return usage("--resume: %s is not a number of lines", mark)
		}
	}
	if !resume && !i.dryRun && file != "-" {
		_ = os.Remove(mark) // of another import
	}
	from, total := i.in, 0
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return usage("%w", err)
		}
		defer f.Close()
		from = f
		if i.progress {
			if total, err = lines(f); err != nil {
				return err
			}
		}
	}
	err := i.read(ctx, from, skip, total)
	switch {
	case i.dryRun:
	case err != nil && file != "-" && i.done > 0:
		if e := os.WriteFile(mark, fmt.Appendf(nil, "%d\n", i.done), 0o600); e == nil {
			err = fmt.Errorf("%w (%d lines are imported; --resume goes on behind them)", err, i.done)
		}
	case err == nil && file != "-":
		_ = os.Remove(mark) // of an import that stopped before, if there is one
	}
	if ctx.Err() != nil {
		return &exitError{exitOther, fmt.Errorf("interrupted: %w", err)}
	}
	if err != nil {
		return err
	}
	verb := "imported"
	if i.dryRun {
		verb = "would be imported"
	}
	fmt.Fprintf(i.out, "%d keys %s, %d kept as they were\n", i.created, verb, i.kept)
	return i.failed.end(ctx)
}

// lines counts the lines of a file, and goes back to its start.
func lines(f *os.File) (n int, err error) {
	buf := make([]byte, 64<<10)
	for {
		c, err := f.Read(buf)
		n += bytes.Count(buf[:c], []byte{'\n'})
		if errors.Is(err, io.EOF) {
			_, err = f.Seek(0, io.SeekStart)
			return n, err
		}
		if err != nil {
			return n, err
		}
	}
}

// read imports the lines after the first skip lines.
func (i *importer) read(ctx context.Context, from io.Reader, skip, total int) error {
	p := i.progressOf("importing", total)
	defer p.end()
	text := bufio.NewScanner(from)
	text.Buffer(nil, maxLine)
	var items []sdk.Item
	number := 0
	for text.Scan() {
		if number++; number <= skip {
			i.done = number
			continue
		}
		if len(bytes.TrimSpace(text.Bytes())) > 0 {
			item, err := i.item(text.Bytes())
			if err != nil {
				return usage("line %d: %w", number, err)
			}
			items = append(items, item)
		}
		if len(items) == importAtOnce {
			if err := i.send(ctx, items); err != nil {
				return err
			}
			items, i.done = items[:0], number
			p.show(number)
		}
	}
	if err := text.Err(); err != nil {
		return fmt.Errorf("line %d: %w", number+1, err)
	}
	if err := i.send(ctx, items); err != nil {
		return err
	}
	i.done = number
	return nil
}

// set are the attributes that the adapter sets, and that schedule: a request cannot give
// them. Others, such as reschedulecause, are a part of the event.
var set = []string{
	"reschedulekey", "rescheduleafter", "rescheduleat", "reschedulepolicy", "reschedulepriority", "reschedulecron", "rescheduletimezone", "reschedulerevision",
	"rescheduledueat", "rescheduleattempt", "reschedulefinal",
}

// unreadable is the error of a line without the names of Go's types.
func unreadable(err error) error {
	var instant *time.ParseError
	var other *json.UnmarshalTypeError
	switch {
	case errors.As(err, &instant):
		return fmt.Errorf("%q is not an instant such as 2030-01-01T06:00:00Z", strings.Trim(instant.Value, `"`))
	case errors.As(err, &other) && other.Field != "":
		return fmt.Errorf("%s: a JSON %s does not belong there", strings.TrimPrefix(other.Field, "plainSchedule."), other.Value)
	case errors.As(err, &other):
		return fmt.Errorf("it is a JSON %s, not an object as export writes it", other.Value)
	}
	return err
}

// item is the request of a line.
func (i *importer) item(line []byte) (sdk.Item, error) {
	var k sdk.Schedule
	if err := json.Unmarshal(line, &k); err != nil {
		return sdk.Item{}, unreadable(err)
	}
	if k.Key == "" {
		return sdk.Item{}, errors.New("key: is missing")
	}
	if k.DueAt.IsZero() {
		return sdk.Item{}, errors.New("dueAt: is missing")
	}
	item := sdk.Item{Key: k.Key, Request: sdk.Request{
		DueAt: k.DueAt, Cron: k.Cron, TimeZone: k.TimeZone, Jitter: k.Jitter, Priority: k.Priority, Policy: i.policy, Event: k.Event,
		MaxInterval: k.MaxInterval, Slack: k.Slack, ExpiresAt: k.ExpiresAt, UID: k.UID, Reason: k.Reason,
	}}
	if v := item.Event; v != nil {
		v.ID, v.Source, v.Time = "", "", time.Time{} // a request cannot set them
		for name := range v.Extensions {
			if slices.Contains(set, name) {
				delete(v.Extensions, name)
			}
		}
	}
	if i.spread > 0 && item.DueAt.Before(i.now) {
		item.DueAt = i.now.Add(share(item.Key, i.spread))
	}
	return item, nil
}

// share is a part of d that depends on the key alone, so that a repeated import has the
// same one.
func share(key string, d time.Duration) time.Duration {
	sum := sha256.Sum256([]byte(key)) // FNV is uneven for keys that differ in their end only
	return time.Duration(float64(d) * float64(binary.BigEndian.Uint64(sum[:])>>11) / (1 << 53))
}

// send schedules the items. A key with a calendar is due at its next instant, and then sooner if
// the export has it sooner: a request has only one of both times.
func (i *importer) send(ctx context.Context, items []sdk.Item) error {
	if len(items) == 0 || i.dryRun {
		i.created += len(items)
		return ctx.Err()
	}
	var sooner []sdk.Item
	first := slices.Clone(items)
	for n := range first {
		if first[n].Cron != "" {
			first[n].DueAt = time.Time{}
		}
	}
	outcomes, err := i.src.ScheduleAll(ctx, first...)
	if err != nil {
		return err
	}
	for n, o := range outcomes {
		switch {
		case o.Err != nil:
			if err := i.refused(&o); err != nil {
				return err
			}
		case o.Schedule.Result == sdk.Kept:
			i.kept++
			i.failed.done++
		default:
			i.created++
			i.failed.done++
			if items[n].Cron != "" && items[n].DueAt.Before(o.Schedule.DueAt) && (i.policy != sdk.Latest || o.Schedule.Result == sdk.Created) {
				sooner = append(sooner, sdk.Item{Key: o.Key, Request: sdk.Request{DueAt: items[n].DueAt, Policy: sdk.Earliest, Priority: items[n].Priority}})
			}
		}
	}
	outcomes, err = i.src.ScheduleAll(ctx, sooner...)
	for _, o := range outcomes {
		if o.Err != nil && err == nil {
			err = i.refused(&o)
		}
	}
	return err
}

// refused counts a key that was refused. It returns an error with which the others would fail too.
func (i *importer) refused(o *sdk.Outcome) error {
	if errors.Is(o.Err, sdk.ErrFull) || errors.Is(o.Err, sdk.ErrStorageFull) {
		return o.Err
	}
	i.failed.add(o.Err)
	fmt.Fprintf(i.err, "%s: %s\n", printable.Line(o.Key), printable.Line(words(o.Err)))
	return nil
}
