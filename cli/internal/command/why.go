package command

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/reschedule-dev/reschedule/pkg/why"
	"github.com/reschedule-dev/reschedule/sdk"
)

// why is the command of that name.
func (e *env) why() *cobra.Command {
	var o *output
	var timeout time.Duration
	c := e.command("why NAME [KEY]", "Say why a key, or a source, is not delivered", `
# What is wrong with the source?
$ why git-repos
# Why has this key not run?
$ why git-repos GitRepo/team-a/site`,
		cobra.RangeArgs(1, 2), func(cmd *cobra.Command, args []string) error {
			s, err := e.session()
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
			return e.answer(o, why.Explain(f))
		})
	c.Long = `Print one sentence that says why a key, or the source as a whole, is not delivered,
and then the evidence. The exit code is 0 when all is as it should be, 8 when there is a problem,
3 when there is no such source.`
	c.ValidArgsFunction = e.completeKeys
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
	f := why.Facts{Now: s.now(), Namespace: s.namespace, Name: name, Key: key}
	var src *source
	var err error
	if s.config == nil {
		if src, err = s.standalone(name); err != nil {
			return f, err
		}
		f.Namespace = src.namespace
		return f, s.ask(ctx, &f, src)
	}
	o, err := s.get(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		f.Missing = true
		return f, nil
	case err != nil:
		return f, err
	}
	f.Source, f.Adapter = o.facts(), s.adapterFacts(ctx)
	if err := ctx.Err(); err != nil { // it is the API server that hangs
		return f, err
	}
	if d := f.Adapter; d != nil && (d.Missing || d.Ready == 0) {
		return f, nil // there is nothing to call
	}
	if src, err = s.connect(ctx, o, nil); err != nil {
		if ctx.Err() != nil {
			return f, ctx.Err()
		}
		f.Refusal = refusal(err)
		return f, nil
	}
	return f, s.ask(ctx, &f, src)
}

// refusal is an error of a call as why reads it.
func refusal(err error) *why.Refusal {
	if refused, ok := errors.AsType[*sdk.Error](err); ok {
		return &why.Refusal{Status: refused.Status, Code: string(refused.Code), Detail: refused.Detail}
	}
	r := &why.Refusal{}
	switch {
	case errors.Is(err, errNoToken):
		return &why.Refusal{Code: why.NoToken, Detail: why.CallError(err)}
	case codeOf(err) == exitDenied:
		r.Status = http.StatusForbidden
	case errors.Is(err, sdk.ErrForeign):
		r.Status = http.StatusOK
	}
	// The text around them names calls and addresses that the user did not type.
	var own *exitError
	var call *url.Error
	switch {
	case errors.As(err, &own):
		err = own
	case errors.As(err, &call):
		err = call.Err
	}
	r.Detail = why.CallError(err)
	return r
}

