package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
)

// why is the command of that name.
func newWhy(p *program) *cobra.Command {
	var o *output
	var timeout time.Duration
	c := p.command("why NAME [KEY]", "Say why a key, or a source, is not delivered", `
# What is wrong with the source?
$ why git-repos
# Why has this key not run?
$ why git-repos GitRepo/team-a/site`,
		cobra.RangeArgs(1, 2), func(cmd *cobra.Command, args []string) error {
			s, err := p.session()
			if err != nil {
				return err
			}
			defer s.close()
			key := ""
			if len(args) == 2 {
				if key = args[1]; key == "" {
					return usage("KEY is empty: leave it out to ask about the source")
				}
			}
			var f why.Facts
			if err := limited(cmd.Context(), timeout, func(ctx context.Context) error {
				f, err = s.facts(ctx, args[0], key)
				return err
			}); err != nil {
				return err
			}
			return p.answer(o, why.Explain(f))
		})
	c.Long = `Print one sentence that says why a key, or the source as a whole, is not delivered, and then the
evidence. The exit code is 8 if there is a problem.`
	c.ValidArgsFunction = p.completeKeys
	timeoutFlag(c, &timeout)
	o = outputFlags(c, "json", "yaml")
	return c
}

// lookTime bounds a look: a component that hangs is an answer too.
const lookTime = 20 * time.Second

func timeoutFlag(c *cobra.Command, timeout *time.Duration) {
	c.Flags().DurationVar(timeout, "timeout", lookTime, "how long all calls together may take; what has no answer by then stays unknown")
}

// limited looks, with a limit for all of its calls together. Only the API server can keep
// it from finding out anything.
func limited(ctx context.Context, timeout time.Duration, look func(context.Context) error) error {
	if timeout <= 0 {
		return usage("--timeout: %s is not a positive duration such as %s", timeout, lookTime)
	}
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := look(within)
	if errors.Is(err, context.DeadlineExceeded) || err != nil && within.Err() != nil && ctx.Err() == nil {
		return unavailable("the API server did not answer within %s (--timeout)", timeout)
	}
	return err
}

// answer prints an answer of why.
func (e *env) answer(o *output, a why.Answer) error {
	if o.format != "" {
		if err := o.printOne(e.out, a); err != nil {
			return err
		}
	} else {
		colour := green
		if a.Problem {
			colour = red
		}
		fmt.Fprintf(e.out, "%s\n\n", e.paint(colour, a.Sentence))
		pairs := [][2]string{{"cause", string(a.Cause)}}
		for _, v := range a.Evidence {
			pairs = append(pairs, [2]string{v.Name, v.Value})
		}
		section(e.out, pairs...)
	}
	switch {
	case a.Cause == why.NoSource:
		return &exitError{code: exitNotFound}
	case a.Problem:
		return &exitError{code: exitProblem}
	}
	return nil
}

// facts finds what why wants to know. What cannot be found stays unknown; only a source
// that cannot be read is an error.
func (s *session) facts(ctx context.Context, name, key string) (why.Facts, error) {
	o, err := s.get(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return why.Facts{Now: s.now(), Namespace: s.namespace, Name: name, Key: key, Missing: true}, nil
	case err != nil:
		return why.Facts{}, err
	}
	var adapter *why.Adapter
	if s.config != nil {
		adapter = s.adapterFacts(ctx)
	}
	if err := ctx.Err(); err != nil { // it is the API server that hangs
		return why.Facts{}, err
	}
	t := s.target(ctx, o, nil, adapter)
	switch {
	case t.Err != nil && s.config == nil: // a flag is wrong
		return why.Facts{}, t.Err
	case t.Err != nil && ctx.Err() != nil:
		return why.Facts{}, ctx.Err()
	}
	return t.Ask(ctx, key), interrupted(ctx)
}

// target is how to ask about a source. The others are sources that will be asked about too.
func (s *session) target(ctx context.Context, o *object, others []*object, adapter *why.Adapter) *why.Target {
	t := &why.Target{Namespace: o.Namespace, Name: o.Name, Source: o.facts(), Adapter: adapter, Now: s.now}
	t.Metrics = func(ctx context.Context) (*why.Metrics, error) {
		return s.measured(ctx, adapter).metrics()
	}
	if adapter != nil && adapter.Ready == 0 { // there is nothing to call, so no token is wanted
		return t
	}
	src, err := s.connect(ctx, o, others)
	if t.Err = err; err == nil {
		t.Client = src.Client
	}
	return t
}

// interrupted is the error of a context that the user ended. A timeout is not one: the answer
// uses what was found so far.
func interrupted(ctx context.Context) error {
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// adapterFacts reads the adapter's StatefulSet and pods; nil without the rights.
func (s *session) adapterFacts(ctx context.Context) *why.Adapter {
	a := s.adapterSet(ctx)
	if a == nil {
		return nil
	}
	for i := range a.Wanted {
		if pod, err := s.api.Resource(podResource).Namespace(s.adapter.namespace(ctx)).Get(ctx, podName(i), metav1.GetOptions{}); err == nil {
			podFacts(a, pod)
		}
	}
	return a
}

// adapterSet reads the adapter's StatefulSet alone; nil without the rights.
func (s *session) adapterSet(ctx context.Context) *why.Adapter {
	set, err := s.api.Resource(statefulSets).Namespace(s.adapter.namespace(ctx)).Get(ctx, adapterName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return &why.Adapter{Missing: true}
	}
	if err != nil {
		return nil
	}
	wanted, found, _ := unstructured.NestedInt64(set.Object, "spec", "replicas")
	if !found {
		wanted = 1
	}
	ready, _, _ := unstructured.NestedInt64(set.Object, "status", "readyReplicas")
	return &why.Adapter{Wanted: int(wanted), Ready: int(ready)}
}

// podFacts adds why a pod does not run, and its restarts.
func podFacts(a *why.Adapter, pod *unstructured.Unstructured) {
	statuses, _, _ := unstructured.NestedSlice(pod.Object, "status", "containerStatuses")
	for _, c := range statuses {
		status, ok := c.(map[string]any)
		if !ok {
			continue
		}
		n, _, _ := unstructured.NestedInt64(status, "restartCount")
		a.Restarts += int(n)
		if reason, _, _ := unstructured.NestedString(status, "state", "waiting", "reason"); reason != "" {
			a.Waiting = reason
		}
		if reason, _, _ := unstructured.NestedString(status, "lastState", "terminated", "reason"); reason != "" {
			a.LastTermination = reason
		}
		at, _, _ := unstructured.NestedString(status, "lastState", "terminated", "finishedAt")
		if t, err := time.Parse(time.RFC3339, at); err == nil {
			a.RestartedAt = t
		}
	}
	conditions, _, _ := unstructured.NestedSlice(pod.Object, "status", "conditions")
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok && condition["type"] == "PodScheduled" && condition["status"] == "False" {
			a.Waiting = fmt.Sprint(condition["message"])
		}
	}
}
