package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestStopping lets what runs end and be answered, and nothing begin.
func TestStopping(t *testing.T) {
	t.Parallel()
	began, end := make(chan struct{}, 9), make(chan struct{})
	c := &configs{results: func(reconcile.Request) (reconcile.Result, error) {
		began <- struct{}{}
		<-end
		return reconcile.Result{RequeueAfter: time.Hour}, nil
	}}
	op := start(t, c, []client.Object{configMap("a", 1), configMap("b", 1)})
	answers := make(chan string, 2)
	send := func(name string) {
		a, err := op.try(dueEvent("ConfigMap/ns/"+name), "")
		answers <- fmt.Sprint(name, " ", a, " ", err)
	}
	go send("a")
	<-began
	go send("b") // waits: there is one worker
	stopped := make(chan error, 1)
	go func() { stopped <- op.stop() }()
	if got, want := <-answers, "b 503 <nil>"; got != want && !strings.HasPrefix(got, "b 0") {
		t.Errorf("what waited was answered with %s, want %s", got, want)
	}
	close(end)
	if got, want := <-answers, "a 200 1h0m0s <nil>"; got != want {
		t.Errorf("what ran was answered with %s, want %s", got, want)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestWhatIsReadWhileItStopsIsAnswered is about an event that has not led to any
// run yet when the operator stops.
func TestWhatIsReadWhileItStopsIsAnswered(t *testing.T) {
	t.Parallel()
	reading, read := make(chan struct{}, 9), make(chan struct{})
	o := cluster()
	o.NewClient = func(*rest.Config, client.Options) (client.Client, error) {
		return fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
			Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
				reading <- struct{}{}
				<-read
				return nil
			},
		}).Build(), nil
	}
	op := startManager(t, o, func(mgr ctrl.Manager) error {
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete((&log{}).as("ran"))
	})
	answers, stopped := make(chan string, 1), make(chan error, 1)
	go func() {
		a, err := op.try(changed("ref.update", ""), `{"apiVersion":"v1","kind":"ConfigMap","namespace":"ns","name":"a"}`)
		answers <- fmt.Sprint(a.code, " ", strings.TrimSpace(a.body), " ", err)
	}()
	<-reading
	go func() { stopped <- op.stop() }()
	eventually(t, "the end of the queue", func() (bool, string) { return op.manager.server.all()[0].ShuttingDown(), "" })
	close(read)
	if got, want := <-answers, "503 the operator is stopping <nil>"; got != want {
		t.Errorf("answered with %q, want %q", got, want)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestTheEndOfARequestIsNoSuccess is about who gives a request less time than its
// run takes, and would say 200 for a handler that says nothing.
func TestTheEndOfARequestIsNoSuccess(t *testing.T) {
	t.Parallel()
	end := make(chan struct{})
	defer close(end)
	h := Handler(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		<-end
		return reconcile.Result{}, nil
	}))
	ctx, cancel := context.WithTimeout(t.Context(), ms)
	defer cancel()
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, request("ConfigMap/ns/a", playEvent).WithContext(ctx)); w.Code != 503 {
		t.Errorf("answered with %d %s", w.Code, w.Body)
	}
}

// TestAReplicaThatNobodyWaitsForEndsItsRun is about a request that is cut off,
// and repeated to another replica.
func TestAReplicaThatNobodyWaitsForEndsItsRun(t *testing.T) {
	t.Parallel()
	began, ended := make(chan string, 9), make(chan error, 9)
	op := startManager(t, cluster(), func(mgr ctrl.Manager) error {
		return ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
			began <- r.Name
			<-ctx.Done()
			ended <- ctx.Err()
			return reconcile.Result{}, ctx.Err()
		}))
	}, WithReplicas())
	send := func(ctx context.Context, name string) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := (&operator{t: t, url: op.url, ctx: ctx}).try(dueEvent("ConfigMap/ns/"+name), "")
			done <- err
		}()
		return done
	}
	cut := func(cancel context.CancelFunc, done <-chan error) {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	}
	first, cancelFirst := context.WithCancel(t.Context())
	one := send(first, "a")
	<-began
	second, cancelSecond := context.WithCancel(t.Context())
	two := send(second, "b") // waits: there is one worker
	q := func() *queue { return op.manager.server.all()[0] }
	eventually(t, "the second one", func() (bool, string) { return q().Len() == 1, "" })
	cut(cancelSecond, two)
	eventually(t, "no second one", func() (bool, string) { return q().Len() == 0, "" })
	select {
	case err := <-ended:
		t.Errorf("the first one ended with %v", err)
	default:
	}
	cut(cancelFirst, one)
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the run ended with %v", err)
	}
	if len(began) > 0 {
		t.Errorf("%s began", <-began)
	}
}
