package cluster

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// kill ends the adapter as a power loss would.
func (k *keeper) kill() { k.adapter.Kill() }

func (k *keeper) start() {
	k.source.t.Helper()
	if err := k.startAdapter(); err != nil {
		k.source.t.Fatal(err)
	}
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

// What happened while the adapter or the API server was down is reported once; a
// restart, and a list after a version that expired, report nothing else.
func TestWatchRestart_ReportsOnlyWhatChanged(t *testing.T) {
	p, sink := running(t), newSink(t)
	o := watched(t, "memory")
	o.permit(o.namespace, "websites")
	k := &keeper{source: o.source(p, "x", watching(sink, "in", websites)), objects: o, sink: sink, want: map[string]int{}}
	k.watches("True", "")
	for _, name := range []string{"a", "b", "c", "same"} {
		k.apply(website, name, "1")
		k.next("add", name)
	}
	k.settled()

	// Nothing happened.
	k.kill()
	k.start()
	k.settled()
	if n := k.lists("complete"); n != 0 {
		t.Errorf("%d lists after a restart, whose version is recent", n)
	}

	// Changes and deletions.
	k.kill()
	a, c := k.read(fmt.Sprintf(website, "a", "1")), k.read(fmt.Sprintf(website, "c", "1"))
	k.objects.delete(a)
	b := k.apply(website, "b", "2")
	k.objects.delete(c)
	k.apply(website, "c", "1")
	k.apply(website, "d", "1")
	k.start()
	k.next("delete", "a")
	k.next("update", "b")
	k.next("add", "d")
	again, key := string(k.apply(website, "c", "1").GetUID()), "Website/"+o.namespace+"/c"
	sink.Find(t, "the object that was made again", func([]*harness.Delivery) bool { // its deletion before it may be a run too
		k.want[key] = k.runs()[key]
		all := sink.Of("in", key)
		d := all[len(all)-1]
		return d.Attr("type") == "dev.knative.apiserver.ref.add" && strings.Contains(string(d.Body), again)
	})
	k.settled()

	// The version expires: the API server forgets at its restart.
	k.kill()
	k.objects.delete(b)
	k.objects.status(k.apply(website, "same", "1"), `{"seen":true}`)
	k.apply(website, "d", "2")
	server.StopAPI()
	if err := server.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.start()
	k.next("delete", "b")
	k.next("update", "d")
	k.settled()
	if n := k.lists("gone"); n == 0 {
		t.Error("the version did not expire: the test proves nothing")
	}

	// The API server is away while the adapter runs.
	server.StopAPI()
	if err := server.StartAPI(t.Context()); err != nil {
		t.Fatal(err)
	}
	k.apply(website, "d", "3")
	k.next("update", "d")
	k.settled()
	k.ready()
}

var watchKills = flag.Int("watch.kills", 6, "how often the adapter is killed while objects change")

// However often the adapter is killed while objects change, the last run of each object
// is of its last change.
func TestWatchRestart_KillsLoseNothing(t *testing.T) {
	p, sink := running(t), newSink(t)
	o := watched(t, "killed")
	o.permit(o.namespace, "websites")
	s := o.source(p, "x", watching(sink, "in", websites))
	s.watches("True", "")
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	kills, writes := rand.New(rand.NewPCG(seed, 1)), rand.New(rand.NewPCG(seed, 2))
	client, err := server.Resource(o.read(fmt.Sprintf(website, "x", "")).GroupVersionKind(), o.namespace)
	if err != nil {
		t.Fatal(err)
	}
	stop, n := make(chan struct{}), 0
	var writer sync.WaitGroup
	writer.Go(func() {
		for ; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprint("w-", writes.IntN(20))
			if writes.IntN(4) == 0 {
				_ = client.Delete(t.Context(), name, metav1.DeleteOptions{}) // it may not exist
				continue
			}
			if _, err := client.Apply(t.Context(), name, o.read(fmt.Sprintf(website, name, strconv.Itoa(n))), metav1.ApplyOptions{FieldManager: "kube-test"}); err != nil {
				t.Error(err)
			}
		}
	})
	for range *watchKills {
		<-time.After(time.Duration(kills.IntN(1500)) * time.Millisecond)
		p.adapter.Kill()
		if err := p.startAdapter(); err != nil {
			t.Error(err)
			break
		}
	}
	close(stop)
	writer.Wait()
	list, err := client.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{} // the version of each object that there is
	for i := range list.Items {
		want["Website/"+o.namespace+"/"+list.Items[i].GetName()] = list.Items[i].GetResourceVersion()
	}
	var lacks string
	settle(t, func() bool {
		last := map[string]*harness.Delivery{}
		for _, d := range sink.Of("in", "") {
			last[d.Key] = d
		}
		for key, version := range want {
			if d := last[key]; d == nil || !strings.Contains(string(d.Body), `"resourceVersion":"`+version+`"`) {
				lacks = key
				return false
			}
		}
		for key, d := range last {
			if want[key] == "" && d.Attr("type") != "dev.knative.apiserver.ref.delete" {
				lacks = key
				return false
			}
		}
		return true
	}, "the last run of an object is not of its last change (seed %d)", seed)
	if t.Failed() {
		t.Log(lacks)
	}
	t.Logf("%d writes, %d runs", n, len(sink.Of("in", "")))
	s.idle()
}
