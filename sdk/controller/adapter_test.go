package controller

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk"
)

//go:embed testdata/apiserversource.yaml
var behindApiServerSource string

// canonical is the ingest to which docs/sdk.md links, for ConfigMaps and what they own.
var canonical = func() string {
	_, ingest, _ := strings.Cut(behindApiServerSource, "\n  ingest:\n")
	ingest, _, _ = strings.Cut(ingest, "\n---\n")
	return "\n  ingest:\n" + strings.NewReplacer("Website", "ConfigMap", "o.apiVersion.startsWith('example.com/')", "o.apiVersion == 'v1'").Replace(ingest)
}()

// eventually polls until ok, and reports the last state. Its patience is for small
// machines, where processes start slowly.
func eventually(t *testing.T, what string, ok func() (bool, string)) {
	t.Helper()
	late, look := time.After(4*patience), time.NewTicker(5*time.Millisecond)
	defer look.Stop()
	for {
		done, state := ok()
		if done {
			return
		}
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("%s has not come true in %s: %s", what, 4*patience, state)
		}
	}
}

// diary has the results of a reconciler by name, and its runs.
type diary struct {
	mu   sync.Mutex
	next map[string][]step
	at   map[string][]time.Time
}

func (d *diary) result(r reconcile.Request) (reconcile.Result, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil {
		d.at = map[string][]time.Time{}
	}
	d.at[r.Name] = append(d.at[r.Name], time.Now())
	steps := d.next[r.Name]
	if len(steps) == 0 {
		return reconcile.Result{}, nil
	}
	d.next[r.Name] = steps[1:]
	if steps[0].panicked {
		panic("boom")
	}
	return steps[0].result, steps[0].err
}

func (d *diary) runs(name string) []time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]time.Time(nil), d.at[name]...)
}

// TestAdapter_DrivesAnOperator sends the events of an ApiServerSource to a source.
func TestAdapter_DrivesAnOperator(t *testing.T) {
	t.Parallel()
	rows := map[string]struct {
		steps []step
		waits []time.Duration // at least, before each run but the first
	}{
		"zero":         {nil, nil},
		"error":        {[]step{fails, fails, fails}, []time.Duration{20 * ms, 40 * ms, 80 * ms}},
		"panic":        {[]step{panics}, []time.Duration{20 * ms}},
		"requeue":      {[]step{requeue, requeue}, []time.Duration{20 * ms, 40 * ms}},
		"terminal":     {[]step{terminal, zero}, nil},
		"requeueafter": {[]step{after(200 * ms), after(50 * ms)}, []time.Duration{200 * ms, 50 * ms}},
		"reset":        {[]step{fails, fails, after(100 * ms), fails, fails}, []time.Duration{20 * ms, 40 * ms, 100 * ms, 20 * ms, 40 * ms}},
	}
	l := listen(t)
	address := adapter(t, map[string]string{"configs": fmt.Sprintf(
		"\n  sink: {uri: \"http://%s\"}\n  delivery: {backoffDelay: PT0.02S}%s\n", l.Addr(), canonical)})
	c, err := sdk.New(address + "configs")
	if err != nil {
		t.Fatal(err)
	}
	d := &diary{next: map[string][]step{}}
	ours := &configs{busy: map[reconcile.Request]bool{}, results: d.result}
	var objects []client.Object
	for name, row := range rows {
		objects = append(objects, configMap(name, 1))
		d.next[name] = row.steps
	}
	startManager(t, cluster(objects...), func(mgr ctrl.Manager) error {
		ours.Client = mgr.GetClient()
		return ours.SetupWithManager(mgr)
	}, WithListener(l))
	source := &operator{t: t, url: address + "configs"}
	for name := range rows {
		attributes := changed("resource.add", "")
		attributes["kind"], attributes["namespace"], attributes["name"] = "ConfigMap", "ns", name
		if a := source.send(attributes, toJSON(configMap(name, 1))); a.code != http.StatusAccepted {
			t.Fatalf("%s: the event was answered with %s %s", name, a, a.body)
		}
	}
	for name, row := range rows {
		eventually(t, name+", and nothing left", func() (bool, string) {
			_, err := c.Get(t.Context(), "ConfigMap/ns/"+name)
			runs := d.runs(name)
			return len(runs) >= len(row.waits)+1 && errors.Is(err, sdk.ErrNotFound), fmt.Sprint(runs, err)
		})
		runs := d.runs(name)
		if len(runs) != len(row.waits)+1 {
			t.Errorf("%s: %d runs, want %d", name, len(runs), len(row.waits)+1)
			continue
		}
		for i, wait := range row.waits {
			if got := runs[i+1].Sub(runs[i]); got < wait {
				t.Errorf("%s: run %d came %s after the previous run, want %s", name, i+1, got, wait)
			}
		}
	}
}

