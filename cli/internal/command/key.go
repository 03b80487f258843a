package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/pkg/duration"
	"github.com/reschedule-dev/reschedule/pkg/printable"
	"github.com/reschedule-dev/reschedule/sdk"
)

// key is the group of commands about keys.
func newKey(p *program) *cobra.Command {
	return p.group("key", "Keys of a source: list, describe, run, delete, set, watch", newKeyList(p), newKeyDescribe(p), newKeyRun(p), newKeyDelete(p), newKeySet(p), newKeyWatch(p))
}

// opened runs a command with an open source.
func (p *program) opened(ctx context.Context, name string, run func(*source) error) error {
	s, err := p.session()
	if err != nil {
		return err
	}
	defer s.close()
	src, err := s.open(ctx, name)
	if err != nil {
		return err
	}
	return run(src)
}

// parseDuration reads a duration as the schedule API does, 5m30s or PT5M30S, and whole days, 7d.
func parseDuration(flag, s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		if n, err := strconv.ParseUint(days, 10, 16); err == nil {
			s = fmt.Sprint("P", n, "D")
		}
	}
	d, err := duration.Parse(s)
	if err != nil {
		return 0, usage("--%s: %w", flag, err)
	}
	return d, nil
}

// keyColumns are the columns of a list of keys.
var keyColumns = columns("Key", "State", "Due", "Priority?", "Calendar?", "Attempts", "Next attempt", "Last failure", "Reason*", "Scheduled*", "Expires*", "UID*", "Revision*")

// showKey prints a key in a list.
func (e *env) showKey(l *lister, k *sdk.Schedule) error {
	state, failure := string(k.State), "-"
	if !k.NextAttemptAt.IsZero() {
		state = string(sdk.Retrying)
	}
	if f := k.LastFailure; f != nil {
		failure = f.Error
	}
	return l.add(k, k.Key, k.Key, state, e.relative(k.DueAt), dash(why.Priority(k)), dash(why.Calendar(k)), k.Tries, e.relative(k.NextAttemptAt), failure,
		dash(k.Reason), e.relative(k.ScheduledAt), e.relative(k.ExpiresAt), dash(k.UID), k.Revision)
}

func newKeyList(p *program) *cobra.Command {
	var o *output
	var state, prefix, order, late string
	var limit int
	var all bool
	c := p.command("list NAME", "List keys, by state, prefix and due time", `
$ key list git-repos --overdue
$ key list git-repos --state retrying
$ key list git-repos --prefix GitRepo/team-a/ --all -o ndjson`,
		cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
			states := map[string]sdk.State{"": "", "waiting": sdk.Waiting, "due": sdk.Due, "retrying": sdk.Retrying, "inflight": sdk.InFlight}
			o2 := sdk.ListOptions{Prefix: prefix, Order: sdk.Order(order), State: states[strings.ToLower(state)]}
			if state != "" && o2.State == "" {
				return usage("--state %q is not one of waiting, due, retrying, inflight", state)
			}
			var overdue time.Duration
			if late != "" {
				if state != "" {
					return usage("--overdue does not go with --state: it lists due keys")
				}
				var err error
				if overdue, err = parseDuration("overdue", late); err != nil {
					return err
				}
				o2.State, o2.Order = sdk.Due, sdk.ByDue
			}
			if limit < 1 {
				return usage("--limit is %d: give at least 1, or --all", limit)
			}
			o2.PageSize = 1000
			if !all {
				o2.PageSize = min(limit, 1000)
			}
			return p.opened(cmd.Context(), args[0], func(src *source) error {
				l := o.list(p.out, "", keyColumns)
				more := false
				for k, err := range src.List(cmd.Context(), o2) {
					if err != nil {
						return errors.Join(err, l.end(io.Discard, ""))
					}
					if late != "" && k.DueAt.After(p.now().Add(-overdue)) {
						break // they come by due time
					}
					if more = !all && l.count == limit; more {
						break
					}
					if err := p.showKey(l, k); err != nil {
						return err
					}
				}
				if err := l.end(p.err, "No keys found."); err != nil {
					return err
				}
				if more {
					fmt.Fprintf(p.err, "There are more than %d: --limit N or --all shows them.\n", limit)
				}
				return nil
			})
		})
	f := c.Flags()
	f.StringVar(&state, "state", "", "only keys in this state: waiting, due, retrying, inflight")
	f.StringVar(&late, "overdue", "", "only keys that have been due for this long, oldest first")
	f.Lookup("overdue").NoOptDefVal = "1m"
	f.StringVar(&prefix, "prefix", "", "only keys that begin with it")
	f.StringVar(&order, "order", "", "key or due")
	complete(c, "state", "waiting", "due", "retrying", "inflight")
	choices(c, "order", "key", "due")
	f.IntVar(&limit, "limit", 100, "keys at most")
	f.BoolVar(&all, "all", false, "all keys")
	c.ValidArgsFunction = p.completeSources
	o = outputFlags(c, "wide", "json", "yaml", "name", "ndjson")
	return c
}

