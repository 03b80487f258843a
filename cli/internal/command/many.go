package command

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/pkg/printable"
	"github.com/reschedule-dev/reschedule/sdk"
)

// choice is which keys a command is about: named keys, or all with a prefix.
type choice struct {
	keys        []string
	prefix      string
	all         bool
	dryRun, yes bool
	look        func(key string) error // before a dry run says what would be done
}

// selectFlags adds the flags of a command that looks at many keys.
func selectFlags(c *cobra.Command) *choice {
	k := &choice{}
	c.Flags().StringVar(&k.prefix, "prefix", "", "all keys that begin with it, in place of KEY")
	c.Flags().BoolVar(&k.all, "all", false, "all keys, in place of KEY")
	return k
}

// chooseFlags adds the flags of a command that changes many keys.
func chooseFlags(c *cobra.Command) *choice {
	k, f := selectFlags(c), c.Flags()
	f.BoolVar(&k.dryRun, "dry-run", false, "print what would be done, and change nothing")
	f.BoolVarP(&k.yes, "yes", "y", false, "do not ask")
	return k
}

// from takes the arguments after NAME.
func (k *choice) from(keys []string) error {
	ways := 0
	for _, given := range []bool{len(keys) > 0, k.prefix != "", k.all} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return usage("give KEY, --prefix or --all, and one of them")
	}
	if slices.Contains(keys, "") {
		return usage("a KEY is empty")
	}
	k.keys = keys
	return nil
}

func (k *choice) many() bool { return len(k.keys) == 0 }

// looker is how a dry run looks at a key that was named. Others were listed just now.
func looker(k *choice, look func(key string) error) func(key string) error {
	if k.many() {
		return func(string) error { return nil }
	}
	return look
}

// of says which keys are meant.
func (k *choice) of() string {
	if k.all {
		return "all keys"
	}
	return fmt.Sprintf("the keys that begin with %q", k.prefix)
}

// tally counts what became of many keys.
type tally struct {
	done, failed int
	first        error
	cut          string // the key whose call was interrupted
}

func (t *tally) add(err error) {
	if err == nil {
		t.done++
		return
	}
	if t.failed++; t.first == nil {
		t.first = err
	}
}

// end is the error of a command about many keys.
func (t *tally) end(ctx context.Context) error {
	switch {
	case ctx.Err() != nil && t.cut != "":
		return &exitError{exitOther, fmt.Errorf("interrupted: %d done, %d failed, of %q it is not known, the rest is unchanged", t.done, t.failed, t.cut)}
	case ctx.Err() != nil:
		return &exitError{exitOther, fmt.Errorf("interrupted: %d done, %d failed, the rest is unchanged", t.done, t.failed)}
	case t.failed == 0:
		return nil
	case t.done == 0 && t.failed == 1:
		return t.first
	}
	return &exitError{exitSome, fmt.Errorf("%d done, %d failed, the first one: %w", t.done, t.failed, t.first)}
}

// each calls act for each key, or prints it in a dry run.
func (e *env) each(ctx context.Context, keys []string, k *choice, what, done string, act func(key string) error) error {
	p, t := e.progressOf(what, len(keys)), &tally{}
	defer p.end()
	for i, key := range keys {
		if ctx.Err() != nil {
			break
		}
		if k.dryRun {
			act = k.look
		}
		err := act(key)
		if ctx.Err() != nil && err != nil {
			t.cut = key
			break
		}
		t.add(err)
		switch {
		case err != nil && len(keys) > 1:
			p.end()
			fmt.Fprintf(e.err, "%s: %s\n", printable.Line(key), printable.Line(words(err)))
		case err == nil && k.dryRun:
			fmt.Fprintf(e.out, "%s (dry run)\n", printable.Line(key))
		case err == nil && !k.many():
			fmt.Fprintf(e.out, "%s %s\n", printable.Line(key), done)
		}
		p.show(i + 1)
	}
	if k.many() && !k.dryRun {
		p.end()
		fmt.Fprintf(e.out, "%d %s\n", t.done, done)
	}
	return t.end(ctx)
}

