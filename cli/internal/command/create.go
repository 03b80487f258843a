package command

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/retry"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
)

// fields are the flags that set a field of the spec, in kn's names.
var fields = []struct{ flag, kind, path, usage string }{
	{"delay", "string", "delay", "time to wait when a request names none, such as 5m"},
	{"conflict-policy", "string", "conflictPolicy", "when a key waits already: replace, earliest, latest, keep, fail"},
	{"max-interval", "string", "maxInterval", "a key is due again this long after a run that asked for nothing"},
	{"cron", "string", "schedule.cron", "calendar of the keys that name no time, five fields or a descriptor such as @hourly"},
	{"time-zone", "string", "schedule.timeZone", "time zone of the calendar, such as Europe/Berlin"},
	{"slack", "string", "slack", "a key of a timer, once it is due, may wait this long to be delivered together with others"},
	{"warm-up", "string", "warmUp", "the sink is called this long before a key is due, so that a Knative Service has a pod; 0s is off"},
	{"max-in-flight", "int", "limits.maxInFlight", "parallel deliveries at most"},
	{"max-per-second", "int", "limits.maxPerSecond", "deliveries a second at most; 0 is no limit"},
	{"max-pending", "int", "limits.maxPending", "keys at most"},
	{"ingest-key", "string", "ingest.key", "CEL expression that makes the key of an event"},
	{"ingest-when", "string", "ingest.when", "CEL expression that is false for events to drop"},
	{"retry", "int", "delivery.retry", "retries after the first attempt; without it for ever"},
	{"backoff-policy", "string", "delivery.backoffPolicy", "linear or exponential"},
	{"backoff-delay", "string", "delivery.backoffDelay", "first wait before a retry, ISO 8601, such as PT1S"},
	{"timeout", "string", "delivery.timeout", "time for one attempt, ISO 8601, such as PT10M"},
	{"retry-after-max", "string", "delivery.retryAfterMax", "longest Retry-After that is honoured, ISO 8601"},
	{"scale-replicas", "int", "scale.replicas", "replicas of the workload while it is awake"},
	{"scale-cooldown", "string", "scale.cooldown", "the workload falls asleep this long after the last delivery; without a sink, after it became idle"},
	{"scale-start-timeout", "string", "scale.startTimeout", "time for the workload to start"},
	{"scale-service-account", "string", "scale.serviceAccountName", "service account that scales the workload, and without a sink lists its pods"},
	{"scale-busy-port", "int", "scale.busy.port", "without a sink: port of the pods whose metrics say whether the workload works"},
	{"scale-busy-path", "string", "scale.busy.path", "path of these metrics"},
	{"scale-mode", "string", "scale.mode", "Auto, Awake (never asleep) or Observe (not scaled, but counted)"},
}

// specFlags adds the flags of the spec.
func specFlags(c *cobra.Command) {
	f := c.Flags()
	f.String("sink", "", "ksvc:NAME, svc:NAME, broker:NAME, channel:NAME, each with :NAMESPACE, a URI, or GROUP/VERSION/KIND:NAME")
	f.String("dl-sink", "", "dead letter sink, in the form of --sink")
	f.StringArray("ce-override", nil, "attribute that each event gets, NAME=VALUE; NAME- removes it")
	f.Bool("suspend", false, "deliver nothing")
	f.Bool("no-suspend", false, "deliver")
	c.MarkFlagsMutuallyExclusive("suspend", "no-suspend")
	for _, d := range fields {
		if d.kind == "int" {
			f.Int64(d.flag, 0, d.usage)
		} else {
			f.String(d.flag, "", d.usage)
		}
	}
	choices(c, "conflict-policy", policies...)
	choices(c, "backoff-policy", "linear", "exponential")
	f.String("scale", "", "workload that sleeps while nothing is due: deployment/NAME, statefulset/NAME or GROUP/VERSION/KIND/NAME; none removes it")
	choices(c, "scale-mode", "Auto", "Awake", "Observe")
}