func newKeyDescribe(p *program) *cobra.Command {
	var o *output
	var chosen *choice
	var verbose bool
	c := p.command("describe NAME {KEY... | --prefix P | --all}", "Show keys in full, and their last outcomes", `
$ key describe git-repos GitRepo/team-a/site`,
		cobra.MinimumNArgs(1), func(cmd *cobra.Command, args []string) error {
			if err := chosen.from(args[1:]); err != nil {
				return err
			}
			ctx := cmd.Context()
			return p.opened(ctx, args[0], func(src *source) error {
				all := src.List(ctx, sdk.ListOptions{Prefix: chosen.prefix, PageSize: 1000})
				one := func(key string) (*sdk.Schedule, error) {
					k, err := src.Get(ctx, key)
					if errors.Is(err, sdk.ErrNotFound) {
						err = fmt.Errorf("%w; %s why %s %q may say what became of it", err, p.name(), args[0], key)
					}
					return k, err
				}
				return eachDescribed(ctx, &p.env, o, chosen, described[*sdk.Schedule]{all, one, func(k *sdk.Schedule) error {
					p.describedKey(k, verbose)
					return p.outcomes(ctx, src, k.Key)
				}})
			})
		})
	chosen = selectFlags(c)
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the data of the event too")
	c.ValidArgsFunction = p.completeKeys
	o = outputFlags(c, "json", "yaml")
	return c
}

// outcomes prints the last outcomes of a key.
func (e *env) outcomes(ctx context.Context, src *source, key string) error {
	h, err := src.History(ctx, key)
	if err != nil || len(h.Items) == 0 {
		return err
	}
	fmt.Fprintln(e.out, "\nLast outcomes:")
	l := (&output{}).list(e.out, "", columns("At", "Result", "Status", "Failed before", "Late by", "Took"))
	for _, a := range h.Items {
		if err := l.add(nil, "", e.relative(a.At), a.Result, a.Status, a.Attempt, a.Lateness.String(), a.Duration.String()); err != nil {
			return err
		}
	}
	return l.end(e.err, "")
}

func (e *env) describedKey(k *sdk.Schedule, verbose bool) {
	at := func(t time.Time) string {
		if t.IsZero() {
			return ""
		}
		return t.UTC().Format(time.RFC3339Nano) + " (" + e.relative(t) + ")"
	}
	pairs := [][2]string{
		{"Key", k.Key},
		{"State", string(k.State)},
		{"Due", at(k.DueAt)},
		{"Calendar", why.Calendar(k)},
		{"Priority", why.Priority(k)},
		{"Waits for company until", at(k.CompanyUntil)},
		{"Next attempt", at(k.NextAttemptAt)},
		{"Scheduled", at(k.ScheduledAt)},
		{"Revision", fmt.Sprint(k.Revision)},
		{"Attempts", fmt.Sprintf("%d of this occurrence, %d failed in a row", k.Tries, k.Attempt)},
		{"In flight", fmt.Sprint(k.InFlight)},
		{"Expires", at(k.ExpiresAt)},
		{"Reason", k.Reason},
		{"UID", k.UID},
	}
	if k.MaxInterval != nil {
		pairs = append(pairs, [2]string{"Max interval", k.MaxInterval.String()})
	}
	if k.Slack != nil {
		pairs = append(pairs, [2]string{"Slack", k.Slack.String()})
	}
	if f := k.LastFailure; f != nil {
		pairs = append(pairs, [][2]string{{"Last failure", at(f.At)}, {"Error", f.Error}, {"Sink's answer", f.Detail}}...)
	}
	if k.Event != nil {
		pairs = append(pairs, eventPairs(k.Event, verbose)...)
	}
	section(e.out, filled(pairs)...)
}

