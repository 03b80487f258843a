package sources

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// An object of a cluster has the targets that it was resolved to.
func TestFromObject_TakesResolvedTargets(t *testing.T) {
	t.Parallel()
	o := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a", UID: "some/uid"}}
	o.Spec.Sink.Ref = &duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "x"}
	before := o.DeepCopy()
	targets := schedule.Targets{
		Sink:       schedule.Target{URL: "https://x", CACerts: "pem", Audience: "aud"},
		DeadLetter: &schedule.Target{URL: "http://y"},
	}
	got, err := FromObject(o, targets, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := defaults("a")
	want.UID, want.Sink, want.DeadLetter = "some/uid", targets.Sink, targets.DeadLetter
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("source (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(before, o); diff != "" {
		t.Errorf("the object was changed:\n%s", diff)
	}
}

// spec.watch of an object in a cluster becomes settings without Kubernetes types.
func TestFromObject_Watch(t *testing.T) {
	t.Parallel()
	born := time.Date(2026, time.November, 21, 9, 0, 0, 0, time.UTC)
	spec, no, over := v1alpha1.ChangesSpec, false, "PT1H"
	o := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "a", Generation: 7, CreationTimestamp: metav1.Time{Time: born}}}
	o.Spec.Sink.Ref = &duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "x"}
	o.Status.SinkRevision = "x-00002"
	read := func(w *v1alpha1.RescheduleSourceWatch) *schedule.Watch {
		o.Spec.Watch = w
		src, err := FromObject(o, schedule.Targets{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return src.Watch
	}
	if got := read(nil); got != nil {
		t.Errorf("without watch: %+v", got)
	}
	want := &schedule.Watch{
		Account: "default", OwnNamespace: true, ResyncOnRevision: true, Revision: "x-00002", Generation: 7, Since: born,
		Resources: []schedule.WatchResource{{Version: "v1", Kind: "Secret", Changes: schedule.ChangesMetadata}},
	}
	if diff := cmp.Diff(want, read(&v1alpha1.RescheduleSourceWatch{Resources: []v1alpha1.WatchResource{{APIVersion: "v1", Kind: "Secret"}}})); diff != "" {
		t.Errorf("the least (-want +got):\n%s", diff)
	}
	labels := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	want = &schedule.Watch{
		Account: "watcher", Namespaces: "app=web", ResyncOver: new(time.Hour), Generation: 7, Since: born,
		Resources: []schedule.WatchResource{
			{Group: "apps", Version: "v1", Kind: "Deployment", Selector: "app=web", OwnerGroup: "example.com", OwnerKind: "Website", Changes: schedule.ChangesAny},
			{Version: "v1", Kind: "Secret", Key: "'x'", Changes: schedule.ChangesSpec},
		},
	}
	got := read(&v1alpha1.RescheduleSourceWatch{
		ServiceAccountName: "watcher", NamespaceSelector: labels, Resync: &v1alpha1.WatchResync{OnRevision: &no, Over: &over},
		Resources: []v1alpha1.WatchResource{
			{APIVersion: "apps/v1", Kind: "Deployment", Selector: labels, Owner: &v1alpha1.WatchOwner{APIVersion: "example.com/v1", Kind: "Website"}},
			{APIVersion: "v1", Kind: "Secret", Key: "'x'", Changes: &spec},
		},
	})
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("everything (-want +got):\n%s", diff)
	}
	if got := read(&v1alpha1.RescheduleSourceWatch{NamespaceSelector: &metav1.LabelSelector{}, Resources: []v1alpha1.WatchResource{{APIVersion: "v1", Kind: "Secret"}}}); got.OwnNamespace || got.Namespaces != "" {
		t.Errorf("all namespaces: %+v", got)
	}
}

