package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk"
)

// TestResync_GoesPageByPage lists many objects, and the list expires meanwhile.
func TestResync_GoesPageByPage(t *testing.T) {
	t.Setenv("K_REVISION", "op-1")
	f := newFakeSource(t, 100*ms)
	f.suspended = true
	defer f.close()
	expired := apierrors.NewResourceExpired("too old")
	expired.ErrStatus.Continue = "b2"
	pages := map[string]struct {
		names []string
		next  string
		err   error
	}{
		"one ": {names: []string{"a"}, next: "b"}, "one b": {err: expired}, "one b2": {names: []string{"b", "c"}, next: "d"}, "one d": {names: []string{"d"}},
		"two ": {names: []string{"e"}, next: "f"}, "two f": {names: []string{"f"}}, "one gone": {err: &apierrors.StatusError{ErrStatus: metav1.Status{Reason: metav1.StatusReasonGone}}},
		"zero ": {},
	}
	o := cluster()
	o.Cache.DefaultNamespaces = map[string]cache.Config{"zero": {}, "two": {}, "one": {}}
	o.NewClient = func(*rest.Config, client.Options) (client.Client, error) {
		return fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			List: func(_ context.Context, _ client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
				asked := &client.ListOptions{}
				asked.ApplyOptions(opts)
				p, ok := pages[asked.Namespace+" "+asked.Continue]
				if !ok || asked.Limit != pageSize {
					return fmt.Errorf("no such page: %v", asked)
				}
				for _, name := range p.names {
					l.(*corev1.ConfigMapList).Items = append(l.(*corev1.ConfigMapList).Items, *configMap(name, 1))
				}
				l.SetContinue(p.next)
				return p.err
			},
		}).Build(), nil
	}
	op := startManager(t, o, (&configs{}).SetupWithManager, WithClient(f.client()), WithResync(Resync{Every: time.Hour}))
	eventually(t, "the mark", func() (bool, string) { c := f.called(); return c == "replace resync/configmap 0s", c })
	data := string(f.of("resync/configmap").event.Data)
	for i, want := range []struct{ calls, after, data string }{
		{"earliest ConfigMap/ns/a 0s", "1ms", `{"controller":"configmap","namespace":"one","continue":"b","revision":"op-1"}`},
		{"", "1ms", `{"controller":"configmap","namespace":"one","continue":"b2","revision":"op-1"}`},
		{"earliest ConfigMap/ns/b 0s, earliest ConfigMap/ns/c 0s", "1ms", `{"controller":"configmap","namespace":"one","continue":"d","revision":"op-1"}`},
		{"earliest ConfigMap/ns/d 0s", "1ms", `{"controller":"configmap","namespace":"two","revision":"op-1"}`},
		{"earliest ConfigMap/ns/e 0s", "1ms", `{"controller":"configmap","namespace":"two","continue":"f","revision":"op-1"}`},
		{"earliest ConfigMap/ns/f 0s", "1ms", `{"controller":"configmap","namespace":"zero","revision":"op-1"}`},
		{"", "1h0m0s", `{"controller":"configmap"}`},
	} {
		a := op.send(dueEvent("resync/configmap"), data)
		if calls := f.called(); calls != want.calls || a.after != want.after || a.body != want.data {
			t.Errorf("%d: answered with %s %s, called %q", i, a, a.body, calls)
		}
		data = a.body
	}
	if a := op.send(dueEvent("resync/configmap"), `{"namespace":"zzz"}`); a.after != "1h0m0s" {
		t.Errorf("a namespace that is not listed any more is answered with %s", a)
	}
	first := pages["zero "]
	first.err = pages["one gone"].err
	pages["zero "] = first
	for data, want := range map[string]string{
		`{"namespace":"zero"}`: "503", `{"continue":"gone"}`: "200 1ms", `{"continue":"nowhere"}`: "503", `{"revision":"op-2"}`: "503",
	} {
		if a := op.send(dueEvent("resync/configmap"), data); a.String() != want {
			t.Errorf("%s: answered with %s %s", data, a, a.body)
		}
	}
	for data, want := range map[string]string{"": "204 never", `{"revision":"op-2"}`: "503"} {
		if a := op.send(dueEvent("resync/former"), data); a.String() != want {
			t.Errorf("the mark %q of a controller of old is answered with %s", data, a)
		}
	}
}

