package main

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"log"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

// callTimeout bounds one call to the API server.
const callTimeout = 30 * time.Second

// cluster is the cluster of KUBECONFIG.
type cluster struct{ kubernetes.Interface }

// connect finds the cluster as kubectl does.
func connect() (cluster, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return cluster{}, fmt.Errorf("scaletozero: %w", err)
	}
	config.QPS = -1 // a call that waits for its turn would be a late reading
	client, err := kubernetes.NewForConfig(config)
	return cluster{client}, err
}

// pods returns the pods of all namespaces.
func (c cluster) pods(ctx context.Context) ([]corev1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list, err := c.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("scaletozero: %w", err)
	}
	return list.Items, nil
}

// conditions describes the cluster. The version of Knative is an argument because
// a cluster built from source does not have it.
func (c cluster) conditions(ctx context.Context, knative string) (conditions, error) {
	found := conditions{Commit: "unknown"}
	if commit, err := run(ctx, "", "git", "-C", repo, "describe", "--always"); err == nil {
		found.Commit = strings.TrimSpace(commit)
	}
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return found, fmt.Errorf("scaletozero: %w", err)
	}
	for _, n := range nodes.Items {
		info := n.Status.NodeInfo
		found.Node = fmt.Sprintf("%d node(s) with %s cores and %s, Linux %s, %s", len(nodes.Items), n.Status.Capacity.Cpu(), n.Status.Capacity.Memory(),
			info.KernelVersion, strings.Replace(info.ContainerRuntimeVersion, "://", " ", 1))
		found.Versions = append(found.Versions, "Kubernetes "+info.KubeletVersion)
	}
	eventing, err := c.AppsV1().Deployments("knative-eventing").Get(ctx, "eventing-controller", metav1.GetOptions{})
	if err != nil {
		return found, fmt.Errorf("scaletozero: %w", err)
	}
	found.Versions = append(slices.Compact(found.Versions), "Knative "+cmp.Or(knative, eventing.Labels["app.kubernetes.io/version"]))
	return found, nil
}

// run returns the output of a command, and its stderr in the error.
func run(ctx context.Context, stdin, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(stdin)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("scaletozero: %s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(stderr.Bytes()))
	}
	return string(out), nil
}

// operators has the number of operators of each form.
type operators map[string]int

type form struct{ name, manifest string }

// forms has the forms in their order, and which manifest of the example each is made of.
var forms = []form{
	{resident, "resident.yaml"},
	{serverless, "serverless.yaml"}, {warmed, "serverless.yaml"}, {defaults, "serverless.yaml"},
	{fed, "apiserversource.yaml"}, {shared, "apiserversource.yaml"},
}

// isForm says whether a part is a form of the operator.
func isForm(part string) bool {
	return slices.ContainsFunc(forms, func(f form) bool { return f.name == part })
}

// atZeroForm says whether a part is a form that has no pod while idle.
func atZeroForm(part string) bool { return isForm(part) && part != resident }

func namespace(form string, i int) string { return fmt.Sprintf("%s%s-%d", namespacePrefix, form, i) }

// formOf returns the form of the operator in a namespace of this program.
func formOf(namespace string) (string, bool) {
	form, found := strings.CutPrefix(namespace, namespacePrefix)
	form, _, _ = strings.Cut(form, "-")
	return form, found
}

// ready has the objects that must be ready before an operator is measured, by manifest.
var ready = map[string][]string{
	"resident.yaml":        {"deployment --for=condition=Available"},
	"serverless.yaml":      {"service.serving.knative.dev --for=condition=Ready", "reschedulesource --for=condition=Ready"},
	"apiserversource.yaml": {"service.serving.knative.dev --for=condition=Ready", "reschedulesource --for=condition=Ready", "apiserversource --for=condition=Ready"},
}

