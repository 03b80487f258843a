// Command scaletozero measures, in the cluster of KUBECONFIG, the cost of an operator that
// runs all the time and the cost of the same operator that scales to zero behind a
// RescheduleSource. It writes their tables into docs/scale-to-zero.md and RESULTS.md, and the plot.
//
// It guarantees that both forms are the same program doing the same work at the same time,
// and that the bill is complete: the pods of ApiServerSource, RescheduleSource, Knative and
// the ingress, the container runtime's process beside each pod, and the CPU of the node and
// of the control plane.
//
// It works in steps, and each writes its part of results.json. deploy creates the operators
// of test/expiry. idle measures them while nothing is due. wakes wakes each of them a few
// times and measures the whole life of the pods that start. run does sparse work for a
// longer time, to test whether idle and wakes together predict it. clean removes the
// operators. render writes the pages. The cluster must have Knative Eventing and Serving, an
// ingress and RescheduleSource, and no other work while idle and wakes run. kubectl, go and
// a registry for ko (KO_DOCKER_REPO) are required.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// repo is the repository: the program runs in its directory bench.
const repo, saved = "..", "scaletozero/results.json"

func main() {
	log.SetFlags(log.Ltime)
	for i := range forms {
		f := &forms[i]
		flag.IntVar(&f.count, f.name, f.count, "operators "+f.about)
	}
	settle := flag.Duration("settle", 3*time.Minute, "the wait before idle, until the started pods have come to rest")
	idleFor := flag.Duration("idle-for", 5*time.Minute, "the duration of idle")
	wakesFor := flag.Duration("wakes-for", 8*time.Minute, "the duration of wakes")
	runFor := flag.Duration("run-for", 24*time.Minute, "the duration of run")
	flag.Parse()
	steps := flag.Args()
	if len(steps) == 0 {
		steps = []string{"deploy", "idle", "wakes", "run", "clean", "render"}
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	r, err := load(saved)
	check(err)
	for _, step := range steps {
		log.Print(step)
		switch step {
		case "deploy":
			deploy(ctx)
		case "idle":
			c := connect(ctx)
			log.Printf("%s to come to rest, then %s", *settle, *idleFor)
			c.atZero(ctx)
			wait(ctx, *settle)
			r.Conditions, r.Idle = c.conditions(ctx), c.measure(ctx, nil, *idleFor, 0)
		case "wakes":
			r.Wakes = connect(ctx).measure(ctx, cycles(*wakesFor), *wakesFor, 5*time.Second)
		case "run":
			r.Run = connect(ctx).measure(ctx, sparse(*runFor), *runFor, 0)
		case "clean":
			run(ctx, "", "kubectl", append([]string{"delete", "namespace", "--ignore-not-found", "--wait=false"}, namespaces()...)...)
		case "render":
			check(render(repo, r))
		default:
			log.Fatalf("%q is not a step: want some of deploy, idle, wakes, run, clean, render", step)
		}
		text, err := json.MarshalIndent(r, "", " ")
		check(err)
		check(os.WriteFile(saved, append(text, '\n'), 0o644))
	}
}

func load(file string) (*results, error) {
	r := new(results)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return r, json.Unmarshal(text, r)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// wait ends the program when ctx ends.
func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
		log.Fatal(ctx.Err())
	case <-time.After(d):
	}
}

// results has one part for each step, so one step can be measured again without the others.
type results struct {
	Conditions       string
	Idle, Wakes, Run *bill
}

// bill is what a step measured.
type bill struct {
	TakenAt time.Time
	Seconds float64
	Asked   map[string]int          // deliveries, for each form
	Late    map[string][]float64    // seconds from the due time to the end of the work, for each form
	Used    map[string]use          // by part
	Traces  map[string][][2]float64 // memory of one operator of a form: seconds, bytes
}

// Minutes and Day are for the page.
func (b *bill) Minutes() string { return fmt.Sprintf("%.0f minutes", b.Seconds/60) }
func (b *bill) Day() string     { return b.TakenAt.UTC().Format("2006-01-02 15:04 UTC") }

// use is what the pods of a part used.
type use struct {
	Pod, Shim cost    // Shim: of the container runtime's processes beside them
	Pods      int     // that were there, also for a while
	There     float64 // seconds that they were there, added up
	Lives     []life  // of the pods of an operator that came and went
}

// life is the whole life of one pod, with the process beside it.
type life struct {
	Seconds float64
	Cost    cost
}

// cost is memory over time, and CPU time.
type cost struct {
	Memory float64 // byte-seconds of its own
	Text   float64 // byte-seconds of mapped programs
	CPU    float64 // seconds
}

func (c cost) plus(other cost) cost {
	return cost{c.Memory + other.Memory, c.Text + other.Text, c.CPU + other.CPU}
}

