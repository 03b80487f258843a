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

// TestRequests_OfOneEvent says that several requests of one event are answered together, or with a client get deliveries under
// their own keys. See also TestCombine_OfOutcomes and TestPlan_OfAChange.
func TestRequests_OfOneEvent(t *testing.T) {
	t.Parallel()
	const key = "ServiceAccount/ns/sa"
	c := &configs{results: func(r reconcile.Request) (reconcile.Result, error) {
		d, _ := time.ParseDuration(r.Name)
		return reconcile.Result{RequeueAfter: d}, nil
	}}
	objects := []client.Object{configMap("1m", 1), configMap("1h", 1), configMap("zero", 1)}
	a := start(t, c, objects).send(changed("resource.add", key), account("1h,1m,zero"))
	if a.String() != "200 1m0s" || len(c.ran()) != 3 || !strings.Contains(a.body, `"requests":[`) || strings.Contains(a.body, "zero") {
		t.Errorf("answered with %s, and what comes back is %s", a, a.body)
	}
	f := newFakeSource(t, time.Second)
	f.sink = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	defer f.close()
	with := start(t, c, objects, WithClient(f.client()))
	a = with.send(changed("resource.add", key), account("1h,zero"))
	if calls := f.called(); a.String() != "204" || len(c.ran()) != 0 || calls != "earliest ConfigMap/ns/1h 0s, earliest ConfigMap/ns/zero 0s" {
		t.Errorf("with a client: answered with %s, called %q", a, calls)
	}
	f.mu.Lock()
	f.dead = true
	f.mu.Unlock()
	if a := with.send(changed("resource.add", key), account("1h,zero")); a.code != 503 {
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
