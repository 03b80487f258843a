package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// TestStop_WaitingEventsAreAnswered says that events that wait for a worker are run, as
// they would cost an attempt. What has not begun after half of the grace period is put off
// by an answer that costs none.
func TestStop_WaitingEventsAreAnswered(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		stop func(*operator)
		want string
	}{
		"the operator stops":    {func(op *operator) { go func() { _ = op.stop() }() }, "b 200 1h0m0s <nil>"},
		"after half the period": {func(op *operator) { op.manager.server.all()[0].halt() }, "b 204 1s <nil>"},
	} {
		began, end := make(chan struct{}, 9), make(chan struct{})
		c := &configs{results: func(reconcile.Request) (reconcile.Result, error) {
			began <- struct{}{}
			<-end
			return reconcile.Result{RequeueAfter: time.Hour}, nil
		}}
		op := start(t, c, []client.Object{configMap("a", 1), configMap("b", 1)})
		a, b := make(chan string, 1), make(chan string, 1)
		send := func(name string, answers chan<- string) {
			a, err := op.try(dueEvent("ConfigMap/ns/"+name), "")
			answers <- fmt.Sprint(name, " ", a, " ", err)
		}
		go send("a", a)
		<-began
		go send("b", b) // waits: there is one worker
		eventually(t, "the other one", func() (bool, string) { return op.manager.server.all()[0].Len() == 1, "" })
		row.stop(op)
		eventually(t, "the end of the port or of the queue", func() (bool, string) {
			_, err := op.try(dueEvent("Pod/ns/none"), "")
			return err != nil || op.manager.server.all()[0].ShuttingDown(), ""
		})
		close(end)
		if got, want := <-a, "a 200 1h0m0s <nil>"; got != want {
			t.Errorf("%s: what ran was answered with %s, want %s", name, got, want)
		}
		if got := <-b; !strings.HasSuffix(got, row.want) {
			t.Errorf("%s: what waited was answered with %s, want %s", name, got, row.want)
		}
	}
}

// TestStop_DeadLetterComesAgain says that a delivery which waits at the end is put off by a success, which counts no attempt. A
// dead letter is refused: a success would end it.
func TestStop_DeadLetterComesAgain(t *testing.T) {
	t.Parallel()
	s := newHandler(t.Context(), forever(zero))
	s.queues[0].halt()
	for header, want := range map[string]string{"Ce-Other": "204 1s", "Ce-Knativeerrordest": "503 "} {
		w, r := httptest.NewRecorder(), request("ConfigMap/ns/a", playEvent)
		r.Header.Set(header, "http://operator")
		s.ServeHTTP(w, r)
		if got := fmt.Sprint(w.Code, " ", w.Header().Get("Reschedule-After")); got != want {
			t.Errorf("%s: answered with %s, want %s", header, got, want)
		}
	}
}