// setSpec sets what the flags name, and leaves the rest.
func (s *session) setSpec(c *cobra.Command, o *unstructured.Unstructured) error {
	f := c.Flags()
	set := func(v any, path string) error {
		return unstructured.SetNestedField(o.Object, v, append([]string{"spec"}, strings.Split(path, ".")...)...)
	}
	for _, d := range fields {
		if !f.Changed(d.flag) {
			continue
		}
		var v any
		if d.kind == "int" {
			v, _ = f.GetInt64(d.flag)
		} else {
			v, _ = f.GetString(d.flag)
		}
		if err := set(v, d.path); err != nil {
			return err
		}
	}
	for flag, path := range map[string]string{"sink": "sink", "dl-sink": "delivery.deadLetterSink"} {
		if !f.Changed(flag) {
			continue
		}
		text, _ := f.GetString(flag)
		v, err := parseSink(text, s.namespace)
		if err != nil {
			return usage("--%s: %w", flag, err)
		}
		if err := set(v, path); err != nil {
			return err
		}
	}
	if text, _ := f.GetString("scale"); text == "none" {
		unstructured.RemoveNestedField(o.Object, "spec", "scale")
	} else if f.Changed("scale") {
		ref, err := parseWorkload(text)
		if err != nil {
			return usage("--scale: %w", err)
		}
		if err := set(ref.object(), "scale.targetRef"); err != nil {
			return err
		}
	}
	for flag, on := range map[string]bool{"suspend": true, "no-suspend": false} {
		if v, _ := f.GetBool(flag); v {
			if err := set(on, "suspend"); err != nil {
				return err
			}
		}
	}
	overrides, _ := f.GetStringArray("ce-override")
	for _, text := range overrides {
		path := []string{"spec", "ceOverrides", "extensions"}
		if name, remove := strings.CutSuffix(text, "-"); remove && !strings.Contains(text, "=") {
			unstructured.RemoveNestedField(o.Object, append(path, name)...)
			continue
		}
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return usage("--ce-override %q is not NAME=VALUE", text)
		}
		if err := unstructured.SetNestedField(o.Object, value, append(path, name)...); err != nil {
			return err
		}
	}
	return nil
}

// kinds are the short forms of sinks that kn has.
var kinds = map[string][2]string{
	"ksvc":    {"serving.knative.dev/v1", "Service"},
	"svc":     {"v1", "Service"},
	"broker":  {"eventing.knative.dev/v1", "Broker"},
	"channel": {"messaging.knative.dev/v1", "Channel"},
}

// parseSink reads a sink as kn does: PREFIX:NAME[:NAMESPACE], a URI,
// GROUP/VERSION/KIND:NAME[:NAMESPACE], or the name of a Knative Service.
func parseSink(text, namespace string) (map[string]any, error) {
	if text == "" {
		return nil, errors.New("it is empty")
	}
	if u, err := url.Parse(text); err == nil && u.Host != "" && (u.Scheme == "http" || u.Scheme == "https") {
		return map[string]any{"uri": text}, nil
	}
	parts := strings.Split(text, ":")
	if len(parts) == 1 {
		parts = []string{"ksvc", text}
	}
	kind, ok := kinds[parts[0]]
	if gvk := strings.Split(parts[0], "/"); !ok && len(gvk) >= 2 {
		kind, ok = [2]string{strings.Join(gvk[:len(gvk)-1], "/"), gvk[len(gvk)-1]}, true
	}
	switch {
	case !ok:
		return nil, fmt.Errorf("%q is not known: use ksvc, svc, broker, channel, GROUP/VERSION/KIND, or a URI", parts[0])
	case len(parts) > 3 || parts[1] == "":
		return nil, fmt.Errorf("%q is not PREFIX:NAME or PREFIX:NAME:NAMESPACE", text)
	}
	if len(parts) == 3 {
		namespace = parts[2]
	}
	return map[string]any{"ref": map[string]any{"apiVersion": kind[0], "kind": kind[1], "name": parts[1], "namespace": namespace}}, nil
}