// interrupted is the error of a context that the user ended. A timeout is not one: the answer
// uses what was found so far.
func interrupted(ctx context.Context) error {
	if err := ctx.Err(); errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// ask asks the schedule API. What it finds is younger than the question: now is when the
// last answer came, or what happened meanwhile would lie in the future.
func (s *session) ask(ctx context.Context, f *why.Facts, src *source) error {
	defer func() { f.Now = s.now() }()
	counts, err := src.Counts(ctx)
	if err != nil {
		f.Refusal = refusal(err)
		return interrupted(ctx)
	}
	f.Counts = &why.Counts{
		Pending: int64(counts.Pending), Due: int64(counts.Due), InFlight: int64(counts.InFlight), Retrying: int64(counts.Retrying),
		DeadLetters: int64(counts.DeadLetters), NextDueAt: counts.NextDueAt, OldestDueAt: counts.OldestDueAt,
	}
	if f.Key == "" {
		s.trouble(ctx, f, src)
	} else {
		s.askKey(ctx, f, src)
	}
	if f.Key == "" || f.Record == nil || f.Record.State == string(sdk.Due) || s.config == nil {
		f.Add(s.measured(ctx, f.Adapter).metrics())
		if s.config == nil && s.metricsServer == "" {
			f.Unmeasured = "--metrics-server was not given"
		}
	}
	return interrupted(ctx)
}

// trouble finds the key that is in trouble for longest, and the newest dead letter.
func (s *session) trouble(ctx context.Context, f *why.Facts, src *source) {
	find := func(state sdk.State) bool {
		for k, err := range src.List(ctx, sdk.ListOptions{State: state, Order: sdk.ByDue, PageSize: 1}) {
			if err == nil && (f.Record == nil || k.LastFailure != nil || state == sdk.InFlight) {
				f.Record = record(k)
			}
			return err == nil && k.LastFailure != nil
		}
		return false
	}
	if f.Counts.Retrying == 0 || !find(sdk.Retrying) {
		if f.Counts.InFlight > 0 {
			find(sdk.InFlight) // a slow sink has its keys in flight most of the time
		}
	}
	if f.WantsStart() {
		f.Record.StartedAt = started(ctx, src, f.Record.Key)
	}
	if f.Counts.DeadLetters == 0 {
		return
	}
	n := 0
	for l, err := range src.DeadLetters(ctx, sdk.ListOptions{PageSize: 1000}) {
		if n++; err != nil || n > 1000 {
			return
		}
		if f.DeadLetter == nil || l.At.After(f.DeadLetter.At) {
			f.DeadLetter = deadLetter(l)
		}
	}
}

// askKey asks about the key.
func (s *session) askKey(ctx context.Context, f *why.Facts, src *source) {
	k, err := src.Get(ctx, f.Key)
	switch {
	case err == nil:
		f.Record = record(k)
	case !errors.Is(err, sdk.ErrNotFound):
		f.Refusal = refusal(err)
		return
	}
	if h, err := src.History(ctx, f.Key); err == nil {
		f.Since = h.Since
		for _, o := range h.Items {
			f.History = append(f.History, why.Outcome(o))
		}
	}
	if l, err := src.DeadLetter(ctx, f.Key); err == nil {
		f.DeadLetter = deadLetter(l)
	}
	if f.WantsStart() {
		f.Record.StartedAt = started(ctx, src, f.Key)
	}
	if f.Record == nil || f.Record.State != string(sdk.Due) || f.Record.LastFailure != nil {
		return
	}
	const most = 1000
	f.AheadKnown = true
	for k, err := range src.List(ctx, sdk.ListOptions{State: sdk.Due, Order: sdk.ByDue, PageSize: most}) {
		if err != nil {
			f.AheadKnown = false
			return
		}
		if f.AheadMore = f.Ahead == most; f.AheadMore || !f.CountAhead(k.Key, k.DueAt, k.NextAttemptAt) {
			return
		}
	}
}

// replayTime is how long the source may take to repeat the live events that it remembers.
const replayTime = 300 * time.Millisecond

// started is when the delivery of the key began, zero if the source does not remember it:
// it does while callers follow it, and some minutes longer.
func started(ctx context.Context, src *source, key string) (at time.Time) {
	ctx, cancel := context.WithTimeout(ctx, replayTime)
	defer cancel()
	for e, err := range src.Follow(ctx, "0") { // no event has this id: the source begins with the oldest
		if err != nil {
			break
		}
		if e.Key == key && e.Kind == sdk.KeyStarted {
			at = e.At
		}
		if e.Key == key && e.Kind == sdk.KeyOutcome {
			at = time.Time{}
		}
	}
	return at
}

func record(k *sdk.Schedule) *why.Record {
	r := &why.Record{
		Key: k.Key, State: string(k.State), InFlight: k.InFlight, DueAt: k.DueAt, ScheduledAt: k.ScheduledAt, Attempt: k.Attempt, Tries: k.Tries,
		NextAttemptAt: k.NextAttemptAt, Reason: k.Reason, UID: k.UID, MaxInterval: k.MaxInterval, ExpiresAt: k.ExpiresAt,
	}
	if k.LastFailure != nil {
		r.LastFailure = new(why.Failure(*k.LastFailure))
	}
	return r
}

func deadLetter(l *sdk.DeadLetter) *why.DeadLetter {
	return &why.DeadLetter{
		Key: l.Key, At: l.At, DueAt: l.DueAt, Attempts: l.Attempts,
		Failure: why.Failure{At: l.At, Status: l.Status, Error: l.Error, Detail: l.Detail},
	}
}

// adapterFacts reads the adapter's StatefulSet and pods; nil without the rights.
func (s *session) adapterFacts(ctx context.Context) *why.Adapter {
	a := s.adapterSet(ctx)
	if a == nil {
		return nil
	}
	for i := range a.Wanted {
		if pod, err := s.api.Resource(podResource).Namespace(s.systemNamespace).Get(ctx, podName(i), metav1.GetOptions{}); err == nil {
			podFacts(a, pod)
		}
	}
	return a
}

// adapterSet reads the adapter's StatefulSet alone; nil without the rights.
func (s *session) adapterSet(ctx context.Context) *why.Adapter {
	set, err := s.api.Resource(statefulSets).Namespace(s.systemNamespace).Get(ctx, adapterName, metav1.GetOptions{})
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
