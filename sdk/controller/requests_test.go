package controller

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestRequests_OfOneEvent says that several requests of one event are answered
// together, or get deliveries under their own keys.
func TestRequests_OfOneEvent(t *testing.T) {
	t.Parallel()
	const key = "ServiceAccount/ns/sa"
	c := &configs{results: func(r reconcile.Request) (reconcile.Result, error) {
		switch r.Name {
		case "minute":
			return reconcile.Result{RequeueAfter: time.Minute}, nil
		case "hour":
			return reconcile.Result{RequeueAfter: time.Hour}, nil
		case "fails":
			return reconcile.Result{}, errBoom
		case "final":
			return reconcile.Result{}, reconcile.TerminalError(errBoom)
		}
		return reconcile.Result{}, nil
	}}
	objects := []client.Object{configMap("minute", 1), configMap("hour", 1), configMap("fails", 1), configMap("final", 1), configMap("zero", 1)}
	alone := start(t, c, objects)
	for names, want := range map[string]string{
		"zero": "204", "hour": "200 1h0m0s", "fails": "503", "final": "204", "gone": "204 never",
		"zero,hour": "200 1h0m0s", "hour,minute,zero": "200 1m0s", "hour,fails": "200 1s", "final,fails": "503", "zero,gone": "204", "gone,none": "204 never",
	} {
		a := alone.send(changed("resource.add", "ServiceAccount/ns/"+names), account(names))
		if runs := c.ran(); a.String() != want || len(runs) != strings.Count(names, ",")+1 {
			t.Errorf("%s: answered with %s, want %s; ran %q", names, a, want, runs)
		}
	}
	a := alone.send(changed("resource.add", key), account("hour,minute,zero"))
	if want := `"requests":[`; !strings.Contains(a.body, want) || strings.Contains(a.body, "zero") {
		t.Errorf("what comes back is %s", a.body)
	}
	if a := alone.send(changed("resource.delete", "ConfigMap/ns/hour"), secret("hour")); a.String() != "200 1h0m0s" {
		t.Errorf("the deletion of what it owns is answered with %s", a)
	}
	c.ran()

	f := newFakeSource(t, time.Second)
	f.sink = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	defer f.close()
	with := start(t, c, objects, WithClient(f.client()))
	for _, e := range []struct{ about, key, object, want, runs, calls string }{
		{"its own key", "ConfigMap/ns/hour", toJSON(configMap("hour", 1)), "200 1h0m0s", "ns/hour", ""},
		{"its own object, under any key", "/api/hour", toJSON(configMap("hour", 2)), "200 1h0m0s", "ns/hour", ""},
		{"what it owns", "Secret/ns/s", secret("hour"), "204", "", "earliest ConfigMap/ns/hour 0s"},
		{"its status, after that was scheduled", "ConfigMap/ns/hour", toJSON(configMap("hour", 2)), "200 1h0m0s", "ns/hour", ""},
		{"others", key, account("hour,zero"), "204", "", "earliest ConfigMap/ns/hour 0s, earliest ConfigMap/ns/zero 0s"},
		{"what maps to none, under a key that is not known", "ConfigMap/ns/minute", account(""), "200 1m0s", "ns/minute", ""},
		{"one of them under its own key", "ConfigMap/ns/hour", account("hour,zero"), "200 1h0m0s", "ns/hour", "earliest ConfigMap/ns/zero 0s"},
	} {
		a := with.send(changed("resource.update", e.key), e.object)
		if runs, calls := strings.Join(c.ran(), " "), f.called(); a.String() != e.want || runs != e.runs || calls != e.calls {
			t.Errorf("%s: answered with %s %s, ran %q, called %q", e.about, a, a.body, runs, calls)
		}
	}
	f.mu.Lock()
	f.dead = true
	f.mu.Unlock()
	if a := with.send(changed("resource.add", key), account("hour,zero")); a.code != 503 {
		t.Errorf("with a dead schedule API it is answered with %s", a)
	}
}

// TestAnswer_AsksForTheNextRun is an event under the key of the delivery.
func TestAnswer_AsksForTheNextRun(t *testing.T) {
	t.Parallel()
	for want, wait := range map[string]time.Duration{"1h0m0s": time.Hour, "876600h0m0s": math.MaxInt64} {
		c := &configs{results: func(reconcile.Request) (reconcile.Result, error) { return reconcile.Result{RequeueAfter: wait}, nil }}
		op := start(t, c, []client.Object{configMap("a", 1)})
		a := op.send(changed("resource.update", "ConfigMap/ns/a"), toJSON(configMap("a", 1)))
		if a.String() != "200 "+want || a.Get("Ce-Reschedulekey") != "ConfigMap/ns/a" || a.Get("Ce-Rescheduleafter") != want {
			t.Errorf("%s: answered with %s %v", wait, a, a.Header)
		}
	}
}
