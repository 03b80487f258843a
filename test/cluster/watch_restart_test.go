package cluster

import (
	"flag"
	"fmt"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// The tests of this file stop what all tests use, so none of them is parallel.

// keeper is a source whose deliveries are counted, over restarts.
type keeper struct {
	*source
	objects
	sink    *harness.Sink
	want    map[string]int
	markers int
}

func (k *keeper) next(verb, name string) {
	k.source.t.Helper()
	key := "Website/" + k.objects.namespace + "/" + name
	settle(k.source.t, func() bool { return k.runs()[key] > k.want[key] }, "%s %s does not come", verb, name)
	d := k.sink.Next(k.source.t, "in", key)
	k.want[key]++
	if want := "dev.knative.apiserver.ref." + verb; d.Attr("type") != want {
		k.source.t.Errorf("%s has an event of type %s, want %s", key, d.Attr("type"), want)
	}
}

// settled makes a change, waits for its delivery, and requires that the runs of all keys are
// the runs in want.
func (k *keeper) settled() {
	k.source.t.Helper()
	k.markers++
	name := fmt.Sprint("marker-", k.markers)
	k.apply(website, name, "1")
	k.next("add", name)
	k.idle()
	// A delivery may come before its change is durable, and a change that kill -9 undoes is reported again, as another
	// run. A DELETE of nothing returns once all before it is durable.
	if r := k.call(k.token, "DELETE", "/schedules?prefix=none", ""); r.Status != 200 {
		k.source.t.Fatal(r.Status, string(r.Body))
	}
	if got := k.runs(); !maps.Equal(got, k.want) {
		k.source.t.Errorf("runs by key: %v, want %v", got, k.want)
	}
}

// runs are the runs by key. A delivery that kill -9 came before the end of is repeated
// under its id, and is the same run.
func (k *keeper) runs() map[string]int {
	n, ids := map[string]int{}, map[string]bool{}
	for _, d := range k.sink.Of("in", "") {
		if id := d.Attr("id"); !ids[id] {
			ids[id] = true
			n[d.Key]++
		}
	}
	return n
}

// lists are the lists of a result that the adapter has made.
func (k *keeper) lists(result string) int {
	k.source.t.Helper()
	r, err := harness.Do(k.source.t.Context(), "GET", k.adapter.Admin+"/metrics", "")
	if err != nil {
		k.source.t.Fatal(err)
	}
	n := 0
	for _, m := range regexp.MustCompile(`(?m)^reschedule_watch_lists_total\{[^}]*result="`+result+`"[^}]*\} (\d+)`).FindAllSubmatch(r.Body, -1) {
		i, _ := strconv.Atoi(string(m[1])) // it is digits
		n += i
	}
	return n
}

// hack/test-upgrade.sh sets it.
var older = flag.String("upgrade.from", "", "PROGRAM of an older adapter that knows spec.watch; default this one, which shows that nothing is lost over restarts")

// step is the next program that serves a source.
type step struct {
	program string // "" = of this checkout
	killed  bool   // the program before it, as by a power loss; else it ends in good order
	expired bool   // the version of the watch, since an API server forgets at its restart: each list takes 10 s
}

const byExpression = `resources: [{apiVersion: watch.test/v1, kind: Website}, {apiVersion: v1, kind: ConfigMap, key: "['Site/' + object.metadata.labels['site'], 'All/' + object.metadata.name]"}]`

// sited makes or changes a ConfigMap, which has two keys.
func (k *keeper) sited(name, site string) { k.apply(configMap, name, site, "[]") }

// caused wants a run of each key.
func (k *keeper) caused(keys ...string) {
	k.source.t.Helper()
	for _, key := range keys {
		settle(k.source.t, func() bool { return k.runs()[key] > k.want[key] }, "%s does not come", key)
		k.want[key]++
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

// serve ends the adapter, lets objects change, and starts the next program.
func (k *keeper) serve(next step, meanwhile func()) {
	t := k.source.t
	t.Helper()
	if next.killed {
		k.adapter.Kill()
	} else if status, _, err := k.adapter.Terminate(t.Context()); err != nil || status != 0 {
		t.Fatalf("the adapter ended with status %d: %v", status, err)
	}
	meanwhile()
	if next.expired {
		k.restartAPI()
	}
	k.program = next.program
	if err := k.startAdapter(); err != nil {
		t.Fatal(err)
	}
}

func (k *keeper) restartAPI() {
	k.source.t.Helper()
	server.StopAPI()
	if err := server.StartAPI(k.source.t.Context()); err != nil {
		k.source.t.Fatal(err)
	}
}

// What happened while the adapter or the API server was down is reported once; a restart, and a list after a version that
// expired, report nothing else. With an older program, a source is served by it, by this one, and by both again.
func TestUpgrade_WatchingSourceAndBack(t *testing.T) {
	p, sink := running(t), newSink(t)
	steps := []step{{killed: true}, {expired: true}}
	if *older != "" {
		steps = []step{{}, {program: *older}, {killed: true, expired: true}, {program: *older, killed: true, expired: true}, {}}
		p.program = *older
		p.adapter.Kill()
		if err := p.startAdapter(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if p.program != "" { // the test has failed
				p.adapter.Kill()
				p.program = ""
				if err := p.startAdapter(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	o := watched(t, "upgraded")
	o.permit(o.namespace, "websites", "configmaps")
	k := &keeper{source: o.source(p, "x", watching(sink, "in", byExpression)), objects: o, sink: sink, want: map[string]int{}}
	k.watches("True", "")
	for _, name := range []string{"same", "changed", "again", "deleted-0"} {
		k.apply(website, name, "0")
		k.next("add", name)
	}
	for _, name := range []string{"moved", "deleted-0"} {
		k.sited(name, name+"-0")
		k.caused("Site/"+name+"-0", "All/"+name)
	}
	k.settled()

	site := "moved-0" // of the ConfigMap moved
	for i, step := range steps {
		gone, made := fmt.Sprint("deleted-", i), fmt.Sprint("deleted-", i+1)
		from, to := site, "moved-"+strings.Repeat("x", i%2*40)+strconv.Itoa(i+1) // what is remembered of it becomes larger, and smaller
		k.serve(step, func() {
			k.objects.status(k.apply(website, "same", "0"), fmt.Sprintf(`{"seen":"%d"}`, i))
			k.apply(website, "changed", to)
			k.objects.delete(k.read(fmt.Sprintf(website, gone, "")))
			k.apply(website, made, "0")
			k.objects.delete(k.read(fmt.Sprintf(website, "again", "")))
			k.apply(website, "again", "0")
			k.sited("moved", to)
			k.objects.delete(k.read(fmt.Sprintf(configMap, gone, "", "[]")))
			k.sited(made, made+"-0")
		})
		k.next("update", "changed")
		k.next("delete", gone)
		k.next("add", made)
		k.replaced("again")
		k.caused("Site/"+from, "Site/"+to, "All/moved", "Site/"+gone+"-0", "All/"+gone, "Site/"+made+"-0", "All/"+made)
		k.settled()
		if n := k.lists("gone"); step.expired != (n > 0) {
			t.Errorf("%d watches expired: %v was expected", n, step.expired)
		}
		if n := k.lists("complete"); n > 0 && !step.expired && *older == "" {
			t.Errorf("%d lists after a restart, whose version is recent", n)
		}

		// What changes while it runs comes too, and goes on from the versions and marks of the other program.
		k.apply(website, "changed", to+"-running")
		k.next("update", "changed")
		site = to + "-running"
		k.sited("moved", site)
		k.caused("Site/"+to, "Site/"+site, "All/moved")
		k.settled()
	}
	k.restartAPI() // while the adapter runs
	k.apply(website, "changed", "last")
	k.next("update", "changed")
	k.settled()
	k.ready()
}
