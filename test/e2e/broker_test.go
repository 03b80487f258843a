//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var pingSource = schema.GroupVersionKind{Group: "sources.knative.dev", Version: "v1", Kind: "PingSource"}

// prompt is how late a run of an operator that has a pod may begin, when much
// else runs.
const prompt = 10 * time.Second

// startBroker makes the Broker of the namespace, of the class that Knative
// itself brings, and returns its address.
func startBroker(n *namespace) string {
	n.t.Helper()
	n.apply(`
apiVersion: eventing.knative.dev/v1
kind: Broker
metadata: {name: default, annotations: {eventing.knative.dev/broker.class: MTChannelBasedBroker}}
`)
	o := n.ready(broker, "default")
	address, _, err := unstructured.NestedString(o.Object, "status", "address", "url")
	if err != nil || address == "" {
		n.t.Fatalf("the Broker's address is %q: %v", address, err)
	}
	return address
}

// subscribe makes a Trigger, with a line of its spec that says which events.
// Without a policy Knative's retries would not wait at all.
func subscribe(n *namespace, name, which, subscriber string) {
	n.t.Helper()
	n.apply(fmt.Sprintf(`
apiVersion: eventing.knative.dev/v1
kind: Trigger
metadata: {name: %s}
spec:
  broker: default
  %s
  subscriber: %s
  delivery:
    retry: 6
    backoffPolicy: exponential
    backoffDelay: PT1S
    deadLetterSink: {ref: {apiVersion: v1, kind: Service, name: recorder}, uri: /refused}
`, name, which, subscriber))
	n.ready(trigger, name)
}

// Subscribers of a Trigger, beside a source.
const (
	subscribedOperator = "{ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: operator}}"
	subscribedRecorder = "{ref: {apiVersion: v1, kind: Service, name: recorder}, uri: /due}"
)

// publish sends an event to a Broker.
func publish(n *namespace, address, data string, attributes ...string) {
	n.t.Helper()
	r, err := n.do("POST", address, data, eventHeaders(attributes)...)
	if err == nil && r.Status != 202 {
		err = fmt.Errorf("%d %s", r.Status, r.Body)
	}
	if err != nil {
		n.t.Fatalf("publishing to %s: %v", address, err)
	}
}

// awaitScheduled waits until a key waits for its time, and returns what is
// scheduled of it. Its delay has to be longer than the way there.
func (s *source) awaitScheduled(key string) (dueAt time.Time, delay time.Duration) {
	s.t.Helper()
	eventually(s.t, patience, key+" is scheduled", func() error {
		is := s.scheduled(key)
		if is == nil {
			return fmt.Errorf("it is not; the source says %+v, was refused: %v", s.counts(), records(s.namespace, "/refused"))
		}
		dueAt, delay = is.DueAt, is.DueAt.Sub(is.ScheduledAt)
		return nil
	})
	return dueAt, delay
}

// onTime fails if a run belongs to no due time, or began early or late.
func onTime(n *namespace, what string, r run, dueAt time.Time) {
	n.t.Helper()
	notEarly(n, r)
	late := r.Start.Sub(r.DueAt)
	n.t.Logf("%s: the run began %s after its time", what, late.Round(time.Millisecond))
	if !r.DueAt.Equal(dueAt) || r.Attempt != 0 || late > prompt {
		n.t.Errorf("%s: due at %s, and the run is %s", what, dueAt, r)
	}
}

// An event that comes through a trigger is due when it says.
func TestBroker_EventIsDueWhenItSays(t *testing.T) {
	beside(t)
	n := newNamespace(t, "trigger")
	address := startBroker(n)
	n.serve("operator", nil)
	s := n.source("later", toKsvc("operator"))
	subscribe(n, "later", "filter: {attributes: {type: dev.reschedule.e2e.later}}", s.ref())

	publish(n, address, `{"order":17}`, "type", "dev.reschedule.e2e.later", "id", "17", "source", "/shop", "subject", "orders", "team", "platform",
		"reschedulekey", "order-17", "rescheduleafter", "10s")
	dueAt, delay := s.awaitScheduled("order-17")
	if delay != 10*time.Second {
		t.Errorf("it is due %s after it came, want 10s", delay)
	}
	runs := n.awaitRuns(patience, "order-17", 1)
	onTime(n, "after 10s", runs[0], dueAt)
	for name, want := range map[string]string{"id": "17", "source": "/shop", "type": "dev.reschedule.e2e.later", "subject": "orders", "team": "platform"} {
		if got := runs[0].attr(name); got != want {
			t.Errorf("%s is %q, want %q as it was published", name, got, want)
		}
	}
	if string(runs[0].Data) != `{"order":17}` {
		t.Errorf("the data is %s", runs[0].Data)
	}

	// One that says nothing is due at once, and its key is its subject.
	publish(n, address, `{}`, "type", "dev.reschedule.e2e.later", "id", "18", "subject", "order-18")
	at := n.awaitRuns(patience, "order-18", 1)[0]
	onTime(n, "at once", at, at.DueAt)

	// One that cannot be scheduled is refused for good: the Trigger's dead
	// letter sink gets it, with what the source says.
	publish(n, address, `{}`, "type", "dev.reschedule.e2e.later", "id", "19", "subject", "order-19", "rescheduleafter", "soon")
	eventually(t, patience, "the refused event is a dead letter of the Trigger", func() error {
		refused, err := n.recorded("/refused")
		if err != nil {
			return err
		}
		if len(refused) == 0 {
			return fmt.Errorf("it is not there; the source says %+v", s.counts())
		}
		if len(refused) > 1 || refused[0].attr("id") != "19" || refused[0].attr("knativeerrorcode") != "400" {
			t.Errorf("refused were %v", refused)
		}
		return nil
	})
	s.awaitCounts("nothing is left", 0)
}

