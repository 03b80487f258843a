package cluster

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

var allFaults = flag.Bool("faults.all", false, "all faults, with 200 objects: some ten minutes")

// forms are the paths of the recorder, in the order of the table.
var forms = []string{"/apiserversource", "/watch", "/resident"}

// fault is one that the forms meet while objects change.
type fault struct {
	name   string
	happen func(w *comparison) error
}

const faultTime = 10 * time.Second

// apart is how many needless runs are no failure: on a busy machine the events of two
// changes of an object can come so far apart that the second one is a run of its own.
const apart = 2

// faults is the script. Each fault comes among changes, and is followed by quiet.
var faults = []fault{
	{"adapter and resident operator: `kill -9`, back after 10 s", func(w *comparison) error {
		w.p.adapter.Kill()
		w.resident.Kill()
		w.change(faultTime)
		return w.meanwhile(w.p.startAdapter, w.startResident)
	}},
	{"pod of ApiServerSource: `kill -9`, back after 10 s", func(w *comparison) error {
		w.receiver.Kill()
		w.change(faultTime)
		return w.meanwhile(w.startReceiver)
	}},
	{"rollout of each (SIGTERM)", func(w *comparison) error {
		return w.meanwhile(w.rollOut)
	}},
	{"API server: `kill -9`, back at once", func(w *comparison) error {
		server.StopAPI()
		return server.StartAPI(w.t.Context())
	}},
	{"API server: away for 30 s", func(w *comparison) error {
		server.StopAPI()
		<-time.After(3 * faultTime)
		return server.StartAPI(w.t.Context())
	}},
	{"all away for 10 s, etcd compacted meanwhile (410)", func(w *comparison) error {
		w.p.adapter.Kill()
		w.receiver.Kill()
		w.resident.Kill()
		w.change(faultTime)
		if err := server.Compact(w.t.Context()); err != nil {
			return err
		}
		server.StopAPI()
		if err := server.StartAPI(w.t.Context()); err != nil {
			return err
		}
		return w.meanwhile(w.p.startAdapter, w.startReceiver, w.startResident)
	}},
	{"sink, or reconcile: fails for 10 s", func(w *comparison) error {
		w.recorder.fail(true)
		w.change(faultTime)
		w.recorder.fail(false)
		return nil
	}},
}

// Over a script of faults, a watching source loses no change and wakes for nothing. With all faults the same changes and
// faults meet a resident operator of controller-runtime and an ApiServerSource before a source, for the table of
// docs/reliability.md: make watch-faults. Nothing is required of the two, and their programs take minutes to compile.
func TestWatchFaults_LoseNothingAndWakeForNothing(t *testing.T) {
	const kills = 4
	script := []fault{{"none", func(*comparison) error { return nil }}, {"adapter: `kill -9`, again and again", func(w *comparison) error {
		for range kills {
			w.change(time.Duration(w.random.IntN(1000)) * time.Millisecond)
			w.p.adapter.Kill()
			w.change(time.Duration(w.random.IntN(500)) * time.Millisecond)
			if err := w.meanwhile(w.p.startAdapter); err != nil {
				return err
			}
		}
		return nil
	}}}
	objects, among, needless := 20, time.Second, apart*kills
	if *allFaults {
		script, objects, among, needless = append(script[:1], faults...), 200, 5*time.Second, apart
	}
	w := newComparison(t, objects)
	var table strings.Builder
	table.WriteString("| fault | changes (of the status) | ApiServerSource: lost | needless (for a status) | `watch`: lost | needless | resident: lost | needless |\n|---|---|---|---|---|---|---|---|\n")
	for _, f := range script {
		since := time.Now()
		w.change(among)
		if err := f.happen(w); err != nil {
			t.Fatalf("%s: %v", f.name, err)
		}
		w.change(among)
		w.quiet(since)
		counts, others := w.made(since)
		fmt.Fprintf(&table, "| %s | %d (%d) |", f.name, counts+others, others)
		for _, form := range w.forms {
			v, report := w.judge(form, since)
			fmt.Fprintf(&table, " %d | %d", v.lost, v.needless)
			if form == forms[0] {
				fmt.Fprintf(&table, " (%d)", v.status)
			}
			table.WriteString(" |")
			t.Logf("%s: %s: lost %d, needless %d, %d with a change of the status: %s", f.name, form, v.lost, v.needless, v.status, report)
			if form == "/watch" && (v.lost > 0 || v.needless > needless) {
				t.Errorf("%s: watch lost %d changes and had %d needless runs", f.name, v.lost, v.needless)
			}
		}
		table.WriteString("\n")
		t.Logf("so far, after %s:\n%s", time.Since(w.began).Round(time.Second), table.String())
	}
}

// comparison is what the forms watch, and the forms.
type comparison struct {
	t       *testing.T
	p       *programs
	o       objects
	forms   []string // without all faults a watching source alone
	client  dynamic.ResourceInterface
	began   time.Time
	random  *rand.Rand
	objects int
	n       int                 // of changes
	changes map[string][]change // by key

	recorder           *runRecorder
	url                string // the recorder's
	receiver, resident *kube.Process
	binaries           map[string]string
	launched           int
	kubeconfig         string // of the account that watches
}