// described is how a command reads keys, or dead letters, and prints one in full as text.
type described[T any] struct {
	all  iter.Seq2[T, error]
	one  func(key string) (T, error)
	text func(T) error
}

// eachDescribed prints the chosen keys in full: an object for one key, a list for more.
func eachDescribed[T any](ctx context.Context, e *env, o *output, k *choice, d described[T]) error {
	if len(k.keys) == 1 {
		v, err := d.one(k.keys[0])
		switch {
		case err != nil:
			return err
		case o.format != "":
			return o.printOne(e.out, v)
		}
		return d.text(v)
	}
	all := d.all
	if !k.many() {
		all = func(yield func(T, error) bool) {
			for _, key := range k.keys {
				if !yield(d.one(key)) {
					return
				}
			}
		}
	}
	l, t := o.list(e.out, "", nil), &tally{}
	for v, err := range all {
		switch {
		case err != nil && k.many():
			return err
		case err != nil:
			fmt.Fprintln(e.err, printable.Line(words(err)))
		case o.format != "":
			err = l.add(v, "")
		default:
			if t.done > 0 {
				fmt.Fprintln(e.out)
			}
			err = d.text(v)
		}
		t.add(err)
		if ctx.Err() != nil {
			break
		}
	}
	if o.format != "" {
		if err := l.end(e.err, ""); err != nil {
			return err
		}
	} else if t.done+t.failed == 0 {
		fmt.Fprintln(e.err, "No keys found.")
	}
	return t.end(ctx)
}

// collected reads the names of a list. They are counted before anything is changed.
func collected[T any](list iter.Seq2[*T, error], name func(*T) string) ([]string, error) {
	var keys []string
	for v, err := range list {
		if err != nil {
			return nil, err
		}
		keys = append(keys, name(v))
	}
	return keys, nil
}

func newKeyRun(p *program) *cobra.Command {
	var k *choice
	c := p.command("run NAME {KEY... | --prefix P | --all}", "Make keys due now; their event, uid and failures in a row stay", `
$ key run git-repos GitRepo/team-a/site
$ key run git-repos --prefix GitRepo/team-a/ --dry-run`,
		cobra.MinimumNArgs(1), func(cmd *cobra.Command, args []string) error {
			if err := k.from(args[1:]); err != nil {
				return err
			}
			ctx := cmd.Context()
			return p.opened(ctx, args[0], func(src *source) error {
				keys := k.keys
				k.look = looker(k, func(key string) error { _, err := src.Get(ctx, key); return err })
				if k.many() {
					var err error
					if keys, err = collected(src.List(ctx, sdk.ListOptions{Prefix: k.prefix, PageSize: 1000}), func(s *sdk.Schedule) string { return s.Key }); err != nil {
						return err
					}
					if !k.dryRun {
						if err := p.confirm(k.yes, lookFirst, "Run %s of %s now: %s?", why.Plural(len(keys), "key", "keys"), src, k.of()); err != nil {
							return err
						}
					}
				}
				return p.each(ctx, keys, k, "running", "is due now", func(key string) error { return p.runKey(ctx, src, key) })
			})
		})
	k = chooseFlags(c)
	c.ValidArgsFunction = p.completeKeys
	return c
}

// runKey runs a key at the revision that it has.
func (e *env) runKey(ctx context.Context, src *source, key string) error {
	s, err := src.Get(ctx, key)
	if err != nil {
		return err
	}
	if _, err = src.Run(ctx, key, sdk.IfRevision(s.Revision)); err == nil && s.State == sdk.InFlight {
		fmt.Fprintf(e.err, "%s is being delivered: it runs again after this run.\n", printable.Line(key))
	}
	return err
}