// deploy creates all operators, each in a namespace of its own, and waits until they are ready.
func deploy(ctx context.Context, n operators) error {
	for _, form := range forms {
		if n[form.name] == 0 {
			continue
		}
		manifest, err := run(ctx, "", "go", "-C", repo, "tool", "-modfile=tools/ko/go.mod", "ko", "resolve", "-f", "test/expiry/config/"+form.manifest)
		if err != nil {
			return err
		}
		for i := range n[form.name] {
			ns := namespace(form.name, i)
			log.Printf("%s: waiting until it is ready", ns)
			if _, err := run(ctx, manifestOf(form.name, manifest, ns), "kubectl", "apply", "-f", "-"); err != nil {
				return err
			}
			for _, kind := range ready[form.manifest] {
				args := append([]string{"-n", ns, "wait", "--all", "--timeout=5m"}, strings.Fields(kind)...)
				if _, err := run(ctx, "", "kubectl", args...); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// undeploy removes all of them.
func undeploy(ctx context.Context, n operators) error {
	args := []string{"delete", "namespace", "--ignore-not-found", "--wait=false"}
	for form := range n {
		for i := range n[form] {
			args = append(args, namespace(form, i))
		}
	}
	_, err := run(ctx, "", "kubectl", args...)
	return err
}

//go:embed shared.yaml
var sharedManifest string

var (
	exampleNamespace = regexp.MustCompile(`(?m)namespace: expiry$`)
	itsSettings      = regexp.MustCompile(`(?m)^ +(autoscaling\.knative\.dev/window|timeoutSeconds):.*\n`)
)

// warmUp is longer than a cold start, and not by much: the pod waits meanwhile.
const warmUp = "4s"

// manifestOf returns the manifest of one operator, made of the example's.
func manifestOf(form, manifest, ns string) string {
	var kept []string
	for d := range strings.SplitSeq(manifest, "\n---\n") {
		switch {
		case form == shared && strings.Contains(d, "kind: ApiServerSource"):
			continue
		case strings.Contains(d, "kind: Namespace"):
			d = strings.ReplaceAll(d, "name: expiry", "name: "+ns)
		case form == warmed && strings.Contains(d, "kind: RescheduleSource"):
			d = strings.Replace(d, "\nspec:\n", "\nspec:\n  warmUp: "+warmUp+"\n", 1)
		case form == defaults:
			d = itsSettings.ReplaceAllString(d, "")
		}
		kept = append(kept, d)
	}
	if form == shared {
		kept = append(kept, sharedManifest)
	}
	return exampleNamespace.ReplaceAllString(strings.Join(kept, "\n---\n")+"\n", "namespace: "+ns)
}

// atZero waits until only resident operators have a pod.
func (c cluster) atZero(ctx context.Context) error {
	const limit = 5 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		pods, err := c.pods(ctx)
		if err != nil {
			return err
		}
		var up []string
		for _, pod := range pods {
			if atZeroForm(podPart(pod.ObjectMeta)) {
				up = append(up, pod.Namespace+"/"+pod.Name)
			}
		}
		if len(up) == 0 {
			return nil
		}
		if wait(ctx, time.Second) != nil {
			return fmt.Errorf("scaletozero: after %s these pods still exist: %s", limit, strings.Join(up, ", "))
		}
	}
}

// job is one ConfigMap: it wakes the operator when it is created and when it expires.
type job struct {
	ns    string
	after time.Duration // from the beginning
	lives time.Duration
}

// gap is more than the time from a delivery until an operator is at zero again.
func gap(form string) time.Duration {
	if form == defaults {
		return 2 * time.Minute
	}
	return 80 * time.Second
}

// cycles returns the jobs of the step wakes: each operator is woken, its ConfigMap
// expires when it is at zero again, and so on; operators take turns.
func cycles(n operators, long time.Duration) (jobs []job) {
	begin := time.Duration(0)
	for _, form := range forms {
		for i := range n[form.name] {
			for at := begin; at+2*gap(form.name) <= long; at += 2 * gap(form.name) {
				jobs = append(jobs, job{ns: namespace(form.name, i), after: at, lives: gap(form.name)})
			}
			begin += 5 * time.Second
		}
	}
	return jobs
}

// sparse returns the jobs of the step run: in each operator two ConfigMaps, one
// after the other, that live for a quarter of the time; operators take turns.
func sparse(n operators, long time.Duration) (jobs []job) {
	for _, form := range forms {
		for i := range n[form.name] {
			begin := long/48 + time.Duration(i)*long/48
			for _, at := range []time.Duration{begin, begin + long/2} {
				jobs = append(jobs, job{ns: namespace(form.name, i), after: at, lives: (long / 4).Round(time.Second)})
			}
		}
	}
	return jobs
}

// deliveries returns how often the jobs wake the operators of each form.
func deliveries(jobs []job) map[string]int {
	asked := map[string]int{}
	for _, j := range jobs {
		form, _ := formOf(j.ns)
		asked[form] += 2
	}
	return asked
}

// work creates the ConfigMaps at their times, and returns when the time is over.
func (c cluster) work(ctx context.Context, jobs []job, long time.Duration) error {
	began := time.Now()
	errs := make([]error, len(jobs))
	var all sync.WaitGroup
	for i, j := range jobs {
		all.Go(func() {
			if wait(ctx, time.Until(began.Add(j.after))) != nil {
				return
			}
			_, errs[i] = c.CoreV1().ConfigMaps(j.ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				GenerateName: fmt.Sprintf("job-%d-", i), Labels: map[string]string{lives: j.lives.String()},
			}}, metav1.CreateOptions{})
		})
	}
	err := wait(ctx, long)
	all.Wait()
	for _, e := range errs {
		if e != nil {
			return fmt.Errorf("scaletozero: %w", e)
		}
	}
	return err
}

// lives is the label with the life of a ConfigMap, which the operator of the example reads.
const lives = "expires-after"

// lateness watches deletions of ConfigMaps until ctx ends. For each form it
// returns by how many seconds they were late.
func (c cluster) lateness(ctx context.Context) map[string][]float64 {
	late := map[string][]float64{}
	for ctx.Err() == nil {
		w, err := c.CoreV1().ConfigMaps("").Watch(ctx, metav1.ListOptions{LabelSelector: lives})
		if err != nil {
			_ = wait(ctx, time.Second)
			continue
		}
		stop := context.AfterFunc(ctx, w.Stop)
		for event := range w.ResultChan() {
			m, ok := event.Object.(*corev1.ConfigMap)
			if !ok || event.Type != "DELETED" {
				continue
			}
			life, err := time.ParseDuration(m.Labels[lives])
			if form, found := formOf(m.Namespace); found && err == nil {
				late[form] = append(late[form], time.Since(m.CreationTimestamp.Add(life)).Seconds())
			}
		}
		stop()
	}
	return late
}

func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