// newComparison starts the forms, makes objects, and waits until all forms have seen them.
func newComparison(t *testing.T, n int) *comparison {
	seed := uint64(time.Now().UnixNano())
	w := &comparison{
		t: t, p: running(t), o: watched(t, "faults"), forms: forms[1:2], objects: n, random: rand.New(rand.NewPCG(seed, 0)), began: time.Now(),
		changes: map[string][]change{}, recorder: &runRecorder{runs: map[string]map[string][]time.Time{}}, binaries: map[string]string{},
	}
	t.Logf("seed %d", seed)
	s := httptest.NewServer(w.recorder)
	t.Cleanup(s.Close)
	w.url = s.URL
	builds := map[string][2]string{}
	if *allFaults {
		w.forms = forms
		builds["resident"] = [2]string{"../operators", "./resident"}
		builds["receiver"] = [2]string{"../knative", "knative.dev/eventing/cmd/apiserver_receive_adapter"}
	}
	for name, from := range builds {
		w.binaries[name] = filepath.Join(scratch, name)
		cmd := exec.CommandContext(t.Context(), "go", "build", "-C", from[0], "-trimpath", "-tags", "grpcnotrace", "-o", w.binaries[name], from[1])
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("building the %s: %v: %s", name, err, out)
		}
	}
	w.o.permit(w.o.namespace, "websites")
	w.ok(func() (err error) {
		if w.client, err = server.Resource(w.o.read(fmt.Sprintf(website, "x", "")).GroupVersionKind(), w.o.namespace); err != nil {
			return err
		}
		w.kubeconfig, err = server.Kubeconfig(t.Context(), w.o.namespace, "watcher")
		return err
	})
	if *allFaults {
		w.beginReceiver()
	}
	w.o.source(w.p, "watches", fmt.Sprintf("sink: {uri: %q}\nwatch: {serviceAccountName: watcher, %s}\n", w.url+forms[1], websites)).watches("True", "")
	if *allFaults {
		w.ok(w.startResident)
		t.Cleanup(func() { w.resident.Kill() })
	}

	// The process of ApiServerSource says that it started, but not since when it watches.
	settle(t, func() bool {
		w.write("first", "spec")
		<-time.After(100 * time.Millisecond)
		for _, form := range w.forms {
			if len(w.runs(form, w.key("first"))) == 0 {
				return false
			}
		}
		return true
	}, "not all forms watch")
	for i := range n {
		w.write(fmt.Sprint("w-", i), "spec")
	}
	w.quiet(w.began)
	for _, form := range w.forms {
		if v, report := w.judge(form, w.began); v.lost > 0 {
			t.Fatalf("%s has not seen all objects: %s", form, report)
		}
	}
	return w
}

func (w *comparison) ok(f func() error) {
	w.t.Helper()
	if err := f(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *comparison) key(name string) string { return "Website/" + w.o.namespace + "/" + name }

// change makes ten changes a second for a while.
func (w *comparison) change(d time.Duration) {
	for end := time.After(d); ; {
		select {
		case <-end:
			return
		case <-time.After(100 * time.Millisecond):
			w.step()
		}
	}
}

// meanwhile goes on with changes while others work.
func (w *comparison) meanwhile(work ...func() error) error {
	done := make(chan error, 1)
	go func() {
		var err error
		for _, f := range work {
			if err == nil {
				err = f()
			}
		}
		done <- err
	}()
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(100 * time.Millisecond):
			w.step()
		}
	}
}

// step makes a random change: half of them of the spec, a third of the status, and of the
// rest one of two deletes an object, and the other deletes it and makes it again at once.
func (w *comparison) step() {
	name := fmt.Sprint("w-", w.random.IntN(w.objects))
	all := w.changes[w.key(name)]
	switch what := w.random.IntN(100); {
	case all[len(all)-1].counts && all[len(all)-1].state == "", what < 50:
		w.write(name, "spec")
	case what < 84:
		w.write(name, "status")
	case what < 92:
		w.write(name, "delete")
	default:
		w.write(name, "delete")
		w.write(name, "spec")
	}
}

// write makes a change and notes it.
func (w *comparison) write(name, what string) {
	w.t.Helper()
	w.n++
	c := change{from: time.Now(), counts: what != "status", state: strconv.Itoa(w.n)}
	var err error
	switch what {
	case "spec":
		_, err = w.client.Apply(w.t.Context(), name, w.o.read(fmt.Sprintf(website, name, c.state)), metav1.ApplyOptions{FieldManager: "kube-test"})
	case "status":
		_, err = w.client.Patch(w.t.Context(), name, "application/merge-patch+json", fmt.Appendf(nil, `{"status":{"seen":%q}}`, c.state), metav1.PatchOptions{}, "status")
	case "delete":
		c.state = ""
		err = w.client.Delete(w.t.Context(), name, metav1.DeleteOptions{})
	}
	if err != nil {
		w.t.Fatalf("%s of %s: %v", what, name, err)
	}
	c.to = time.Now()
	w.changes[w.key(name)] = append(w.changes[w.key(name)], c)
}

