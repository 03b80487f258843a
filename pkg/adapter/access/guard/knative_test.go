//go:build !race

package guard

// What is Knative's own, which needs all of Kubernetes' client set: with the race detector that would be compiled for
// these tests alone, and they have no second goroutine.

import (
	"context"
	"encoding/json"
	"math/rand/v2"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
	"go.uber.org/zap"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	eventingv1 "knative.dev/eventing/pkg/apis/eventing/v1"
	eventing "knative.dev/eventing/pkg/apis/eventing/v1alpha1"
	"knative.dev/eventing/pkg/auth"
	eventinglisters "knative.dev/eventing/pkg/client/listers/eventing/v1alpha1"
	"knative.dev/eventing/pkg/eventfilter"
	"knative.dev/eventing/pkg/eventfilter/subscriptionsapi"
	"knative.dev/pkg/logging"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// The types of policies; knative_race_test.go has copies of them.
type (
	theirPolicy   = eventing.EventPolicy
	theirSpec     = eventing.EventPolicySpec
	theirTo       = eventing.EventPolicySpecTo
	theirRef      = eventing.EventPolicyToReference
	theirSelector = eventing.EventPolicySelector
	theirFilter   = eventingv1.SubscriptionsAPIFilter
)

func markReady(p *theirPolicy) {
	p.Status.MarkOIDCAuthenticationEnabled()
	p.Status.MarkSubjectsResolvedSucceeded()
}

func markUnresolved(p *theirPolicy, reason, message string) {
	p.Status.MarkSubjectsResolvedFailed(reason, message)
}

// The source has the audience that Knative gives it.
func TestAudience_IsKnatives(t *testing.T) {
	t.Parallel()
	gvk := v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.Kind)
	for _, m := range []metav1.ObjectMeta{{Namespace: ns, Name: name}, {Namespace: "Upper", Name: "Ünder.score"}, {}} {
		if got, want := audience(m.Namespace, m.Name), auth.GetAudience(gvk, m); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := audience("ops", "git-repos"); got != "sources.reschedule.dev/reschedulesource/ops/git-repos" {
		t.Errorf("%q is not what the documentation says", got)
	}
}

// The table of targets says of each policy what Knative says.
func TestPolicyTargets_AreKnatives(t *testing.T) {
	t.Parallel()
	for _, what := range sorted(targets) {
		w := newEnv(t)
		w.addSource(name, map[string]string{"tier": "gold"})
		w.setPolicies(targets[what].change(newPolicy("p", outsider)))
		src, err := w.guard.sources.RescheduleSources(ns).Get(name)
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := auth.GetEventPoliciesForResource(eventinglisters.NewEventPolicyLister(w.theirs), v1alpha1.SchemeGroupVersion.WithKind(v1alpha1.Kind), src.ObjectMeta)
		if err != nil || (len(theirs) > 0) != targets[what].applies {
			t.Errorf("%s: the table says %t, Knative %d, %v", what, targets[what].applies, len(theirs), err)
		}
	}
}

// quiet keeps Knative's filters from describing each event to a logger.
var quiet = logging.WithLogger(context.Background(), zap.NewNop().Sugar())

// TestFilter_MeansWhatKnativeMeans builds filters at random and lets Knative's
// own judge the same events.
func TestFilter_MeansWhatKnativeMeans(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := random{rand.New(rand.NewPCG(seed, 0))}
	passed := 0
	const rounds = 2000
	for i := range rounds {
		fs := []theirFilter{r.filter(i % 4)}
		if r.IntN(4) == 0 {
			fs = append(fs, r.filter(1))
		}
		e := r.event()
		compiled, err := compileFilters(asRead(t, fs))
		if err != nil {
			t.Fatalf("seed %d, round %d: %v", seed, i, err)
		}
		got := (&policy{filters: compiled}).passes(event.Event{Context: cloudevent.Context(e)})
		// Their Cleanup panics when it meets a joint that is just putting its filters in another order.
		want := subscriptionsapi.CreateSubscriptionsAPIFilters(zap.NewNop(), fs).Filter(quiet, asKnativeReads(t, e)) != eventfilter.FailFilter
		if got != want {
			text, _ := json.Marshal(fs)
			t.Fatalf("seed %d, round %d: %s of %+v: %t, Knative says %t", seed, i, text, e, got, want)
		}
		if got {
			passed++
		}
	}
	if passed < rounds/10 || passed > rounds*9/10 {
		t.Errorf("seed %d: %d of %d passed, so the test proves little", seed, passed, rounds)
	}
}

// TestFilter_CompilesWhatKnativeAccepts breaks filters at random. Whether they
// are whole Knative's webhook says; what it lets in all the same, and what
// Knative then leaves out, must be refused here.
func TestFilter_CompilesWhatKnativeAccepts(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := random{rand.New(rand.NewPCG(seed, 0))}
	whole := 0
	const rounds = 2000
	for i := range rounds {
		fs := []theirFilter{r.filter(i % 4), r.filter(0)}
		r.spoil(&fs[0])
		want := eventingv1.ValidateSubscriptionAPIFiltersList(quiet, fs) == nil && makeable(fs...)
		_, err := compileFilters(asRead(t, fs))
		if (err == nil) != want {
			text, _ := json.Marshal(fs)
			t.Fatalf("seed %d, round %d: %s: %v, Knative lets it in: %t", seed, i, text, err, want)
		}
		if want {
			whole++
		}
	}
	if whole < rounds/20 || whole > rounds*19/20 {
		t.Errorf("seed %d: %d of %d are whole, so the test proves little", seed, whole, rounds)
	}
}

// makeable says whether Knative leaves nothing out of the filters.
func makeable(fs ...theirFilter) bool {
	for _, f := range fs {
		var err error
		within := append(append([]theirFilter{}, f.All...), f.Any...)
		switch {
		case len(within) > 0:
		case f.Not != nil:
			within = append(within, *f.Not)
		case len(f.Exact) > 0:
			_, err = subscriptionsapi.NewExactFilter(f.Exact)
		case len(f.Prefix) > 0:
			_, err = subscriptionsapi.NewPrefixFilter(f.Prefix)
		case len(f.Suffix) > 0:
			_, err = subscriptionsapi.NewSuffixFilter(f.Suffix)
		case f.CESQL != "":
			_, err = subscriptionsapi.NewCESQLFilter(f.CESQL)
		default:
			return false
		}
		if err != nil || !makeable(within...) {
			return false
		}
	}
	return true
}

// asKnativeReads is the event out of the SDK.
func asKnativeReads(t *testing.T, e *schedule.Event) event.Event {
	t.Helper()
	sdk := event.New()
	sdk.SetID(e.ID)
	sdk.SetSource(e.Source)
	sdk.SetType(e.Type)
	if e.Subject != "" {
		sdk.SetSubject(e.Subject)
	}
	if e.DataContentType != "" {
		sdk.SetDataContentType(e.DataContentType)
	}
	if e.DataSchema != "" {
		sdk.SetDataSchema(e.DataSchema)
	}
	if !e.Time.IsZero() {
		sdk.SetTime(e.Time)
	}
	for name, v := range e.Extensions {
		sdk.SetExtension(name, v)
	}
	return sdk
}