func newKeyDelete(p *program) *cobra.Command {
	var k *choice
	c := p.command("delete NAME {KEY... | --prefix P | --all}", "Cancel keys", `
$ key delete git-repos GitRepo/team-a/site
$ key delete git-repos --prefix GitRepo/team-a/ --yes`,
		cobra.MinimumNArgs(1), func(cmd *cobra.Command, args []string) error {
			if err := k.from(args[1:]); err != nil {
				return err
			}
			ctx := cmd.Context()
			return p.opened(ctx, args[0], func(src *source) error {
				if k.many() {
					return p.deleteMany(ctx, src, k)
				}
				k.look = looker(k, func(key string) error { _, err := src.Get(ctx, key); return err })
				return p.each(ctx, k.keys, k, "cancelling", "cancelled", func(key string) error {
					s, err := src.Get(ctx, key)
					if err != nil {
						return err
					}
					return src.Cancel(ctx, key, sdk.IfRevision(s.Revision))
				})
			})
		})
	k = chooseFlags(c)
	c.ValidArgsFunction = p.completeKeys
	return c
}

// deleteMany cancels by one call, once the keys are counted.
func (e *env) deleteMany(ctx context.Context, src *source, k *choice) error {
	n := 0
	if k.all && !k.dryRun {
		counts, err := src.Counts(ctx)
		if err != nil {
			return err
		}
		n = counts.Pending
	} else {
		for s, err := range src.List(ctx, sdk.ListOptions{Prefix: k.prefix, PageSize: 1000}) {
			if err != nil {
				return err
			}
			if n++; k.dryRun {
				fmt.Fprintf(e.out, "%s (dry run)\n", printable.Line(s.Key))
			}
		}
	}
	if k.dryRun {
		return nil
	}
	if err := e.confirm(k.yes, lookFirst, "Cancel %s of %s for good: %s?", why.Plural(n, "key", "keys"), src, k.of()); err != nil {
		return err
	}
	cancel := func() (int, error) { return src.CancelPrefix(ctx, k.prefix) }
	if k.all {
		cancel = func() (int, error) { return src.CancelAll(ctx) }
	}
	gone, err := cancel()
	if err != nil {
		return err
	}
	fmt.Fprintf(e.out, "%d cancelled\n", gone)
	return nil
}

// deadLetter is the group of commands about dead letters.
func newDeadLetter(p *program) *cobra.Command {
	g := p.group("deadletter", "Dead letters that a source keeps: list, describe, redrive, delete",
		newLetterList(p), newLetterDescribe(p),
		newLetterChange(p, "redrive", "Deliver dead letters again, as new occurrences with a new id and attempt 0", "Redrive", "redriven"),
		newLetterChange(p, "delete", "Discard dead letters", "Discard", "discarded"))
	g.Aliases = []string{"deadletters", "dl"}
	return g
}

func newLetterList(p *program) *cobra.Command {
	var o *output
	var prefix, older string
	c := p.command("list NAME", "List the dead letters of a source", `
$ deadletter list git-repos`,
		cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
			before, err := p.before(older)
			if err != nil {
				return err
			}
			return p.opened(cmd.Context(), args[0], func(src *source) error {
				l := o.list(p.out, "", columns("Key", "Given up", "Attempts", "Status", "Error", "Due*", "Detail*"))
				for d, err := range src.DeadLetters(cmd.Context(), sdk.ListOptions{Prefix: prefix, PageSize: 1000}) {
					if err != nil {
						return err
					}
					if d.At.After(before) {
						continue
					}
					if err := l.add(d, d.Key, d.Key, p.relative(d.At), d.Attempts, d.Status, dash(d.Error), p.relative(d.DueAt), dash(d.Detail)); err != nil {
						return err
					}
				}
				return l.end(p.err, "No dead letters found.")
			})
		})
	c.Flags().StringVar(&prefix, "prefix", "", "only keys that begin with it")
	c.Flags().StringVar(&older, "older-than", "", olderThan)
	c.ValidArgsFunction = p.completeSources
	o = outputFlags(c, "wide", "json", "yaml", "name", "ndjson")
	return c
}

// olderThan is the help of that flag.
const olderThan = "only dead letters that were given up this long ago, such as 12h or 7d"

// before is the instant that lies as far back as a flag says; now without it.
func (e *env) before(older string) (time.Time, error) {
	if older == "" {
		return e.now(), nil
	}
	d, err := parseDuration("older-than", older)
	return e.now().Add(-d), err
}