// made are the changes since an instant.
func (w *comparison) made(since time.Time) (counts, others int) {
	for _, all := range w.changes {
		for _, c := range all {
			if c.from.Before(since) {
				continue
			}
			if c.counts {
				counts++
			} else {
				others++
			}
		}
	}
	return counts, others
}

func (w *comparison) runs(form, key string) []time.Time {
	w.recorder.mu.Lock()
	defer w.recorder.mu.Unlock()
	return w.recorder.runs[form][key]
}

// sum is the sum of verdicts.
type sum struct{ lost, needless, status int }

// judge is the sum for a form since an instant, and names what is not as it should be.
func (w *comparison) judge(form string, since time.Time) (s sum, report string) {
	for key, changes := range w.changes {
		runs := w.runs(form, key)
		v := judge(changes, runs, since)
		s.needless += v.needless
		s.status += v.status
		if v.lost {
			s.lost++
		}
		if v.lost || v.needless > v.status {
			report += "\n" + key + ":"
			for _, c := range changes {
				if !c.from.Before(since) {
					report += fmt.Sprintf(" %.3f-%.3f=%s/%t", c.from.Sub(since).Seconds(), c.to.Sub(since).Seconds(), c.state, c.counts)
				}
			}
			for _, r := range runs {
				if !r.Before(since) {
					report += fmt.Sprintf(" run %.3f", r.Sub(since).Seconds())
				}
			}
		}
	}
	return s, report
}

// quiet waits, for a minute at most, until nothing is lost and no run has come for a
// while. The short script waits for what is lost by watch only.
func (w *comparison) quiet(since time.Time) {
	ended, calm, wait := time.Now(), 2*time.Second, forms[1:2]
	if *allFaults {
		calm, wait = 20*time.Second, forms
	}
	for time.Since(ended) < time.Minute {
		lost := 0
		for _, form := range wait {
			s, _ := w.judge(form, since)
			lost += s.lost
		}
		if lost == 0 && time.Since(ended) > calm && w.recorder.since() > calm {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
}

// launch starts a process with the rights of the account that watches.
func (w *comparison) launch(name string, env ...string) (*kube.Process, error) {
	w.launched++
	log := filepath.Join(scratch, fmt.Sprintf("%s-%d.log", name, w.launched))
	return kube.Launch(log, append(env, "KUBECONFIG="+w.kubeconfig, "NAMESPACE="+w.o.namespace), w.binaries[name])
}

// beginReceiver makes a source for the events of ApiServerSource, and starts it. It calls one
// address, also after a restart of the adapter.
func (w *comparison) beginReceiver() {
	w.t.Helper()
	port, err := harness.FreePort()
	if err != nil {
		w.t.Fatal(err)
	}
	w.p.adapter.Kill()
	w.p.listen = "127.0.0.1:" + strconv.Itoa(port)
	w.ok(w.p.startAdapter)
	const byKind = `ingest: {key: "event.kind + '/' + event.namespace + '/' + event.name"}`
	w.p.create(w.t, w.o.namespace, "behind", fmt.Sprintf("sink: {uri: %q}\n%s\n", w.url+forms[0], byKind))
	w.ok(w.startReceiver)
	w.t.Cleanup(func() { w.receiver.Kill() })
}

// startReceiver starts the pod of an ApiServerSource as Knative's controller configures it,
// and returns when its readiness probe would be true.
func (w *comparison) startReceiver() error {
	p, err := w.launch("receiver", "NAME=websites", "METRICS_DOMAIN=knative.dev/eventing", "PROFILING_PORT=0",
		"K_SINK=http://"+w.p.listen+"/"+w.o.namespace+"/behind",
		`K_SOURCE_CONFIG={"namespaces":["`+w.o.namespace+`"],"allNamespaces":false,"mode":"Reference","resources":[{"gvr":{"Group":"watch.test","Version":"v1","Resource":"websites"}}]}`)
	if err != nil {
		return err
	}
	w.receiver = p
	return p.Until(w.t.Context(), func(context.Context) error {
		if !strings.Contains(p.Log(), "STARTING") {
			return fmt.Errorf("it has not started")
		}
		return nil
	})
}

// startResident starts the operator that is always there.
func (w *comparison) startResident() (err error) {
	w.resident, err = w.launch("resident", "RECORDER="+w.url+forms[2])
	return err
}

// rollOut replaces the processes as a Deployment (ApiServerSource: the new pod first), a
// StatefulSet (the adapter: the old one first) and a Lease (the operator) do.
func (w *comparison) rollOut() error {
	ctx := w.t.Context()
	old := w.receiver
	if err := w.startReceiver(); err != nil {
		return err
	}
	if err := old.Terminate(ctx); err != nil {
		return err
	}
	if _, _, err := w.p.adapter.Terminate(ctx); err != nil {
		return err
	}
	if err := w.p.startAdapter(); err != nil {
		return err
	}
	if err := w.resident.Terminate(ctx); err != nil {
		return err
	}
	return w.startResident()
}