func (c cost) times(n float64) cost { return cost{c.Memory * n, c.Text * n, c.CPU * n} }

// bytes returns all memory.
func (c cost) bytes() float64 { return c.Memory + c.Text }

// cluster is the cluster of KUBECONFIG. It watches pods, and ConfigMaps that expire.
type cluster struct {
	*kubernetes.Clientset
	read  func(context.Context) (map[string]reading, error)
	meter string
	live  cache.Store // of the pods that are there
	mu    sync.Mutex
	pods  map[string]metav1.ObjectMeta // of all pods that were there, by uid
	late  map[string][]float64         // by how many seconds ConfigMaps were deleted late, for each form
}

// lives is the label with the life of a ConfigMap, which the operator of the example reads.
const lives = "expires-after"

// connect finds the cluster as kubectl does. It reads the kernel's counters if they have pods of it.
func connect(ctx context.Context) *cluster {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	check(err)
	config.QPS = -1 // a call that waits for its turn would be a late reading
	client, err := kubernetes.NewForConfig(config)
	check(err)
	c := &cluster{Clientset: client, pods: map[string]metav1.ObjectMeta{}, late: map[string][]float64{}}
	c.live = c.watch(ctx, "pods", &corev1.Pod{}, cache.ResourceEventHandlerFuncs{AddFunc: func(object any) {
		pod := object.(*corev1.Pod).ObjectMeta
		c.mu.Lock()
		defer c.mu.Unlock()
		c.pods[string(pod.UID)] = pod
	}})
	c.watch(ctx, "configmaps", &corev1.ConfigMap{}, cache.ResourceEventHandlerFuncs{DeleteFunc: func(object any) {
		if m, ok := object.(*corev1.ConfigMap); ok {
			life, err := time.ParseDuration(m.Labels[lives])
			if form := formOf(m.Namespace); form != "" && err == nil {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.late[form] = append(c.late[form], time.Since(m.CreationTimestamp.Add(life)).Seconds())
			}
		}
	}})
	c.read, c.meter = c.kubelets, "the kubelet's summary, 10 to 15 s old"
	here := node{cgroups: "/sys/fs/cgroup", proc: "/proc"}
	readings, err := here.read(ctx)
	check(err)
	for uid := range readings {
		if _, namespace := c.partOf(uid); namespace != "" {
			c.read, c.meter = here.read, fmt.Sprintf("the kernel's counters, read every %s", every)
		}
	}
	log.Print(c.conditions(ctx))
	return c
}

// watch calls the handler of what happens to objects of a resource. It returns the store of
// the objects that are there, once it has all of them.
func (c *cluster) watch(ctx context.Context, resource string, object runtime.Object, handler cache.ResourceEventHandler) cache.Store {
	informer := cache.NewSharedInformer(cache.NewListWatchFromClient(c.CoreV1().RESTClient(), resource, "", fields.Everything()), object, 0)
	registered, err := informer.AddEventHandler(handler)
	check(err)
	go informer.Run(ctx.Done())
	cache.WaitForCacheSync(ctx.Done(), registered.HasSynced)
	return informer.GetStore()
}

// conditions describes the cluster: a figure means nothing without them.
func (c *cluster) conditions(ctx context.Context) string {
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	check(err)
	eventing, err := c.AppsV1().Deployments("knative-eventing").Get(ctx, "eventing-controller", metav1.GetOptions{})
	check(err)
	of, info := nodes.Items[0].Status.Capacity, nodes.Items[0].Status.NodeInfo
	return fmt.Sprintf("%d node(s) with %s cores and %s, Linux %s, %s; Kubernetes %s, Knative %s; %s; commit %s", len(nodes.Items), of.Cpu(), of.Memory(), info.KernelVersion,
		strings.Replace(info.ContainerRuntimeVersion, "://", " ", 1), info.KubeletVersion, eventing.Labels["app.kubernetes.io/version"], c.meter, run(ctx, "", "git", "-C", repo, "describe", "--always"))
}

// run returns the output of a command.
func run(ctx context.Context, stdin, name string, args ...string) string {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stderr = strings.NewReader(stdin), os.Stderr
	out, err := cmd.Output()
	check(err)
	return strings.TrimSpace(string(out))
}

// form is one way to run the operator of the example: the directory forms has its manifests.
type form struct {
	name  string
	count int
	about string
	ready string // the objects that become ready, and the condition
}