// TestResync_ListsTheCachesScopes is about the namespaces and selectors of the
// manager's cache.
func TestResync_ListsTheCachesScopes(t *testing.T) {
	t.Parallel()
	selector := func(s string) labels.Selector {
		l, err := labels.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	field := fields.OneTermEqualSelector("metadata.name", "a")
	o := cluster()
	mapper, err := o.MapperProvider(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	mapper.(*meta.DefaultRESTMapper).AddSpecific(corev1.SchemeGroupVersion.WithKind("Node"), corev1.SchemeGroupVersion.WithResource("nodes"), corev1.SchemeGroupVersion.WithResource("node"), meta.RESTScopeRoot)
	two := map[string]cache.Config{"b": {LabelSelector: selector("of=b")}, "a": {}}
	for name, row := range map[string]struct {
		options cache.Options
		object  client.Object
		want    string
	}{
		"nothing":                    {cache.Options{}, &corev1.ConfigMap{}, " <nil> <nil>"},
		"selectors":                  {cache.Options{DefaultLabelSelector: selector("x=y"), DefaultFieldSelector: field}, &corev1.ConfigMap{}, " x=y metadata.name=a"},
		"namespaces":                 {cache.Options{DefaultNamespaces: two, DefaultLabelSelector: selector("x=y")}, &corev1.ConfigMap{}, "a x=y <nil>, b of=b <nil>"},
		"no namespaces for the kind": {cache.Options{DefaultNamespaces: two, DefaultLabelSelector: selector("x=y")}, &corev1.Node{}, " x=y <nil>"},
		"of the kind": {cache.Options{DefaultNamespaces: two, ByObject: map[client.Object]cache.ByObject{
			&corev1.ConfigMap{}: {Label: selector("kind=c"), Namespaces: map[string]cache.Config{"b": {}, "c": {FieldSelector: field}}}, &corev1.Secret{}: {Field: field},
		}}, &corev1.ConfigMap{}, "b kind=c <nil>, c kind=c metadata.name=a"},
		"selectors of the kind": {cache.Options{DefaultNamespaces: two, ByObject: map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Field: field}}}, &corev1.ConfigMap{}, "a <nil> metadata.name=a, b of=b metadata.name=a"},
	} {
		row.options.Mapper = mapper
		in := &informers{scheme: scheme.Scheme, options: row.options}
		k, err := kindOf(row.object, scheme.Scheme)
		if err != nil {
			t.Fatal(err)
		}
		scopes, err := in.scopes(k)
		var got []string
		for _, s := range scopes {
			got = append(got, fmt.Sprint(s.Namespace, " ", s.LabelSelector, " ", s.FieldSelector))
		}
		if got := strings.Join(got, ", "); got != row.want || err != nil {
			t.Errorf("%s: lists %q, %v, want %q", name, got, err, row.want)
		}
	}
}

// TestResync_IsRetriedUntilScheduled begins while the source is down.
func TestResync_IsRetriedUntilScheduled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeSource(t, time.Second)
		f.suspended, f.dead = true, true
		defer f.close()
		s := newServer([]Option{WithClient(f.client()), WithResync(Resync{})})
		q := newQueue("c", nil)
		q.kind.Kind = "C"
		s.queues = []*queue{newQueue("forless", nil), q}
		var asked sync.WaitGroup
		asked.Go(func() { s.askForResync(t.Context()) })
		time.Sleep(10 * time.Minute)
		f.mu.Lock()
		f.dead = false
		f.mu.Unlock()
		asked.Wait()
		if calls := f.called(); calls != "replace resync/c 0s" {
			t.Errorf("called %q", calls)
		}
		s.askForResync(t.Context())
		if calls := f.called(); calls != "" {
			t.Errorf("the same revision called %q", calls)
		}
	})
}