// A namespace's ceilings cut what its sources name, and are the defaults of
// what they do not name.
func TestFromObject_CutsToTheCeilings(t *testing.T) {
	t.Parallel()
	config, err := ceilings.Parse(map[string]string{
		"max-pending": "10", "max-bytes": "1Mi", "max-in-flight": "5", "max-per-second": "7", "max-timeout": "1m", "min-delay": "2s",
		"default-max-pending": "3", "default-timeout": "20s", "max-starts": "4", "namespaces": "default: {max-in-flight: 2}",
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Parse("f", []byte(manifestOf("a", "limits: {maxPending: 99, maxBytes: 1Gi, maxInFlight: 99}\ndelivery: {timeout: PT59.999999999S}")+
		"---\n"+manifestOf("b", "limits: {maxPerSecond: 8}\ndelivery: {timeout: P1D}")), config)
	if err != nil {
		t.Fatal(err)
	}
	want := schedule.Ceilings{MaxPending: 10, MaxBytes: 1 << 20, MaxInFlight: 2, MaxPerSecond: 7, MaxStarts: 4, MaxStartsOfAll: 30, MinDelay: 2 * time.Second}
	a, b := got[0], got[1]
	if a.Ceilings != want || a.MaxPending != 10 || a.MaxBytes != 1<<20 || a.MaxInFlight != 2 || a.MaxPerSecond != 0 || a.Delivery.Timeout != time.Minute-1 {
		t.Errorf("a source that names much: %+v", a)
	}
	if b.Ceilings != want || b.MaxPending != 3 || b.MaxBytes != 1<<20 || b.MaxInFlight != 2 || b.MaxPerSecond != 7 || b.Delivery.Timeout != time.Minute {
		t.Errorf("a source that names little: %+v", b)
	}
}

// A bad object is refused by name.
func TestFromObject_RefusalNamesTheObject(t *testing.T) {
	t.Parallel()
	o := &v1alpha1.RescheduleSource{ObjectMeta: metav1.ObjectMeta{Namespace: "ops", Name: "a"}}
	long := "P36526D"
	o.Spec.Delay = &long
	got, err := FromObject(o, schedule.Targets{}, nil)
	if err == nil || got != nil {
		t.Fatalf("accepted: %+v", got)
	}
	for _, want := range []string{"sources: ops/a: ", "spec.sink.ref, spec.sink.uri: ", "spec.delay: "} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}

// The resource's package cannot reach the parser, and a CEL rule cannot
// either; so its patterns must take exactly what the parser takes, but for the
// upper limit.
func FuzzDurationPatterns(f *testing.F) {
	for _, seed := range []string{
		"", "0", "0s", "30", "5m30s", "1.5h", ".5s", "5.s", ".s", "1h1h", "-1s", "+1s", " 1s", "1 s", "1s ", "1d", "1µs", "1μs", "1us", "s", "1e3s", "1,5s", "1s\n",
		"P", "PT", "P1", "P1W", "P1D", "P1WT1S", "P1W2D", "P1W2DT3H4.5S", "P1DT2H3M4S", "PT0.5S", "PT0,5S", "PT.5S", "PT5.S", "PT.S", "P1.5DT1S", "PT1M1H", "P1Y", "P1M", "PT1S1S",
		"P-1D", "-P1D", "p1d", "PT1", "P1T1S", "P1DT", "T1S", "P1D1W", "P36525D", "P36526D", "99999999999999999999s", "PT99999999999999999999S", "PT1HP1D",
	} {
		f.Add(seed)
	}
	goPattern, isoPattern := regexp.MustCompile(v1alpha1.GoDurationPattern), regexp.MustCompile(v1alpha1.ISODurationPattern)
	disagree := func(matches bool, err error) bool {
		return matches == (err != nil) && !(matches && strings.Contains(err.Error(), "more than 100 years"))
	}
	f.Fuzz(func(t *testing.T, s string) {
		iso, either := isoPattern.MatchString(s), isoPattern.MatchString(s) || goPattern.MatchString(s)
		if _, err := schedule.ParseISODuration("f", s); disagree(iso, err) {
			t.Errorf("%q: the ISO 8601 pattern says %v, the parser %v", s, iso, err)
		}
		exact, err := schedule.ParseDuration("f", s)
		if disagree(either, err) {
			t.Errorf("%q: the patterns say %v, the parser %v", s, either, err)
		}
		rough, roughErr := v1alpha1.ParseDuration(s)
		if off := (rough - exact).Abs(); (roughErr == nil) != (err == nil) && exact < schedule.MaxDuration || roughErr == nil && err == nil && off > time.Microsecond+exact>>40 {
			t.Errorf("%q: %s (%v) for a comparison, exactly %s (%v)", s, rough, roughErr, exact, err)
		}
	})
}

// A sink counts as awake for 10 s after a delivery, or for as long as its workload stays awake.
func TestFromObject_CompanyIsTheCooldown(t *testing.T) {
	t.Parallel()
	o := &v1alpha1.RescheduleSource{}
	for _, c := range []struct {
		scale *v1alpha1.RescheduleSourceScale
		want  time.Duration
	}{
		{nil, schedule.DefaultCompany},
		{&v1alpha1.RescheduleSourceScale{TargetRef: v1alpha1.ScaleTarget{APIVersion: "apps/v1", Kind: "Deployment", Name: "a"}, Cooldown: new("1m")}, time.Minute},
	} {
		o.Namespace, o.Name, o.Spec.Scale = "ops", "a", c.scale
		o.Spec.Sink.Ref = &duckv1.KReference{APIVersion: "v1", Kind: "Service", Name: "a"}
		if src, err := FromObject(o, schedule.Targets{}, nil); err != nil || src.Company != c.want {
			t.Errorf("%v, want %v, %v", src, c.want, err)
		}
	}
}