// forms has them in their order. All but the resident one have no pod while idle.
var forms = []form{
	{resident, 3, "that run all the time", "deployment --for=condition=Available"},
	{serverless, 3, "at zero, as the example has them", "ksvc,reschedulesource --for=condition=Ready"},
	{warmed, 2, "at zero with warm-up", "ksvc,reschedulesource --for=condition=Ready"},
	{defaults, 2, "at zero with Knative's own settings", "ksvc,reschedulesource --for=condition=Ready"},
	{fed, 1, "at zero behind an ApiServerSource each", "ksvc,reschedulesource,apiserversource --for=condition=Ready"},
	{shared, 1, "at zero behind a shared ApiServerSource and a Broker", "ksvc,reschedulesource,apiserversource --for=condition=Ready"},
}

// atZeroForm says whether a part is a form that has no pod while idle.
func atZeroForm(part string) bool {
	return part != resident && slices.ContainsFunc(forms, func(f form) bool { return f.name == part })
}

// namespacePrefix begins the name of every namespace that this program makes.
const namespacePrefix = "expiry-"

func namespace(form string, i int) string { return fmt.Sprintf("%s%s-%d", namespacePrefix, form, i) }

// formOf returns the form of the operator in a namespace of this program, or "".
func formOf(namespace string) string {
	name, found := strings.CutPrefix(namespace, namespacePrefix)
	if !found {
		return ""
	}
	name, _, _ = strings.Cut(name, "-")
	return name
}

// namespaces returns the namespaces of all operators.
func namespaces() (all []string) {
	for _, f := range forms {
		for i := range f.count {
			all = append(all, namespace(f.name, i))
		}
	}
	return all
}

// deploy creates all operators, each in a namespace of its own, and waits until they are ready.
func deploy(ctx context.Context) {
	for _, form := range forms {
		manifest := run(ctx, "", "kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", "scaletozero/forms/"+form.name)
		manifest = run(ctx, manifest, "go", "-C", repo, "run", "-modfile=tools/ko/go.mod", "github.com/google/ko", "resolve", "-f", "-")
		for i := range form.count {
			ns := namespace(form.name, i)
			log.Printf("%s: waiting until it is ready", ns)
			run(ctx, inNamespace(manifest, ns), "kubectl", "apply", "-f", "-")
			run(ctx, "", "kubectl", append([]string{"-n", ns, "wait", "--all", "--timeout=5m"}, strings.Fields(form.ready)...)...)
		}
	}
}

// inNamespace returns the manifest of the example for another namespace.
func inNamespace(manifest, ns string) string {
	const itself = "kind: Namespace\nmetadata:\n  name: "
	return strings.NewReplacer("namespace: expiry\n", "namespace: "+ns+"\n", itself+"expiry\n", itself+ns+"\n").Replace(manifest)
}

// atZero waits until only resident operators have a pod.
func (c *cluster) atZero(ctx context.Context) {
	const limit = 5 * time.Minute
	for began := time.Now(); ; {
		var up []string
		for _, object := range c.live.List() {
			if pod := object.(*corev1.Pod).ObjectMeta; atZeroForm(podPart(pod)) {
				up = append(up, pod.Namespace+"/"+pod.Name)
			}
		}
		if len(up) == 0 {
			return
		}
		if wait(ctx, time.Second); time.Since(began) > limit {
			log.Fatalf("these pods still exist after %s: %q", limit, up)
		}
	}
}

// job is one ConfigMap: it wakes the operator when it is created and when it expires.
type job struct {
	ns           string
	after, lives time.Duration // from the beginning, and from then
}

// gap is more than the time from a delivery until an operator is at zero again.
func gap(form string) time.Duration {
	if form == defaults {
		return 2 * time.Minute
	}
	return 80 * time.Second
}

// cycles returns the jobs of the step wakes: each operator is woken, its ConfigMap expires
// when it is at zero again, and so on; operators take turns.
func cycles(long time.Duration) (jobs []job) {
	for i, ns := range namespaces() {
		gap := gap(formOf(ns))
		for at := time.Duration(i) * 5 * time.Second; at+2*gap <= long; at += 2 * gap {
			jobs = append(jobs, job{ns, at, gap})
		}
	}
	return jobs
}

// sparse returns the jobs of the step run: in each operator two ConfigMaps, one after the
// other, that live for a quarter of the time; operators take turns.
func sparse(long time.Duration) (jobs []job) {
	for _, form := range forms {
		for i := range form.count {
			begin := long/48 + time.Duration(i)*long/48
			jobs = append(jobs, job{namespace(form.name, i), begin, long / 4}, job{namespace(form.name, i), begin + long/2, long / 4})
		}
	}
	return jobs
}

// work creates the ConfigMaps at their times.
func (c *cluster) work(ctx context.Context, jobs []job) {
	for i, j := range jobs {
		time.AfterFunc(j.after, func() {
			_, err := c.CoreV1().ConfigMaps(j.ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				GenerateName: fmt.Sprintf("job-%d-", i), Labels: map[string]string{lives: j.lives.Round(time.Second).String()},
			}}, metav1.CreateOptions{})
			check(err)
		})
	}
}