// eventPairs show an event; its data only when that is wanted.
func eventPairs(v *sdk.Event, verbose bool) [][2]string {
	pairs := [][2]string{{"Event type", v.Type}, {"Event subject", v.Subject}, {"Event source", v.Source}, {"Event id", v.ID}}
	for _, name := range slices.Sorted(maps.Keys(v.Extensions)) {
		pairs = append(pairs, [2]string{"Event " + name, fmt.Sprint(v.Extensions[name])})
	}
	if len(v.Data) > 0 {
		text := fmt.Sprintf("%d bytes (-v shows them)", len(v.Data))
		if verbose {
			text = string(v.Data)
		}
		pairs = append(pairs, [2]string{"Event data", text})
	}
	return pairs
}

func filled(pairs [][2]string) [][2]string {
	var some [][2]string
	for _, p := range pairs {
		if p[1] != "" {
			some = append(some, p)
		}
	}
	return some
}

func newKeySet(p *program) *cobra.Command {
	var o *output
	var in, at, cron, zone, priority, policy, data, kind, uid, reason, expires string
	var revision uint64
	c := p.command("set NAME KEY", "Schedule a key", `
$ key set git-repos GitRepo/team-a/site --in 5m
$ key set git-repos GitRepo/team-a/site --at 2030-01-01T06:00:00Z --data @event.json --if-match 184467
$ key set git-repos report --cron "0 3 * * *" --time-zone Europe/Berlin --priority low
# Nothing of what the key has but its event
$ key set git-repos GitRepo/team-a/site --in 5m --policy replace`,
		cobra.ExactArgs(2), func(cmd *cobra.Command, args []string) error {
			r := sdk.Request{Cron: cron, TimeZone: zone, Policy: sdk.Policy(policy), UID: uid, Reason: reason}
			changed := cmd.Flags().Changed
			if changed("in") && changed("at") || !changed("in") && !changed("at") && !changed("cron") {
				return usage("give --in, --at or --cron, and one of them")
			}
			if changed("priority") {
				if err := r.Priority.UnmarshalText([]byte(priority)); err != nil {
					return err
				}
			}
			if changed("in") {
				d, err := parseDuration("in", in)
				if err != nil {
					return err
				}
				r.Delay = &d
			}
			for flag, to := range map[string]*time.Time{"at": &r.DueAt, "expires-at": &r.ExpiresAt} {
				if text, _ := cmd.Flags().GetString(flag); changed(flag) {
					t, err := time.Parse(time.RFC3339Nano, strings.ToUpper(text)) // t and z are RFC 3339 too
					if err != nil {
						return usage("--%s: %q is not an instant such as 2030-01-01T06:00:00Z", flag, text)
					}
					*to = t
				}
			}
			for flag, to := range map[string]**time.Duration{"max-interval": &r.MaxInterval, "slack": &r.Slack} {
				if text, _ := cmd.Flags().GetString(flag); changed(flag) {
					d, err := parseDuration(flag, text)
					if err != nil {
						return err
					}
					*to = &d
				}
			}
			event, err := p.event(data, kind)
			if err != nil {
				return err
			}
			if r.Event = event; event == nil && changed("data") {
				r.Event = &sdk.Event{}
			}
			var conditions []sdk.Condition
			if changed("if-match") {
				conditions = append(conditions, sdk.IfRevision(revision))
			}
			return p.opened(cmd.Context(), args[0], func(src *source) error {
				schedule := func() (*sdk.Schedule, error) { return src.Schedule(cmd.Context(), args[1], r, conditions...) }
				if !changed("policy") {
					schedule = func() (*sdk.Schedule, error) { return p.keep(cmd.Context(), src, args[1], r, changed, conditions) }
				}
				k, err := schedule()
				if err != nil {
					return err
				}
				if !k.ExpiresAt.IsZero() && !k.ExpiresAt.After(k.DueAt) {
					fmt.Fprintf(p.err, "It expires %s, before it is due: --expires-at moves that.\n", p.relative(k.ExpiresAt))
				}
				if o.format != "" {
					return o.printOne(p.out, k)
				}
				fmt.Fprintf(p.out, "Key %q %s: due %s, revision %d.\n", k.Key, k.Result, p.relative(k.DueAt), k.Revision)
				return nil
			})
		})
	f := c.Flags()
	f.StringVar(&in, "in", "", "due after this duration, such as 5m30s or PT5M30S; 0s is now")
	f.StringVar(&at, "at", "", "due at this instant, RFC 3339")
	f.StringVar(&cron, "cron", "", "due at each instant of this calendar: five fields, or a descriptor such as @hourly")
	f.StringVar(&zone, "time-zone", "", "time zone of the calendar, such as Europe/Berlin; UTC is the default")
	f.StringVar(&priority, "priority", "", "among due keys of the source: high, normal or low; a key that waits is not lowered")
	f.StringVar(&policy, "policy", "", "when the key waits already: replace, earliest, latest, keep, fail; replace drops all that it has but its event and its priority")
	f.StringVar(&data, "data", "", "data of the event: text, @FILE, or @- for the standard input; '' removes the event that the key has")
	f.StringVar(&kind, "type", "", "type of the event")
	f.StringVar(&uid, "uid", "", "uid of the object that the key stands for")
	f.StringVar(&reason, "reason", "", "short text for people")
	f.StringVar(&expires, "expires-at", "", "not delivered from this instant on, RFC 3339")
	f.String("max-interval", "", "due again after this once a run succeeded and asked for nothing; 0s is off")
	f.String("slack", "", "once it is due, it may wait this long to be delivered together with others; 0s is not at all")
	f.Uint64Var(&revision, "if-match", 0, "only if the key has this revision")
	c.Long = `Schedule a key. What no flag names stays as the key has it. So --in and --at move the next occurrence
of a calendar; --policy replace ends the calendar.`
	choices(c, "priority", "high", "normal", "low")
	choices(c, "policy", policies...)
	c.ValidArgsFunction = p.completeKeys
	o = outputFlags(c, "json", "yaml")
	return c
}