// TestResync_OncePerRevision finds objects that had no event, through the real
// adapter.
func TestResync_OncePerRevision(t *testing.T) {
	lis := listen(t)
	address := adapter(t, map[string]string{"configs": fmt.Sprintf("\n  sink: {uri: \"http://%s\"}%s\n", lis.Addr(), canonical)})
	c, err := sdk.New(address + "configs")
	if err != nil {
		t.Fatal(err)
	}
	var objects []client.Object
	for i := range 7 {
		objects = append(objects, configMap(fmt.Sprint("c", i), 1))
	}
	const key = "resync/configmap"
	var last *sdk.Schedule
	for i, revision := range []string{"op-00001", "op-00002"} {
		t.Setenv("K_REVISION", revision)
		if i > 0 {
			lis = listenAt(t, lis.Addr().String())
		}
		ours := &configs{busy: map[reconcile.Request]bool{}}
		op := startManager(t, cluster(objects...), func(m ctrl.Manager) error {
			ours.Client = m.GetClient()
			return ours.SetupWithManager(m)
		}, WithListener(lis), WithClient(c), WithResync(Resync{Window: 100 * ms}))
		var runs []string
		eventually(t, "a run of every object, and nothing left but the mark", func() (bool, string) {
			runs = append(runs, ours.ran()...)
			n, err := c.Counts(t.Context())
			if err != nil {
				return false, err.Error()
			}
			s, err := c.Get(t.Context(), key)
			last = s
			return err == nil && s.State == sdk.Waiting && s.Reason == revision && time.Until(s.DueAt) > maxWait/2 && n.Pending+n.InFlight == 1, fmt.Sprint(runs, n, s, err)
		})
		runs = append(runs, ours.ran()...)
		slices.Sort(runs)
		if len(runs) != len(objects) || len(slices.Compact(runs)) != len(objects) {
			t.Errorf("%s: ran %q", revision, runs)
		}
		op.manager.server.askForResync(t.Context())
		if s, err := c.Get(t.Context(), key); err != nil || s.Revision != last.Revision {
			t.Errorf("%s: another start asks again: %v, %v", revision, s, err)
		}
		for of, want := range map[string]bool{"op-0": false, revision: true, "": true} {
			p, err := op.manager.server.planner().due(key, due{Revision: of})
			if (err == nil) != want || (p.resync != nil) != want {
				t.Errorf("%s: the resync of %q is planned as %v, %v", revision, of, p, err)
			}
		}
		if err := op.stop(); err != nil {
			t.Error(err)
		}
	}
	if _, err := NewManager(&rest.Config{}, cluster(), WithResync(Resync{})); err == nil || !strings.Contains(err.Error(), "WithClient") {
		t.Errorf("without a client: %v", err)
	}
}

// TestResync_ListsOfAllForms says that a list has the type in which a controller
// handles its objects.
func TestResync_ListsOfAllForms(t *testing.T) {
	t.Parallel()
	gvk := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	for form, want := range map[form]string{typed: "*v1.ConfigMapList /, Kind=", unstructuredForm: "*unstructured.UnstructuredList /v1, Kind=ConfigMapList", metadataForm: "*v1.PartialObjectMetadataList /v1, Kind=ConfigMapList"} {
		l, err := listOf(kind{gvk, form}, scheme.Scheme)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprintf("%T %s", l, l.GetObjectKind().GroupVersionKind()); got != want {
			t.Errorf("%v: %s, want %s", form, got, want)
		}
	}
	if _, err := listOf(kind{GroupVersionKind: gvk.GroupVersion().WithKind("Nothing")}, scheme.Scheme); err == nil {
		t.Error("a list of nothing")
	}
}