// TestAdapter_IngestOfTheDocumentation sends objects, owned objects, statuses and
// objects of others through the canonical ingest, in both modes of an
// ApiServerSource.
func TestAdapter_IngestOfTheDocumentation(t *testing.T) {
	t.Parallel()
	address := adapter(t, map[string]string{"configs": "\n  sink: {uri: \"http://127.0.0.1:1\"}\n  suspend: true" + canonical + "\n"})
	c, err := sdk.New(address + "configs")
	if err != nil {
		t.Fatal(err)
	}
	source := &operator{t: t, url: address + "configs"}
	const status = `{"metadata":{"generation":%d},"status":{"observedGeneration":4}}`
	for key, e := range map[string]struct {
		what, kind, data string
		taken            bool
	}{
		"ConfigMap/ns/made":      {"resource.add", "ConfigMap", toJSON(configMap("made", 1)), true},
		"ConfigMap/ns/named":     {"ref.update", "ConfigMap", `{"apiVersion":"v1","kind":"ConfigMap","namespace":"ns","name":"named"}`, true},
		"ConfigMap//cluster":     {"ref.delete", "ConfigMap", `{"apiVersion":"v1","kind":"ConfigMap","name":"cluster"}`, true},
		"ConfigMap/ns/reported":  {"resource.update", "ConfigMap", fmt.Sprintf(status, 4), false},
		"ConfigMap/ns/specified": {"resource.update", "ConfigMap", fmt.Sprintf(status, 5), true},
		"ConfigMap/ns/own":       {"resource.add", "Secret", secret("own"), true},
		"Secret/ns/stranger":     {"resource.add", "Secret", strings.ReplaceAll(secret("pod"), "ConfigMap", "Pod"), false},
		"Secret/ns/foreign":      {"resource.add", "Secret", strings.ReplaceAll(secret("foreign"), `"v1"`, `"other.example.com/v1"`), false},
		"Secret/ns/orphan":       {"resource.delete", "Secret", `{"metadata":{}}`, false},
		"Secret/ns/unknown":      {"ref.add", "Secret", `{"apiVersion":"v1","kind":"Secret","namespace":"ns","name":"unknown"}`, false},
	} {
		attributes := changed(e.what, "")
		parts := strings.Split(key, "/")
		attributes["kind"], attributes["namespace"], attributes["name"] = e.kind, parts[1], parts[2]
		if a := source.send(attributes, e.data); a.code != http.StatusAccepted && e.taken {
			t.Errorf("%s: answered with %s %s", key, a, a.body)
		}
		if _, err := c.Get(t.Context(), key); (err == nil) != e.taken {
			t.Errorf("%s, %s of a %s: %v", key, e.what, e.kind, err)
		}
	}
}

// goal is how often the operator that dies runs every object.
const goal = 4

// mortal counts its runs of an object in a file, and asks for another run until the goal
// is reached. Sometimes it kills its process: before, during and around the answer of a
// run.
type mortal struct{ dir string }

func (m mortal) die(chance int) {
	if rand.IntN(chance) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// Reconcile implements reconcile.Reconciler.
func (m mortal) Reconcile(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
	m.die(20)
	file := filepath.Join(m.dir, r.Name)
	b, _ := os.ReadFile(file) // there is none at first
	n, _ := strconv.Atoi(string(b))
	n++
	if err := os.WriteFile(file+".new", []byte(strconv.Itoa(n)), 0o600); err != nil {
		return reconcile.Result{}, err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return reconcile.Result{}, err
	}
	m.die(20)
	if rand.IntN(10) == 0 {
		go func() {
			<-time.After(rand.N(2 * ms)) // about when the answer is on its way
			m.die(1)
		}()
	}
	if n >= goal {
		return reconcile.Result{}, nil
	}
	if rand.IntN(4) == 0 {
		return reconcile.Result{}, errBoom
	}
	return reconcile.Result{RequeueAfter: 10 * ms}, nil
}

// mortalOperator is the main function of an operator that kills itself.
func mortalOperator(dir, at string) error {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", at)
	if err != nil {
		return err
	}
	mgr, err := NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, cluster(), WithListener(l))
	if err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(mortal{dir}); err != nil {
		return err
	}
	return mgr.Start(context.Background())
}

// TestAdapter_KilledOperatorLosesNothing kills the operator again and again. Every
// object reaches its goal, and then nothing is left. A back-off doubles whatever its delay is, so backoffMax bounds it.
func TestAdapter_KilledOperatorLosesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := listen(t)
	at := l.Addr().String()
	l.Close()
	address := adapter(t, map[string]string{"mortal": fmt.Sprintf("\n  sink: {uri: \"http://%s\"}\n  delivery: {backoffDelay: PT0.01S, backoffPolicy: linear, backoffMax: PT1S}%s\n", at, canonical)})
	c, err := sdk.New(address + "mortal")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	lives := make(chan int)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			process := exec.CommandContext(ctx, os.Args[0])
			process.Env = append(os.Environ(), "OPERATOR_DIR="+dir, "OPERATOR_LISTEN="+at)
			_ = process.Run()
		}
		lives <- n
	}()
	const objects = 12
	source := &operator{t: t, url: address + "mortal"}
	for i := range objects {
		attributes := changed("resource.add", "")
		attributes["kind"], attributes["namespace"], attributes["name"] = "ConfigMap", "ns", fmt.Sprint(i)
		if a := source.send(attributes, toJSON(configMap(fmt.Sprint(i), 1))); a.code != http.StatusAccepted {
			t.Fatalf("the event was answered with %s %s", a, a.body)
		}
	}
	eventually(t, "every goal, and nothing left", func() (bool, string) {
		var short []string
		for i := range objects {
			b, err := os.ReadFile(filepath.Join(dir, fmt.Sprint(i)))
			if n, _ := strconv.Atoi(string(b)); err != nil || n < goal {
				short = append(short, fmt.Sprintf("%d: %s", i, b))
			}
		}
		counts, err := c.Counts(t.Context())
		return len(short) == 0 && err == nil && counts.Pending+counts.InFlight == 0, fmt.Sprint(strings.Join(short, ", "), counts, err)
	})
	cancel()
	if n := <-lives; n < 3 {
		t.Errorf("the operator lived %d times only", n)
	} else {
		t.Logf("the operator lived %d times", n)
	}
}
