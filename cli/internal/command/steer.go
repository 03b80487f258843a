package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
)

// suspend is the command suspend, or resume.
func newSuspend(p *program, on bool) *cobra.Command {
	verb, short, done := "suspend", "Stop deliveries; schedules are still accepted", "suspended"
	if !on {
		verb, short, done = "resume", "Deliver again", "resumed"
	}
	var all, yes bool
	c := p.command(verb+" {NAME... | --all}", short, `
$ `+verb+` git-repos`,
		nil, func(cmd *cobra.Command, args []string) error {
			if all == (len(args) > 0) {
				return usage("give NAME or --all, and one of them")
			}
			s, err := p.session()
			if err != nil {
				return err
			}
			if err := s.cluster(verb, editFile); err != nil {
				return err
			}
			names := args
			if all {
				objects, err := s.objects(cmd.Context(), false)
				if err != nil {
					return err
				}
				for _, o := range objects {
					names = append(names, o.Name)
				}
				if err := p.confirm(yes, "", "%s %s of namespace %s?", map[bool]string{true: "Suspend", false: "Resume"}[on], why.Plural(len(names), "source", "sources"), s.namespace); err != nil {
					return err
				}
			}
			k := &choice{keys: names}
			return p.each(cmd.Context(), names, k, verb, done, func(name string) error { return s.setSuspend(cmd.Context(), name, on) })
		})
	c.Flags().BoolVar(&all, "all", false, "all sources of the namespace")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.ValidArgsFunction = p.completeSources
	return c
}

func (s *session) setSuspend(ctx context.Context, name string, on bool) error {
	patch := fmt.Sprintf(`{"spec":{"suspend":%t}}`, on)
	_, err := s.api.Resource(sourceResource).Namespace(s.namespace).Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// drain is the command of that name.
func newDrain(p *program) *cobra.Command {
	var patience time.Duration
	c := p.command("drain NAME", "Suspend a source and wait until no delivery is in flight", `
$ drain git-repos --timeout 10m`,
		cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
			s, err := p.session()
			if err != nil {
				return err
			}
			defer s.close()
			if err := s.cluster("drain", editFile); err != nil {
				return err
			}
			if patience <= 0 {
				return usage("--timeout: %s is not a positive duration such as 10m", patience)
			}
			ctx, cancel := context.WithTimeoutCause(cmd.Context(), patience, errPatience)
			defer cancel()
			if err := s.setSuspend(ctx, args[0], true); err != nil {
				return err
			}
			src, err := s.open(ctx, args[0])
			if err == nil {
				err = p.awaitIdle(ctx, src)
			}
			if err != nil {
				err = fmt.Errorf("%w; source %s stays suspended", err, args[0])
			}
			return err
		})
	c.Flags().DurationVar(&patience, "timeout", 10*time.Minute, "how long to wait; the source stays suspended")
	c.ValidArgsFunction = p.completeSources
	return c
}

var errPatience = errors.New("--timeout is over")

// awaitIdle waits until nothing of a suspended source is in flight. The adapter learns of
// the suspension a moment after the API server, so it must be idle twice.
func (e *env) awaitIdle(ctx context.Context, src *source) error {
	p, tick := e.progressOf("in flight:", 0), time.NewTicker(500*time.Millisecond)
	defer tick.Stop()
	defer p.end()
	left := "an unknown number of"
	for idle := 0; idle < 3; {
		counts, err := src.Counts(ctx)
		switch {
		case ctx.Err() != nil:
			return unavailable("%w: %s deliveries of %s are still in flight", context.Cause(ctx), left, src)
		case err != nil:
			return err
		}
		left = fmt.Sprint(counts.InFlight)
		p.show(counts.InFlight)
		if idle++; counts.InFlight > 0 {
			idle = 0
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
	p.end()
	fmt.Fprintf(e.out, "%s is suspended, and nothing is in flight\n", src.Name)
	return nil
}

// token is the command of that name.
func newToken(p *program) *cobra.Command {
	var lifetime time.Duration
	c := p.command("token NAME", "Print a token for the schedule API of a source", `
$ token git-repos --lifetime 1h`,
		cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
			s, err := p.session()
			if err != nil {
				return err
			}
			if err := s.cluster("token", "use a token of the adapter's --token-file"); err != nil {
				return err
			}
			if lifetime < 10*time.Minute {
				return usage("--lifetime is %s: the API server issues tokens for at least 10m", lifetime)
			}
			o, err := s.get(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			token, err := s.requestToken(cmd.Context(), o.Namespace, []string{o.audience()}, lifetime)
			if err != nil {
				return err
			}
			fmt.Fprintln(p.out, token)
			return nil
		})
	c.Flags().DurationVar(&lifetime, "lifetime", 10*time.Minute, "how long the token is valid")
	c.ValidArgsFunction = p.completeSources
	return c
}

// versionCommand is the command version.
func newVersion(p *program) *cobra.Command {
	var o *output
	c := p.command("version", "Print the version", "", cobra.NoArgs, func(*cobra.Command, []string) error {
		if o.format != "" {
			return o.printOne(p.out, map[string]string{"version": p.version, "api": sourceKind.GroupVersion().String()})
		}
		fmt.Fprintf(p.out, "Version:  %s\nAPI:      %s\n", p.version, sourceKind.GroupVersion())
		return nil
	})
	o = outputFlags(c, "json", "yaml")
	return c
}
