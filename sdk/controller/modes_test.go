package controller

import (
	"math"
	"net/http"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/reschedule-dev/reschedule/sdk"
)

// TestSeveralRequestsOfOneEvent are answered together, or come up under keys of
// their own.
func TestSeveralRequestsOfOneEvent(t *testing.T) {
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
		"zero,hour": "200 1h0m0s", "hour,minute,zero": "200 1m0s", "hour,fails": "503", "final,fails": "503", "zero,gone": "204", "gone,none": "204 never",
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
	if a := with.send(changed("resource.add", ""), toJSON(configMap("hour", 3))); a.code != 503 {
		t.Errorf("with a dead schedule API, beside it, it is answered with %s", a)
	}
}

func TestBesideASourceTheOutcomeIsDurableFirst(t *testing.T) {
	t.Parallel()
	var result reconcile.Result
	var failure error
	c := &configs{results: func(reconcile.Request) (reconcile.Result, error) { return result, failure }}
	for name, row := range map[string]struct {
		opts   []Option
		object string
		waits  bool // something does under the key
		result reconcile.Result
		err    error
		calls  string
	}{
		"sooner or later":     {waits: true, result: reconcile.Result{RequeueAfter: time.Hour}, calls: "replace ConfigMap/ns/a 1h0m0s"},
		"again":               {result: reconcile.Result{RequeueAfter: time.Hour}, calls: "replace ConfigMap/ns/a 1h0m0s"},
		"failed":              {err: errBoom, calls: "back off ConfigMap/ns/a 1"},
		"a retry":             {result: reconcile.Result{Requeue: true}, calls: "back off ConfigMap/ns/a 1"},
		"done":                {waits: true, calls: "cancel ConfigMap/ns/a"},
		"done, nothing waits": {},
		"done, maxInterval":   {opts: []Option{WithMaxInterval(time.Minute)}, calls: "replace ConfigMap/ns/a 1m0s, then every 1m0s"},
		"failed, maxInterval": {opts: []Option{WithMaxInterval(time.Minute)}, err: errBoom, calls: "back off ConfigMap/ns/a 1, then every 1m0s"},
		"for ever":            {result: reconcile.Result{RequeueAfter: math.MaxInt64}, calls: "replace ConfigMap/ns/a 87600h0m0s"},
		"gone, maxInterval":   {opts: []Option{WithMaxInterval(time.Minute)}, object: "b", waits: true, calls: "cancel ConfigMap/ns/b"},
		"given up":            {err: reconcile.TerminalError(errBoom)},
	} {
		f := newFakeSource(t, time.Second)
		f.sink = http.NotFoundHandler()
		f.suspended = true
		op := start(t, c, []client.Object{configMap("a", 1)}, append(row.opts, WithClient(f.client()), WithBackoff(sdk.Backoff{Base: time.Hour}))...)
		result, failure = row.result, row.err
		object := configMap("a", 1)
		if row.object != "" {
			object.Name = row.object
		}
		if row.waits {
			f.ingest("ConfigMap/ns/"+object.Name, sdk.Event{})
		}
		a := op.send(changed("resource.update", ""), toJSON(object))
		if calls := f.called(); a.String() != "204" || calls != row.calls {
			t.Errorf("%s: answered with %s %s, called %q, want %q", name, a, a.body, calls, row.calls)
		}
		f.close()
		if err := op.stop(); err != nil {
			t.Error(err)
		}
	}
	// A back-off that is used up is an end.
	f := newFakeSource(t, time.Second)
	defer f.close()
	f.sink, f.suspended = http.NotFoundHandler(), true
	tired := start(t, c, []client.Object{configMap("a", 1)}, WithClient(f.client()), WithBackoff(sdk.Backoff{Base: time.Hour, MaxAttempts: 1}))
	failure = errBoom
	for i, want := range []string{"back off ConfigMap/ns/a 1", ""} {
		if a, calls := tired.send(changed("resource.update", ""), toJSON(configMap("a", int64(i)))), f.called(); a.String() != "204" || calls != want {
			t.Errorf("failure %d is answered with %s %s, called %q", i, a, a.body, calls)
		}
	}
	// Without a client a Broker can hand on the reply.
	op := start(t, c, []client.Object{configMap("a", 1)})
	result, failure = reconcile.Result{RequeueAfter: time.Hour}, nil
	a := op.send(changed("resource.update", ""), toJSON(configMap("a", 1)))
	if a.String() != "200 1h0m0s" || a.Get("Ce-Reschedulekey") != "ConfigMap/ns/a" || a.Get("Ce-Rescheduleafter") != "1h0m0s" {
		t.Errorf("without a client it is answered with %s %v", a, a.Header)
	}
}

// TestWhatIsAskedForDuringARunIsNotCancelledByItsOutcome is about events beside a
// source: what waited before a run is replaced by its outcome, what somebody has
// asked for meanwhile lasts.
func TestWhatIsAskedForDuringARunIsNotCancelledByItsOutcome(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		waits  bool // something did before the run
		result reconcile.Result
		want   time.Duration
	}{
		"done, something waited":  {true, reconcile.Result{}, 5 * time.Minute},
		"done, nothing waited":    {false, reconcile.Result{}, 5 * time.Minute},
		"later, something waited": {true, reconcile.Result{RequeueAfter: time.Hour}, 5 * time.Minute},
		"later, nothing waited":   {false, reconcile.Result{RequeueAfter: time.Hour}, 5 * time.Minute},
		"sooner":                  {true, reconcile.Result{RequeueAfter: time.Minute}, time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := newFakeSource(t, time.Second)
			defer f.close()
			f.sink, f.suspended = http.NotFoundHandler(), true
			if row.waits {
				f.ingest("ConfigMap/ns/a", sdk.Event{})
			}
			other := f.client()
			c := &configs{results: func(reconcile.Request) (reconcile.Result, error) {
				_, err := other.Schedule(t.Context(), "ConfigMap/ns/a", sdk.Request{Delay: new(5 * time.Minute), Policy: sdk.Replace})
				return row.result, err
			}}
			op := start(t, c, []client.Object{configMap("a", 1)}, WithClient(f.client()))
			began := time.Now()
			if a := op.send(changed("resource.update", ""), toJSON(configMap("a", 1))); a.String() != "204" {
				t.Errorf("answered with %s %s", a, a.body)
			}
			if err := op.stop(); err != nil {
				t.Error(err)
			}
			f.mu.Lock()
			defer f.mu.Unlock()
			o := f.keys["ConfigMap/ns/a"]
			if o == nil || !o.waiting {
				t.Fatal("nothing waits")
			}
			if in := o.dueAt.Sub(began); in < row.want || in > row.want+patience {
				t.Errorf("it is due after %s, want %s", in, row.want)
			}
		})
	}
}
