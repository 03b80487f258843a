// Command scaletozero measures, in the cluster of KUBECONFIG, what the operator of test/expiry
// costs in four forms: resident with an informer, awake behind a RescheduleSource that watches
// for it, asleep by its source (spec.scale), and asleep by Knative. It writes their tables into
// docs/scale-to-zero.md and RESULTS.md, and the plots.
//
// It guarantees that all forms are the same program doing the same work, and that the bill is
// complete: the pods of RescheduleSource, Knative and the ingress, the container runtime's
// process beside each pod, and the CPU of the node and of the control plane.
//
// It works in steps, and each writes its part of results.json. deploy creates the operators.
// idle measures them while nothing is due. wakes wakes them, one form after the other, each
// after a time in which nothing is due. run does sparse work for a longer time, to test whether
// idle and wakes together predict it. clean removes the operators. render writes the pages. Two
// steps create and remove what they need: thin measures the two forms that are awake with many
// large objects, density (not one of the steps without arguments) many operators on one node. Nor is
// published, which measures the operators of test/published/install.sh.
// The cluster must have RescheduleSource, for the form serverless also Knative Serving and an
// ingress, and no other work. kubectl, go and a registry for ko (KO_DOCKER_REPO) are required.
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
	"k8s.io/client-go/metadata"
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
	settle := flag.Duration("settle", 3*time.Minute, "the wait until started pods have come to rest")
	idleFor := flag.Duration("idle-for", 5*time.Minute, "the duration of idle")
	before := flag.Duration("before", time.Minute, "how long a form is measured before it is woken, loaded or put to work")
	wakes := flag.Int("wakes", 40, "the deliveries to each form in wakes: half of them by timers, whose time is measured")
	objects := flag.Int("objects", 10000, "the objects of thin")
	size := flag.Int("object-bytes", 10000, "the size of an object of thin")
	starts := flag.Int("starts", 5, "the starts of each form in thin")
	many := flag.Int("operators", 60, "the operators of density")
	each := flag.Duration("each", 30*time.Minute, "how long each form of published is measured")
	runFor := flag.Duration("run-for", 24*time.Minute, "the duration of run")
	flag.Parse()
	for _, f := range forms {
		atLeastOne(f.name, f.count)
	}
	for name, n := range map[string]int{"wakes": *wakes, "objects": *objects, "object-bytes": *size, "starts": *starts, "operators": *many} {
		atLeastOne(name, n)
	}
	steps := flag.Args()
	if len(steps) == 0 {
		steps = []string{"deploy", "idle", "wakes", "run", "clean", "thin", "render"}
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
			r.Conditions, r.Idle = c.conditions(ctx), c.measure(ctx, func() { wait(ctx, *idleFor) })
		case "wakes":
			c := connect(ctx)
			r.Wakes = map[string]woken{}
			for _, f := range forms {
				log.Print(f.name)
				c.atZero(ctx)
				idle := c.measure(ctx, func() { wait(ctx, *before) })
				jobs, long := cycles(f, *wakes)
				r.Wakes[f.name] = woken{idle, c.work(ctx, jobs, long)}
			}
		case "run":
			c := connect(ctx)
			c.atZero(ctx)
			r.Run = c.work(ctx, sparse(*runFor), *runFor)
		case "thin":
			c := connect(ctx)
			r.Thin = thinner{c.conditions(ctx), *objects, *size, map[string]crowd{}}
			for _, form := range []string{thin, resident} { // what the first leaves in the API server's memory counts against us
				r.Thin.Forms[form] = c.crowd(ctx, form, r.Thin, *starts, *settle, *before)
			}
		case "density":
			r.Density = connect(ctx).density(ctx, *many, *settle, *before)
		case "published":
			r.Published = connect(ctx).published(ctx, *each)
		case "clean":
			run(ctx, "", "kubectl", append([]string{"delete", "namespace", "--ignore-not-found"}, namespaces()...)...)
		case "render":
			check(render(repo, r))
		default:
			log.Fatalf("%q is not a step: want some of deploy, idle, wakes, run, clean, thin, density, published, render", step)
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

// atLeastOne ends the program if the number of a flag is less.
func atLeastOne(flag string, n int) {
	if n < 1 {
		log.Fatalf("-%s: %d is less than 1", flag, n)
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
	Conditions string
	Idle, Run  *bill            `json:",omitempty"`
	Wakes      map[string]woken `json:",omitempty"` // by form
	Thin       thinner          `json:",omitzero"`
	Density    *dense           `json:",omitempty"`
	Published  *published       `json:",omitempty"`
}

// woken is what the deliveries to one form cost, and the same cluster before them.
type woken struct{ Before, Wakes *bill }

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
	Peak      float64 // bytes: the most memory of one pod
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
	kubernetes.Interface
	metadata metadata.Interface
	read     func(context.Context) (map[string]reading, error)
	meter    string
	live     cache.Store // of the pods that are there
	mu       sync.Mutex
	pods     map[string]metav1.ObjectMeta // of all pods that were there, by uid
	late     map[string][]float64         // by how many seconds ConfigMaps were deleted late, for each form
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
	meta, err := metadata.NewForConfig(config)
	check(err)
	c := &cluster{Interface: client, metadata: meta, pods: map[string]metav1.ObjectMeta{}, late: map[string][]float64{}}
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
	knative := "no Knative"
	if eventing, err := c.AppsV1().Deployments("knative-eventing").Get(ctx, "eventing-controller", metav1.GetOptions{}); err == nil {
		knative = "Knative " + eventing.Labels["app.kubernetes.io/version"]
	}
	of, info := nodes.Items[0].Status.Capacity, nodes.Items[0].Status.NodeInfo
	return fmt.Sprintf("%d node(s) with %s cores and %s, Linux %s, %s; Kubernetes %s, %s; %s; commit %s", len(nodes.Items), of.Cpu(), of.Memory(), info.KernelVersion,
		strings.Replace(info.ContainerRuntimeVersion, "://", " ", 1), info.KubeletVersion, knative, c.meter, run(ctx, "", "git", "-C", repo, "describe", "--always"))
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
	gap   time.Duration // more than the time from a delivery until the operator is at zero again
	ready string        // the objects that become ready, and the condition
}

// forms has them in their order, in which wakes measures them.
var forms = []form{
	{resident, 3, "that run all the time", 5 * time.Second, "deployment --for=condition=Available"},
	{thin, 3, "that run all the time, behind a source that watches", 5 * time.Second, "reschedulesource --for=condition=Ready"},
	{asleep, 5, "at zero by their source", 40 * time.Second, "reschedulesource --for=condition=Ready"},
	{serverless, 5, "at zero by Knative", 80 * time.Second, "ksvc,reschedulesource --for=condition=Ready"},
}

// atZeroForm says whether a part is a form that has no pod while idle.
func atZeroForm(part string) bool { return part == asleep || part == serverless || part == denseAsleep }

// namespacePrefix begins the name of every namespace that this program makes.
const namespacePrefix = "expiry-"

func namespace(form string, i int) string { return fmt.Sprintf("%s%s-%d", namespacePrefix, form, i) }

// formOf returns the form of the operator in a namespace of this program, or "".
func formOf(namespace string) string {
	name, found := strings.CutPrefix(namespace, namespacePrefix)
	if !found {
		return ""
	}
	return name[:max(strings.LastIndex(name, "-"), 0)]
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
		manifest := manifestOf(ctx, form.name)
		for i := range form.count {
			ns := namespace(form.name, i)
			log.Printf("%s: waiting until it is ready", ns)
			run(ctx, inNamespace(manifest, ns), "kubectl", "apply", "-f", "-")
			run(ctx, "", "kubectl", append([]string{"-n", ns, "wait", "--all", "--timeout=5m"}, strings.Fields(form.ready)...)...)
		}
	}
}

