package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

var knativeServices = schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "services"}

// pod is a pod of an operator: the object, and a process of this machine that has the
// rights of its account.
type pod struct {
	object  *corev1.Pod
	process *kube.Process
}

// workload is an operator in a namespace, whose pods are processes.
type workload struct {
	t               *testing.T
	namespace, name string
	binary, log     string
}

// start starts a pod with the labels, account and containers of a template.
func (w *workload) start(ctx context.Context, name string, template *corev1.PodTemplateSpec, env []string, args ...string) (*pod, error) {
	config, err := server.Kubeconfig(ctx, w.namespace, template.Spec.ServiceAccountName)
	if err != nil {
		return nil, err
	}
	o, err := server.Client.CoreV1().Pods(w.namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: template.Labels}, Spec: template.Spec,
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	process, err := kube.Launch(w.log, append(env, "KUBECONFIG="+config), w.binary, args...)
	if err != nil {
		return nil, err
	}
	return &pod{o, process}, nil
}

// end ends the process, and then the object goes.
func (w *workload) end(ctx context.Context, p *pod) error {
	var now int64
	return errors.Join(
		p.process.Terminate(ctx),
		server.Client.CoreV1().Pods(w.namespace).Delete(ctx, p.object.Name, metav1.DeleteOptions{GracePeriodSeconds: &now}),
	)
}

// background runs f until the test ends.
func (w *workload) background(f func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
		if w.t.Failed() {
			log, _ := os.ReadFile(w.log)
			w.t.Logf("%s:\n%s", w.log, tail(string(log)))
		}
	})
}

// named selects the one object of the workload's name.
func (w *workload) named() metav1.ListOptions {
	return metav1.ListOptions{FieldSelector: "metadata.name=" + w.name}
}

// resident is the Deployment of an operator.
type resident struct {
	workload

	args []string // in the place of the same flags of its container
}

// follow does what the Deployment controller and a node do: there is a pod while
// replicas is not 0.
func (r *resident) follow() {
	r.background(func(ctx context.Context) error {
		changes, err := server.Client.AppsV1().Deployments(r.namespace).Watch(ctx, r.named())
		if err != nil {
			return err
		}
		defer changes.Stop()
		var running *pod
		defer func() {
			if running != nil {
				running.process.Kill()
			}
		}()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return nil
			case change, open := <-changes.ResultChan():
				d, ok := change.Object.(*appsv1.Deployment)
				switch {
				case !open || !ok:
					return fmt.Errorf("the watch of Deployment %s ended with %v", r.name, change.Object)
				case *d.Spec.Replicas > 0 && running == nil:
					args := append(d.Spec.Template.Spec.Containers[0].Args, r.args...)
					running, err = r.start(ctx, fmt.Sprint(r.name, "-", n), &d.Spec.Template, nil, args...)
				case *d.Spec.Replicas == 0 && running != nil:
					err, running = r.end(ctx, running), nil
				}
				if err != nil {
					return err
				}
			}
		}
	})
}

// fromZero is the Knative Service of an operator, with what Knative Serving and a node do
// for it: a pod begins with a request, and ends after it.
type fromZero struct {
	workload

	template corev1.PodTemplateSpec
	pods     int
	mu       sync.Mutex
	served   []string // the types of events that were answered, with the status
}

func (z *fromZero) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	z.mu.Lock()
	defer z.mu.Unlock()
	if err := z.serve(w, r); err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		z.t.Logf("from zero: %v", err)
	}
}

func (z *fromZero) serve(w http.ResponseWriter, r *http.Request) error {
	address, err := harness.FreeAddress()
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(address)
	z.pods++
	p, err := z.start(r.Context(), fmt.Sprintf("%s-00001-%d", z.name, z.pods), &z.template, []string{"PORT=" + port}, z.template.Spec.Containers[0].Args...)
	if err != nil {
		return err
	}
	defer func() {
		if err := z.end(context.WithoutCancel(r.Context()), p); err != nil {
			z.t.Logf("from zero: %v", err)
		}
	}()
	if err := p.process.Until(r.Context(), listens(address)); err != nil {
		return err
	}
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address})
	proxy.ModifyResponse = func(answer *http.Response) error {
		z.served = append(z.served, fmt.Sprint(r.Header.Get("Ce-Type"), " ", answer.StatusCode))
		return nil
	}
	proxy.ServeHTTP(w, r)
	return nil
}

// count is how many events of this type were answered with this status, such as "TYPE 200".
func (z *fromZero) count(what string) (n int) {
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, s := range z.served {
		if s == what {
			n++
		}
	}
	return n
}

// succeeded wants every event so far to have had an answer that says so.
func (z *fromZero) succeeded() {
	z.t.Helper()
	z.mu.Lock()
	defer z.mu.Unlock()
	for _, s := range z.served {
		if !strings.Contains(s, " 2") {
			z.t.Errorf("an event was answered with %q", s)
		}
	}
}

// follow makes the Knative Service ready once a page has applied it, as its manifest says.
func (z *fromZero) follow() {
	z.t.Cleanup(func() {
		if z.t.Failed() {
			z.mu.Lock()
			defer z.mu.Unlock()
			z.t.Logf("served %q", z.served)
		}
	})
	door := httptest.NewServer(z)
	z.t.Cleanup(door.Close)
	z.background(func(ctx context.Context) error {
		client := server.Dynamic.Resource(knativeServices).Namespace(z.namespace)
		changes, err := client.Watch(ctx, z.named())
		if err != nil {
			return err
		}
		defer changes.Stop()
		var service *unstructured.Unstructured
		select {
		case <-ctx.Done():
			return nil
		case change := <-changes.ResultChan():
			var ok bool
			if service, ok = change.Object.(*unstructured.Unstructured); !ok {
				return fmt.Errorf("the watch of Knative Service %s ended with %v", z.name, change.Object)
			}
		}
		if err := z.read(service); err != nil {
			return err
		}
		service.Object["status"] = map[string]any{
			"address": map[string]any{"url": door.URL}, "latestReadyRevisionName": z.name + "-00001",
			"conditions": []any{map[string]any{"type": "Ready", "status": "True"}},
		}
		_, err = client.UpdateStatus(ctx, service, metav1.UpdateOptions{})
		return err
	})
}

// read makes the template of the pods from the Knative Service.
func (z *fromZero) read(service *unstructured.Unstructured) error {
	spec, _, err := unstructured.NestedMap(service.Object, "spec", "template", "spec")
	if err != nil {
		return err
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(spec, &z.template.Spec); err != nil {
		return err
	}
	z.template.Labels = map[string]string{"serving.knative.dev/service": z.name}
	z.template.Spec.Containers[0].Name = "user-container" // Knative's name for one without
	return nil
}