// created is the object of create and apply.
func (s *session) fresh(name string) *unstructured.Unstructured {
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(sourceKind)
	o.SetName(name)
	o.SetNamespace(s.namespace)
	return o
}

// change is a command that writes a source.
func newChange(p *program, verb, short, done string, write func(ctx context.Context, s *session, c *cobra.Command, name string) error) *cobra.Command {
	var wait bool
	var patience time.Duration
	c := p.command(verb+" NAME", short, `
$ `+verb+` git-repos --sink ksvc:git-repo-operator --max-interval 10h`,
		cobra.ExactArgs(1), func(cmd *cobra.Command, args []string) error {
			s, err := p.session()
			if err != nil {
				return err
			}
			if err := s.cluster(verb, editFile); err != nil {
				return err
			}
			if patience <= 0 {
				return usage("--wait-timeout: %s is not a positive duration such as 2m", patience)
			}
			if err := write(cmd.Context(), s, cmd, args[0]); err != nil {
				if errors.Is(err, errDryRun) {
					return nil
				}
				return err
			}
			if no, _ := cmd.Flags().GetBool("no-wait"); wait && !no {
				if err := s.awaitReady(cmd.Context(), args[0], patience); err != nil {
					return err
				}
			}
			fmt.Fprintf(p.out, "Source %s %s in namespace %s.\n", args[0], done, s.namespace)
			return nil
		})
	c.Long = short + `. Fields without a flag, such as watch, audience, jitter, deadLetters, access and
audit, are set with kubectl apply.`
	specFlags(c)
	c.Flags().BoolVar(&wait, "wait", false, "wait until the source is Ready")
	c.Flags().Bool("no-wait", false, "do not wait, which is the default")
	c.Flags().DurationVar(&patience, "wait-timeout", 2*time.Minute, "how long to wait")
	c.MarkFlagsMutuallyExclusive("wait", "no-wait")
	c.ValidArgsFunction = p.completeSources
	return c
}

// sinkMissing is the error of a source that was to be created without --sink.
func sinkMissing(c *cobra.Command) error {
	if c.Flags().Changed("scale") {
		return usage("--scale without --sink wakes a workload that finds its work by itself, and needs spec.watch, which has no flag: " +
			"use create --observe, which finds the kinds to watch, or kubectl apply")
	}
	return usage("give --sink: where the source delivers to")
}

func newCreate(p *program) *cobra.Command {
	var observe string
	var dryRun bool
	c := newChange(p, "create", "Create a source", "created", func(ctx context.Context, s *session, c *cobra.Command, name string) error {
		if !c.Flags().Changed("sink") && observe == "" {
			return sinkMissing(c)
		}
		o, seen := s.fresh(name), &observation{}
		if observe != "" {
			ref, err := parseWorkload(observe)
			if err != nil {
				return usage("--observe: %w", err)
			}
			if seen, err = (inspector{s}).observed(ctx, o, ref, func(flag string) string {
				if f := c.Flags().Lookup(flag); f.Changed && f.Value.String() != "false" {
					return f.Value.String()
				}
				return ""
			}); err != nil {
				return err
			}
			seen.print(p.err)
		}
		if err := s.setSpec(c, o); err != nil {
			return err
		}
		if dryRun {
			if err := printDocuments(p.out, append([]*unstructured.Unstructured{o}, seen.rights...)); err != nil {
				return err
			}
			return errDryRun
		}
		if _, err := s.api.Resource(sourceResource).Namespace(s.namespace).Create(ctx, o, metav1.CreateOptions{}); err != nil {
			return err
		}
		return inspector{s}.grant(ctx, p.out, seen.rights)
	})
	c.Long += `

--observe makes a source without a sink, with mode Observe, for a workload that runs as it
does today: it watches what the account of the workload may watch, and counts what sleeping
would save. A Role NAME-scaler lets that account scale the workload. After an hour see
savings; then update NAME --scale-mode Auto lets it sleep, and --scale-mode Awake ends that.
It refuses a workload that the API server calls, such as one with an admission webhook.`
	c.Flags().StringVar(&observe, "observe", "", "workload, in the form of --scale, that is observed; without --sink it finds its work by itself once it is awake")
	c.Flags().Bool("force", false, "with --observe: also a workload that the API server calls")
	c.Flags().BoolVar(&dryRun, "dry-run", false, "print what would be created")
	c.MarkFlagsMutuallyExclusive("observe", "scale")
	c.MarkFlagsMutuallyExclusive("dry-run", "wait")
	return c
}