// manifestOf returns the manifest of a form, with images.
func manifestOf(ctx context.Context, form string) string {
	manifest := run(ctx, "", "kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", "scaletozero/forms/"+form)
	return run(ctx, manifest, "go", "-C", repo, "run", "-modfile=tools/ko/go.mod", "github.com/google/ko", "resolve", "-f", "-")
}

// inNamespace returns the manifest of the example for another namespace.
func inNamespace(manifest, ns string) string {
	const itself = "kind: Namespace\nmetadata:\n  name: "
	return strings.NewReplacer("namespace: expiry\n", "namespace: "+ns+"\n", itself+"expiry\n", itself+ns+"\n").Replace(manifest)
}

// await waits until it is so, or ends the program: what says what is waited for.
func await(ctx context.Context, what string, so func() bool) {
	const limit = 10 * time.Minute
	for began := time.Now(); !so(); wait(ctx, time.Second) {
		if time.Since(began) > limit {
			log.Fatalf("after %s still not: %s", limit, what)
		}
	}
}

// atZero waits until only operators that are awake all the time have a pod.
func (c *cluster) atZero(ctx context.Context) {
	await(ctx, "all operators that sleep are at zero", func() bool {
		return !slices.ContainsFunc(c.live.List(), func(object any) bool { return atZeroForm(podPart(object.(*corev1.Pod).ObjectMeta)) })
	})
}

// job is one ConfigMap: it wakes the operator when it is created and when it expires.
type job struct {
	ns           string
	after, lives time.Duration // from the beginning, and from then
}

// cycles returns the jobs of so many deliveries to a form, and how long they take: each
// operator is woken, its ConfigMap expires when it is at zero again, and so on; operators take
// turns.
func cycles(f form, deliveries int) (jobs []job, long time.Duration) {
	for i := 0; 2*len(jobs) < deliveries; i++ {
		round, turn := time.Duration(i/f.count), time.Duration(i%f.count)
		at := round*2*f.gap + turn*f.gap/time.Duration(f.count)
		jobs, long = append(jobs, job{namespace(f.name, i%f.count), at, f.gap}), at+2*f.gap
	}
	return jobs, long
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

// work creates the ConfigMaps at their times. It measures until the operators are at zero again,
// and a little longer.
func (c *cluster) work(ctx context.Context, jobs []job, long time.Duration) *bill {
	log.Printf("%d ConfigMaps in %s", len(jobs), long)
	for i, j := range jobs {
		time.AfterFunc(j.after, func() {
			_, err := c.CoreV1().ConfigMaps(j.ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{
				GenerateName: fmt.Sprintf("job-%d-", i), Labels: map[string]string{lives: j.lives.Round(time.Second).String()},
			}}, metav1.CreateOptions{})
			check(err)
		})
	}
	b := c.measure(ctx, func() {
		wait(ctx, long)
		c.atZero(ctx)
		wait(ctx, 5*time.Second)
	})
	for _, j := range jobs {
		b.Asked[formOf(j.ns)] += 2 // when it is created, and when it expires
	}
	return b
}