// keep schedules a key at the revision that it read, with the fields that the key has and
// that no flag names: replacing an occurrence would drop them.
func (e *env) keep(ctx context.Context, src *source, key string, r sdk.Request, changed func(string) bool, conditions []sdk.Condition) (*sdk.Schedule, error) {
	for tries := 1; ; tries++ {
		k, err := src.Get(ctx, key)
		at := sdk.IfAbsent()
		switch {
		case errors.Is(err, sdk.ErrNotFound):
			k = &sdk.Schedule{}
		case errors.Is(err, sdk.ErrForbidden):
			return nil, fmt.Errorf("%w; --policy replace does not read the key, and drops all that it has but its event and its priority", err)
		case err != nil:
			return nil, err
		default:
			at = sdk.IfRevision(k.Revision)
		}
		kept := r
		if !changed("uid") {
			kept.UID = k.UID
		}
		if !changed("reason") {
			kept.Reason = k.Reason
		}
		if !changed("expires-at") {
			kept.ExpiresAt = k.ExpiresAt
		}
		if !changed("max-interval") {
			kept.MaxInterval = k.MaxInterval
		}
		if !changed("slack") {
			kept.Slack = k.Slack
		}
		if !changed("priority") {
			kept.Priority = k.Priority
		}
		switch {
		case k.Cron == "":
		case r.Cron != "":
			kept.Jitter = k.Jitter
			if !changed("time-zone") {
				kept.TimeZone = k.TimeZone
			}
		default: // only replace ends the calendar
			kept.Policy = sdk.Earliest
			due := r.DueAt
			if r.Delay != nil {
				due = e.now().Add(*r.Delay)
			}
			if k.State != sdk.InFlight && due.After(k.DueAt) {
				kept.Policy = sdk.Latest
			}
		}
		if len(conditions) > 0 {
			return src.Schedule(ctx, key, kept, conditions...)
		}
		s, err := src.Schedule(ctx, key, kept, at)
		if tries == 3 || !errors.Is(err, sdk.ErrConflict) {
			return s, err
		}
	}
}

