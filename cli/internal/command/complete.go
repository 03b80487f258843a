package command

import (
	"context"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/reschedule-dev/reschedule/sdk"
)

// The bounds of a completion: a shell waits for it.
const (
	completionTime = time.Second
	completions    = 50
)

// complete completes the values of a flag.
func complete(c *cobra.Command, flag string, values ...string) {
	_ = c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
}

// choices are the values of a flag: they are completed, and others are refused before any
// call is made.
func choices(c *cobra.Command, flag string, values ...string) {
	complete(c, flag, values...)
	before := c.PreRunE
	c.PreRunE = func(cmd *cobra.Command, args []string) error {
		if f := cmd.Flag(flag); f.Changed && !slices.Contains(values, f.Value.String()) {
			return usage("--%s %q is not one of %s", flag, f.Value, strings.Join(values, ", "))
		}
		if before != nil {
			return before(cmd, args)
		}
		return nil
	}
}

// policies are what becomes of a key that waits already.
var policies = []string{"replace", "earliest", "latest", "keep", "fail"}

// completeSources completes the names of sources.
func (p *program) completeSources(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	s, err := p.session()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	objects, _ := s.objects(ctx, false)
	var names []string
	for _, o := range objects {
		names = append(names, o.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeKeys completes NAME, and then keys with the prefix that was typed.
func (p *program) completeKeys(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return p.completeWith(cmd, args, typed, func(ctx context.Context, src *source, add func(string) bool) {
		for k, err := range src.List(ctx, sdk.ListOptions{Prefix: typed, PageSize: completions}) {
			if err != nil || !add(k.Key) {
				return
			}
		}
	})
}

// completeLetters completes NAME, and then keys with a dead letter.
func (p *program) completeLetters(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
	return p.completeWith(cmd, args, typed, func(ctx context.Context, src *source, add func(string) bool) {
		for l, err := range src.DeadLetters(ctx, sdk.ListOptions{Prefix: typed, PageSize: completions}) {
			if err != nil || !add(l.Key) {
				return
			}
		}
	})
}

// typeable reports that a shell takes the key as it is. bash puts what several completions
// have in common on the command line without quotes, and runs that line at the next Tab: a
// tenant's key must not be a command of the user who completes it.
func typeable(key string) bool {
	return !strings.HasPrefix(key, "-") && !strings.HasPrefix(key, "=") && strings.IndexFunc(key, func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) && !strings.ContainsRune("-_./:@%+=,", r)
	}) < 0
}

func (p *program) completeWith(cmd *cobra.Command, args []string, typed string, list func(ctx context.Context, src *source, add func(string) bool)) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return p.completeSources(cmd, args, typed)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	var keys []string
	_ = p.opened(ctx, args[0], func(src *source) error { // without an answer there are no completions
		list(ctx, src, func(key string) bool {
			if typeable(key) {
				keys = append(keys, key)
			}
			return len(keys) < completions
		})
		return nil
	})
	return keys, cobra.ShellCompDirectiveNoFileComp
}