// errDryRun ends a command that has written nothing.
var errDryRun = errors.New("dry run")

func newUpdate(p *program) *cobra.Command {
	return newChange(p, "update", "Change fields of a source; the others stay", "updated", func(ctx context.Context, s *session, c *cobra.Command, name string) error {
		return s.updateSpec(ctx, c, name)
	})
}

// updateSpec reads, changes and writes the object, at the version that was read. The controller and the adapter write
// its status meanwhile, so that it may have to be read again.
func (s *session) updateSpec(ctx context.Context, c *cobra.Command, name string) error {
	r := s.api.Resource(sourceResource).Namespace(s.namespace)
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		o, err := r.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := s.setSpec(c, o); err != nil {
			return err
		}
		_, err = r.Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
}

func newApply(p *program) *cobra.Command {
	return newChange(p, "apply", "Create a source, or change fields of it", "applied", func(ctx context.Context, s *session, c *cobra.Command, name string) error {
		err := s.updateSpec(ctx, c, name)
		if !apierrors.IsNotFound(err) {
			return err
		}
		if !c.Flags().Changed("sink") {
			return fmt.Errorf("there is no source %s: %w", name, sinkMissing(c))
		}
		o := s.fresh(name)
		if err := s.setSpec(c, o); err != nil {
			return err
		}
		_, err = s.api.Resource(sourceResource).Namespace(s.namespace).Create(ctx, o, metav1.CreateOptions{})
		return err
	})
}

// awaitReady polls the object until it is Ready for its generation.
func (s *session) awaitReady(ctx context.Context, name string, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	last := "the controller has not seen it"
	for {
		o, err := s.get(ctx, name)
		if err == nil {
			observed, _, _ := unstructured.NestedInt64(o.raw.Object, "status", "observedGeneration")
			ready := o.condition("Ready")
			if ready.Status == "True" && observed == o.Generation {
				return nil
			}
			if ready.Reason != "" {
				last = ready.Reason + ": " + ready.Message
			}
		} else if ctx.Err() == nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return unavailable("source %s is not Ready after %s: %s", name, patience, last)
		}
	}
}

// delete is the command of that name.
func newDelete(p *program) *cobra.Command {
	var yes bool
	c := p.command("delete NAME...", "Delete sources, and their schedules for good", `
$ delete git-repos`,
		cobra.MinimumNArgs(1), func(cmd *cobra.Command, args []string) error {
			s, err := p.session()
			if err != nil {
				return err
			}
			if err := s.cluster("delete", editFile); err != nil {
				return err
			}
			ctx := cmd.Context()
			objects, err := s.chosen(ctx, args, false)
			if err != nil {
				return err
			}
			keys, about := 0, "about"
			for _, o := range objects {
				if o.Status.Pending == nil { // the adapter has not said it yet
					about = "at least"
					continue
				}
				keys += int(*o.Status.Pending)
			}
			if err := p.confirm(yes, "", "Delete %s of namespace %s for good, with %s %s?", why.Plural(len(objects), "source", "sources"), s.namespace, about, why.Plural(keys, "key", "keys")); err != nil {
				return err
			}
			uids := map[string]*object{}
			for _, o := range objects {
				uids[o.Name] = o
			}
			return p.each(ctx, args, &choice{keys: args}, "deleting", "deleted", func(name string) error {
				uid := uids[name].UID
				return s.api.Resource(sourceResource).Namespace(s.namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
			})
		})
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	c.ValidArgsFunction = p.completeSources
	return c
}