// maxData bounds what is read of a file: the adapter takes 256 KiB.
const maxData = 1 << 20

// event makes the event of a request, nil if no flag asks for one.
func (e *env) event(data, kind string) (*sdk.Event, error) {
	if data == "" && kind == "" {
		return nil, nil
	}
	v := &sdk.Event{Type: kind, Data: []byte(data)}
	if name, ok := strings.CutPrefix(data, "@"); ok {
		from := e.in
		if name != "-" {
			file, err := os.Open(name)
			if err != nil {
				return nil, usage("--data: %w", err)
			}
			defer file.Close()
			from = file
		}
		var err error
		if v.Data, err = io.ReadAll(io.LimitReader(from, maxData+1)); err != nil {
			return nil, usage("--data: %w", err)
		}
		if len(v.Data) > maxData {
			return nil, usage("--data: %s has more than %d bytes", name, maxData)
		}
	}
	if len(v.Data) > 0 && !json.Valid(v.Data) {
		v.DataContentType = "text/plain"
	}
	return v, nil
}

func newKeyWatch(p *program) *cobra.Command {
	var o *output
	var prefix string
	c := p.command("watch NAME [KEY]", "Follow what happens to keys, until interrupted", `
$ key watch git-repos
$ key watch git-repos --prefix GitRepo/team-a/`,
		cobra.RangeArgs(1, 2), func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 && prefix != "" {
				return usage("give KEY or --prefix, not both")
			}
			return p.opened(cmd.Context(), args[0], func(src *source) error {
				for v, err := range src.Follow(cmd.Context(), "") {
					if err != nil {
						return err
					}
					if len(args) == 2 && v.Key != args[1] || !strings.HasPrefix(v.Key, prefix) {
						continue
					}
					if v.Missed {
						fmt.Fprintln(p.err, "Some events are missing here: the connection was lost for too long.")
					}
					if o.format == "ndjson" {
						b, err := line(v)
						if err != nil {
							return err
						}
						if _, err := p.out.Write(o.shown(b)); err != nil {
							return err
						}
						continue
					}
					if _, err := fmt.Fprintln(p.out, p.happened(v)); err != nil {
						return err
					}
				}
				return nil
			})
		})
	c.Flags().StringVar(&prefix, "prefix", "", "only keys that begin with it")
	c.ValidArgsFunction = p.completeKeys
	o = outputFlags(c, "ndjson")
	return c
}

// happened is a line about a live event.
func (e *env) happened(v *sdk.Live) string {
	text := fmt.Sprintf("%s %-9s %s", v.At.UTC().Format("15:04:05.000"), v.Kind, v.Key)
	switch v.Kind {
	case sdk.KeyScheduled:
		text += ": due " + e.relative(v.DueAt)
	case sdk.KeyStarted:
		if v.Attempt > 0 {
			text += ": after " + why.Plural(v.Attempt, "failure", "failures") + " in a row"
		}
	case sdk.KeyOutcome:
		text += ": " + v.Result
		if v.Status != 0 {
			text += fmt.Sprintf(" (%d)", v.Status)
		}
	}
	return printable.Line(text)
}