func newLetterDescribe(p *program) *cobra.Command {
	var o *output
	var k *choice
	var verbose bool
	c := p.command("describe NAME {KEY... | --prefix P | --all}", "Show dead letters in full", `
$ deadletter describe git-repos GitRepo/team-a/site -v`,
		cobra.MinimumNArgs(1), func(cmd *cobra.Command, args []string) error {
			if err := k.from(args[1:]); err != nil {
				return err
			}
			ctx := cmd.Context()
			return p.opened(ctx, args[0], func(src *source) error {
				all := src.DeadLetters(ctx, sdk.ListOptions{Prefix: k.prefix, PageSize: 1000})
				one := func(key string) (*sdk.DeadLetter, error) { return src.DeadLetter(ctx, key) }
				return eachDescribed(ctx, &p.env, o, k, described[*sdk.DeadLetter]{all, one, func(d *sdk.DeadLetter) error {
					pairs := [][2]string{
						{"Key", d.Key},
						{"Given up", p.relative(d.At)},
						{"Due", p.relative(d.DueAt)},
						{"Attempts", fmt.Sprint(d.Attempts)},
						{"Status", fmt.Sprint(d.Status)},
						{"Error", d.Error},
						{"Sink's answer", d.Detail},
					}
					if d.Event != nil {
						pairs = append(pairs, eventPairs(d.Event, verbose)...)
					}
					section(p.out, filled(pairs)...)
					return nil
				}})
			})
		})
	k = selectFlags(c)
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "show the data of the event too")
	c.ValidArgsFunction = p.completeLetters
	o = outputFlags(c, "json", "yaml")
	return c
}

// letterChange is redrive or delete.
func newLetterChange(p *program, verb, short, ask, done string) *cobra.Command {
	var k *choice
	var older string
	var replace bool
	c := p.command(verb+" NAME {KEY... | --prefix P | --all}", short, `
$ deadletter `+verb+` git-repos GitRepo/team-a/site
$ deadletter `+verb+` git-repos --all --older-than 24h`,
		cobra.MinimumNArgs(1), func(cmd *cobra.Command, args []string) error {
			if err := k.from(args[1:]); err != nil {
				return err
			}
			if older != "" && !k.many() {
				return usage("--older-than goes with --prefix or --all")
			}
			before, err := p.before(older)
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			return p.opened(ctx, args[0], func(src *source) error {
				keys, seen := k.keys, map[string]time.Time{}
				k.look = looker(k, func(key string) error { _, err := src.DeadLetter(ctx, key); return err })
				if k.many() {
					for d, err := range src.DeadLetters(ctx, sdk.ListOptions{Prefix: k.prefix, PageSize: 1000}) {
						if err != nil {
							return err
						}
						if !d.At.After(before) {
							keys, seen[d.Key] = append(keys, d.Key), d.At
						}
					}
					if !k.dryRun {
						if err := p.confirm(k.yes, lookFirst, "%s %s of %s?", ask, why.Plural(len(keys), "dead letter", "dead letters"), src); err != nil {
							return err
						}
					}
				}
				return p.each(ctx, keys, k, verb, done, func(key string) error {
					at, listed := seen[key]
					if listed || verb == "delete" { // which is idempotent, and would not say that there is none
						if d, err := src.DeadLetter(ctx, key); err != nil {
							return err
						} else if listed && !d.At.Equal(at) {
							return errors.New("was given up again meanwhile, with another event: it stays")
						}
					}
					if verb == "redrive" {
						err := src.Redrive(ctx, key, sdk.RedriveOptions{Replace: replace})
						if errors.Is(err, sdk.ErrExists) {
							return errors.New("the key has something newer, which waits or is in flight: the dead letter stays (--replace puts it in the newer one's place, whose event is lost)")
						}
						return err
					}
					return src.Discard(ctx, key)
				})
			})
		})
	k = chooseFlags(c)
	c.Flags().StringVar(&older, "older-than", "", olderThan)
	if verb == "redrive" {
		c.Flags().BoolVar(&replace, "replace", false, "also while something newer waits or is in flight; its event is lost")
	}
	c.ValidArgsFunction = p.completeLetters
	return c
}
