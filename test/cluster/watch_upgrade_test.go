package cluster

import (
	"flag"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// hack/test-upgrade.sh sets it.
var older = flag.String("upgrade.from", "", "PROGRAM of an older adapter that knows spec.watch; default this one, which shows that nothing is lost over restarts")

// upgraded is a source that watches Websites by their own keys, and ConfigMaps by two keys of an expression.
type upgraded struct {
	*keeper
	p *programs
}

const byExpression = `resources: [{apiVersion: watch.test/v1, kind: Website}, {apiVersion: v1, kind: ConfigMap, key: "['Site/' + object.metadata.labels['site'], 'All/' + object.metadata.name]"}]`

// keysOf are the keys that the expression yields for a ConfigMap.
func keysOf(name, site string) []string { return []string{"Site/" + site, "All/" + name} }

// sited makes or changes a ConfigMap, and wants nothing.
func (u *upgraded) sited(name, site string) { u.apply(configMap, name, site, "[]") }

// caused wants a run of each key.
func (u *upgraded) caused(keys ...string) {
	u.source.t.Helper()
	for _, key := range keys {
		settle(u.source.t, func() bool { return u.runs()[key] > u.want[key] }, "%s does not come", key)
		u.want[key]++
	}
}

// replaced wants the run of an object that was made again. Its deletion before it may be a run too.
func (k *keeper) replaced(name string) {
	t, key := k.source.t, "Website/"+k.objects.namespace+"/"+name
	t.Helper()
	uid := string(k.apply(website, name, "0").GetUID())
	k.sink.Find(t, "the object that was made again", func([]*harness.Delivery) bool {
		all := k.sink.Of("in", key)
		d := all[len(all)-1]
		k.want[key] = k.runs()[key]
		return d.Attr("type") == "dev.knative.apiserver.ref.add" && strings.Contains(string(d.Body), uid)
	})
}

// serve ends the adapter, in good order or as a power loss would, lets objects change, and starts a program.
func (u *upgraded) serve(program string, killed bool, meanwhile func()) {
	t := u.source.t
	t.Helper()
	if killed {
		u.p.adapter.Kill()
	} else if status, _, err := u.p.adapter.Terminate(t.Context()); err != nil || status != 0 {
		t.Fatalf("the adapter ended with status %d: %v", status, err)
	}
	meanwhile()
	u.p.program = program
	u.start()
}

// marks wants the adapter to know how many objects are watched and, if it knows them at all, how many bytes
// are remembered of them.
func (u *upgraded) marks(bytes bool) {
	t := u.source.t
	t.Helper()
	n, size := 0, int64(0)
	for kind, keys := range map[string]func(*unstructured.Unstructured) []string{
		fmt.Sprintf(website, "x", ""): func(*unstructured.Unstructured) []string { return nil },
		fmt.Sprintf(configMap, "x", "", "[]"): func(o *unstructured.Unstructured) []string {
			return keysOf(o.GetName(), o.GetLabels()["site"])
		},
	} {
		client, err := server.Resource(u.read(kind).GroupVersionKind(), u.objects.namespace)
		if err != nil {
			t.Fatal(err)
		}
		list, err := client.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			m := store.Mark{Object: o.GetNamespace() + "/" + o.GetName(), UID: string(o.GetUID()), Keys: keys(o)}
			n, size = n+1, size+m.Size()
		}
	}
	settle(t, func() bool { // a change is counted once it is stored, and its run may be quicker
		r := u.call(u.token, "GET", "", "")
		return strings.Contains(string(r.Body), fmt.Sprintf(`"watched":%d}`, n))
	}, "%d objects are not watched", n)
	if !bytes {
		return
	}
	var got string
	defer func() {
		if t.Failed() {
			t.Logf("the marks have %q bytes by the metric, and %d by the objects", got, size)
		}
	}()
	settle(t, func() bool {
		r, err := harness.Do(t.Context(), "GET", u.p.adapter.Admin+"/metrics", "")
		if err != nil {
			return false
		}
		got = ""
		if m := regexp.MustCompile(`(?m)^reschedule_watch_stored_bytes\{[^}]*"` + u.objects.namespace + `"[^}]*\} (\S+)`).FindSubmatch(r.Body); m != nil {
			got = string(m[1])
		}
		n, err := strconv.ParseFloat(got, 64)
		return err == nil && int64(n) == size
	}, "the bytes of marks are not %d", size)
}