// The event in a function's answer is a schedule.
func TestBroker_ReplyEventIsASchedule(t *testing.T) {
	beside(t)
	n := newNamespace(t, "reply")
	address := startBroker(n)
	n.serve("operator", nil)
	s := n.source("later", toKsvc("operator"))
	subscribe(n, "asked", "filter: {attributes: {type: dev.reschedule.e2e.ask}}", subscribedOperator)
	subscribe(n, "later", "filter: {attributes: {type: dev.reschedule.e2e.later}}", s.ref())

	// The function answers the Broker with an event that comes back after 10 s
	// by way of the Broker and the source; that with one which the source takes
	// itself; and that one with none.
	type does struct {
		Do behaviour `json:"do"`
	}
	ask, err := json.Marshal(does{behaviour{Reply: &reply{
		Attributes: map[string]string{"type": "dev.reschedule.e2e.later", "reschedulekey": "answer", "rescheduleafter": "10s"},
		Data: does{behaviour{Reply: &reply{
			Attributes: map[string]string{"type": "dev.reschedule.e2e.again", "rescheduleafter": "3s"},
			Data:       does{},
		}}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	publish(n, address, string(ask), "type", "dev.reschedule.e2e.ask", "subject", "question")
	dueAt, delay := s.awaitScheduled("answer")
	if delay != 10*time.Second {
		t.Errorf("it is due %s after it came, want 10s", delay)
	}
	asked := n.awaitRuns(patience, "question", 1)[0]
	if asked.Status != 200 || asked.attr("rescheduledueat") != "" {
		t.Errorf("the question was answered so: %s", asked)
	}
	runs := n.awaitRuns(patience, "answer", 2)
	onTime(n, "a reply by way of the Broker", runs[0], dueAt)
	// From the end of the run to the answer's arrival, a moment passes.
	if after := runs[1].DueAt.Sub(runs[0].End); after < 3*time.Second || after > 3*time.Second+prompt {
		t.Errorf("the second reply said 3s, and was due after %s", after)
	}
	onTime(n, "a reply to the source", runs[1], runs[1].DueAt)
	for i, want := range []string{"dev.reschedule.e2e.later", "dev.reschedule.e2e.again"} {
		if runs[i].Type != want || runs[i].attr("source") != "/e2e/function" {
			t.Errorf("run %d has type %s and source %s, want %s of /e2e/function", i, runs[i].Type, runs[i].attr("source"), want)
		}
	}
	s.awaitCounts("nothing is left", 0)
	if all := n.runs(""); len(all) != 3 {
		t.Errorf("%d runs, want the question's and two answers: %v", len(all), all)
	}
}

// A due event is published to the broker it came from and goes round once.
func TestBroker_EventGoesRoundOnce(t *testing.T) {
	beside(t)
	n := newNamespace(t, "round")
	address := startBroker(n)
	s := n.source("later", "sink: {ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: default}}")
	// What was due has the attributes of a delivery. Without the filter it would
	// be scheduled again, for ever.
	subscribe(n, "later", "filters: [{cesql: EXISTS rescheduleafter AND NOT EXISTS rescheduledueat}]", s.ref())
	subscribe(n, "due", "filters: [{cesql: EXISTS rescheduledueat}]", subscribedRecorder)
	due := func(key string) (of record, all int) {
		eventually(t, patience, key+" is published", func() error {
			records, err := n.recorded("/due")
			if err != nil {
				return err
			}
			all = len(records)
			i := slices.IndexFunc(records, func(r record) bool { return r.attr("reschedulekey") == key })
			if i < 0 {
				return fmt.Errorf("of %d events none is; the source says %+v", all, s.counts())
			}
			of = records[i]
			return nil
		})
		return of, all
	}

	put := s.put("put", `{"delay":"2s"}`)
	got, _ := due("put")
	for name, want := range map[string]string{"type": "dev.reschedule.due", "subject": "put", "rescheduleattempt": "0"} {
		if got.attr(name) != want {
			t.Errorf("%s of the published event is %q, want %q", name, got.attr(name), want)
		}
	}
	publishedOnTime(n, "scheduled", got, put.DueAt)

	publish(n, address, `{"round":1}`, "type", "dev.reschedule.e2e.round", "id", "round", "reschedulekey", "round", "rescheduleafter", "5s")
	dueAt, _ := s.awaitScheduled("round")
	got, _ = due("round")
	publishedOnTime(n, "round", got, dueAt)
	if got.attr("id") != "round" || got.attr("type") != "dev.reschedule.e2e.round" || string(got.Body) != `{"round":1}` {
		t.Errorf("what was published comes back as %+v", got)
	}
	// Were it scheduled again, it would come again before this one.
	s.put("after", `{"delay":"10s"}`)
	if _, all := due("after"); all != 3 {
		t.Errorf("%d events were published, want 3", all)
	}
	s.awaitCounts("nothing is left", 0)
}

// publishedOnTime is onTime for an event that came to the recorder.
func publishedOnTime(n *namespace, what string, r record, dueAt time.Time) {
	n.t.Helper()
	due, err := time.Parse(time.RFC3339Nano, r.attr("rescheduledueat"))
	if err != nil {
		n.t.Fatal(err)
	}
	onTime(n, what, run{Key: what, DueAt: due, Start: r.At}, dueAt)
}

// Ticks of a PingSource collapse to one run at a time.
func TestPingSource_TicksCollapse(t *testing.T) {
	beside(t)
	const every = 5 * time.Second
	n := newNamespace(t, "ping")
	n.deploy("operator", 1)
	// All ticks are one key, and the first of them says when it is due.
	s := n.source("ticks", toService("operator")+"ingest: {key: event.source}\ndelay: 5s\n")
	n.apply(`
apiVersion: sources.knative.dev/v1
kind: PingSource
metadata: {name: ticks}
spec:
  schedule: "* * * * * *"
  contentType: application/json
  data: '{"tick":true}'
  sink: {ref: {apiVersion: sources.reschedule.dev/v1alpha1, kind: RescheduleSource, name: ticks}}
`)
	n.ready(pingSource, "ticks")
	ready := time.Now()
	key := "/apis/v1/namespaces/" + n.name + "/pingsources/ticks"
	s.awaitScheduled(key)
	t.Logf("the first tick came %s after its source was ready", time.Since(ready).Round(time.Second))
	runs := n.awaitRuns(patience, key, 3)
	notEarly(n, runs...)
	seen := map[string]bool{}
	for i, r := range runs {
		if seen[r.ID] || r.Type != "dev.knative.sources.ping" || strings.TrimSpace(string(r.Data)) != `{"tick":true}` {
			t.Errorf("run %d is of the tick %s %s %s", i, r.ID, r.Type, r.Data)
		}
		seen[r.ID] = true
		if i > 0 && r.DueAt.Sub(runs[i-1].DueAt) < every {
			t.Errorf("run %d was due %s after the previous run: a tick was not merged", i, r.DueAt.Sub(runs[i-1].DueAt))
		}
		// The newest tick is delivered.
		at, err := time.Parse(time.RFC3339Nano, r.attr("time"))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("run %d began %s after its time, with a tick of %s before", i, r.Start.Sub(r.DueAt).Round(time.Millisecond), r.Start.Sub(at).Round(time.Millisecond))
		if age := r.DueAt.Sub(at); age > every-time.Second {
			t.Errorf("run %d has a tick of %s before, not the newest", i, age)
		}
	}
	if err := n.Dynamic.Resource(pingSource.GroupVersion().WithResource("pingsources")).Namespace(n.name).Delete(t.Context(), "ticks", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.awaitCounts("no ticks come any more", 0)
}

// Changes during a restart of the adapter are seen behind a broker. ApiServerSource alone tries
// for some three seconds, and then forgets a change.
func changesDuringARestart(t *testing.T, turn func()) {
	const objects = 50
	s := operated(t, "bridge", "ingest: {key: event.name}\n", rule{"", behaviour{Read: "configmaps"}})
	startBroker(s.namespace)
	subscribe(s.namespace, "objects", "filter: {attributes: {kind: ConfigMap}}", s.ref())
	watchObjects(s.namespace, "Reference", "{ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: default}}")
	names := make([]string, objects)
	versions := map[string]string{}
	for i := range names {
		names[i] = fmt.Sprintf("object-%02d", i)
		versions[names[i]] = makeObject(s.namespace, names[i])
	}
	awaitSeen(s.namespace, "each object was seen", versions)

	turn()
	// Each changes once, so that a change that is lost is not made up for.
	before := s.adapterPod()
	if err := s.Client.CoreV1().Pods(system).Delete(t.Context(), before.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	pace := time.NewTicker(100 * time.Millisecond)
	defer pace.Stop()
	changed := 0
	for ; changed < objects && s.replaced(before) != nil; changed++ {
		versions[names[changed]] = changeObject(s.namespace, names[changed], changed)
		<-pace.C
	}
	eventually(t, patience, "the adapter is back", func() error { return s.replaced(before) })
	t.Logf("the adapter was back after %s; %d objects changed meanwhile", time.Since(began).Round(10*time.Millisecond), changed)
	awaitSeen(s.namespace, "the last state of each object was seen", versions)
	t.Logf("all were seen after %s", time.Since(began).Round(10*time.Millisecond))
}