// TestStop_AnswersAnEventBeingRead is about an event that has not led to a run yet
// when the operator stops.
func TestStop_AnswersAnEventBeingRead(t *testing.T) {
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
		a, err := op.try(changed("ref.update", "ConfigMap/ns/a"), `{"apiVersion":"v1","kind":"ConfigMap","namespace":"ns","name":"a"}`)
		answers <- fmt.Sprint(a, " ", err)
	}()
	<-reading
	go func() { stopped <- op.stop() }()
	eventually(t, "the end of the port", func() (bool, string) {
		_, err := op.try(dueEvent("Pod/ns/none"), "")
		return err != nil, ""
	})
	close(read)
	if got, want := <-answers, "200 1h0m0s <nil>"; got != want {
		t.Errorf("answered with %q, want %q", got, want)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// TestServe_CancelledRequestIsA503 is about a server that gives a request less time
// than its run takes, and would answer 200 for a handler that writes nothing.
func TestServe_CancelledRequestIsA503(t *testing.T) {
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

// TestReplicas_AbandonedRunEnds is about a request that is cut off, and repeated to
// another replica.
func TestReplicas_AbandonedRunEnds(t *testing.T) {
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

// TestStop_EndsAfterTheGracePeriod ends the context of a run after it.
func TestStop_EndsAfterTheGracePeriod(t *testing.T) {
	t.Parallel()
	began, ended := make(chan struct{}), make(chan struct{})
	o := cluster()
	o.GracefulShutdownTimeout = new(50 * ms)
	mgr, err := NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, o, WithListener(listen(t)))
	if err != nil {
		t.Fatal(err)
	}
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete(reconcile.Func(func(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
		close(began)
		<-ctx.Done()
		close(ended)
		return reconcile.Result{}, ctx.Err()
	})); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		_ = mgr.Start(ctx) // it may say that the period was too short
		close(stopped)
	}()
	op := &operator{t: t, url: "http://" + mgr.(*manager).server.listener.Addr().String()}
	go func() { _, _ = op.try(dueEvent("ConfigMap/ns/a"), "") }() // cut off
	<-began
	stop()
	for _, c := range []chan struct{}{ended, stopped} {
		select {
		case <-c:
		case <-time.After(patience):
			t.Fatal("it has not ended")
		}
	}
}

// silentCache never starts.
type silentCache struct{ *informertest.FakeInformers }

// GetInformer implements cache.Informers.
func (silentCache) GetInformer(ctx context.Context, _ client.Object, _ ...cache.InformerGetOption) (cache.Informer, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestStart_EndsWithItsError says that a start that fails ends with the reason, and a
// start that is stopped without one.
func TestStart_EndsWithItsError(t *testing.T) {
	busy := listen(t)
	defer busy.Close()
	_, port, err := net.SplitHostPort(busy.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PORT", port)
	closed := listen(t)
	closed.Close()
	silent := silentCache{&informertest.FakeInformers{}}
	for name, row := range map[string]struct {
		cache   cache.Cache
		timeout time.Duration
		opts    []Option
		stop    time.Duration
		want    string
	}{
		"a cache that does not come up":     {cache: silent, timeout: 50 * ms, want: "timed out waiting"},
		"stopped while the cache comes up":  {cache: silent, timeout: time.Hour, stop: 50 * ms},
		"a port that is taken":              {want: "events cannot come in"},
		"a listener that does not work":     {opts: []Option{WithListener(closed)}, want: "use of closed"},
		"a listener, stopped while it runs": {opts: []Option{WithListener(listen(t))}, stop: 50 * ms},
	} {
		o := cluster()
		o.Controller.CacheSyncTimeout = row.timeout
		if row.cache != nil {
			o.NewCache = func(*rest.Config, cache.Options) (cache.Cache, error) { return row.cache, nil }
			row.opts = append(row.opts, WithCachedReads(), WithListener(listen(t)))
		}
		mgr, err := NewManager(&rest.Config{Host: "http://127.0.0.1:1"}, o, row.opts...)
		if err != nil {
			t.Fatal(err)
		}
		if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.ConfigMap{}).Complete((&log{}).as("ran")); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(row.stop, patience))
		err = mgr.Start(ctx)
		if row.want == "" && err != nil || row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want) || ctx.Err() != nil) {
			t.Errorf("%s: it ended with %v", name, err)
		}
		cancel()
		if l := mgr.(*manager).server.listener; l != nil {
			if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
				t.Errorf("%s: its listener is open", name)
			}
		}
	}
}

// TestStop_RunsWithoutADelivery is about a run that no delivery waits for any more, and
// about a queue that has ended.
func TestStop_RunsWithoutADelivery(t *testing.T) {
	t.Parallel()
	q := newQueue("q", nil)
	r := q.join(q.target(playRequest))
	q.join(q.target(playRequest))
	if q.leave(r); q.Len() != 1 {
		t.Error("a delivery still waits for it")
	}
	if q.leave(r); q.Len() != 0 || len(q.order) != 0 {
		t.Error("it may still begin")
	}
	if <-r.done; !errors.Is(r.err, errAbandoned) {
		t.Errorf("it ended with %v", r.err)
	}
	q.halt()
	if r := q.join(q.target(playRequest)); !errors.Is(r.err, errStopping) {
		t.Errorf("after the end it ended with %v", r.err)
	}
}