// A source that watches is served by the older adapter, by this one, and by both again. A change, a deletion and an
// object that is made while none of them runs are reported once, nothing else is, and the bytes of marks are right after
// each step.
func TestUpgrade_WatchingSourceAndBack(t *testing.T) {
	p, sink := running(t), newSink(t)
	t.Cleanup(func() {
		if p.program != "" { // the test has failed
			p.adapter.Kill()
			p.program = ""
			if err := p.startAdapter(); err != nil {
				t.Error(err)
			}
		}
	})
	o := watched(t, "upgraded")
	o.permit(o.namespace, "websites", "configmaps")
	u := &upgraded{p: p}
	p.program = *older
	p.adapter.Kill()
	if err := p.startAdapter(); err != nil {
		t.Fatal(err)
	}
	s := o.source(p, "x", watching(sink, "in", byExpression))
	u.keeper = &keeper{source: s, objects: o, sink: sink, want: map[string]int{}}
	s.watches("True", "")
	for _, name := range []string{"same", "changed", "again", "deleted-0"} {
		u.apply(website, name, "0")
		u.next("add", name)
	}
	for _, name := range []string{"same", "moved", "deleted-0"} {
		u.sited(name, name+"-0")
		u.caused(keysOf(name, name+"-0")...)
	}
	u.settled()
	u.marks(*older == "")

	site := "moved-0" // of the ConfigMap moved
	for i, step := range []struct {
		program string
		killed  bool // the program of the previous step
		lists   bool // the version of the watch has expired; each list takes 10 s, and TestWatchRestart has them without an older one
	}{{"", false, false}, {*older, false, false}, {"", true, true}, {*older, true, true}, {"", false, false}} {
		lists := step.lists && *older != ""
		gone, made := fmt.Sprint("deleted-", i), fmt.Sprint("deleted-", i+1)
		from, to := site, "moved-"+strings.Repeat("x", i%2*40)+strconv.Itoa(i+1) // the mark becomes larger, and smaller
		u.serve(step.program, step.killed, func() {
			u.apply(website, "changed", to)
			u.objects.delete(u.read(fmt.Sprintf(website, gone, "")))
			u.apply(website, made, "0")
			u.objects.delete(u.read(fmt.Sprintf(website, "again", "")))
			u.apply(website, "again", "0")
			u.sited("moved", to)
			u.objects.delete(u.read(fmt.Sprintf(configMap, gone, "", "[]")))
			u.sited(made, made+"-0")
			if lists { // the API server forgets at its restart
				server.StopAPI()
				if err := server.StartAPI(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
		})
		u.next("update", "changed")
		u.next("delete", gone)
		u.next("add", made)
		u.replaced("again")
		u.caused("Site/"+from, "Site/"+to, "All/moved")
		u.caused(keysOf(gone, gone+"-0")...)
		u.caused(keysOf(made, made+"-0")...)
		u.settled()
		u.marks(step.program == "")
		if n := u.lists("gone"); lists != (n > 0) {
			t.Errorf("%d watches expired: %v was expected", n, lists)
		}

		// What changes while it runs comes too, and goes on from the versions and marks of the other program.
		u.apply(website, "changed", to+"-running")
		u.next("update", "changed")
		site = to + "-running"
		u.sited("moved", site)
		u.caused("Site/"+to, "Site/"+site, "All/moved")
		u.settled()
		u.marks(step.program == "")
	}
}
