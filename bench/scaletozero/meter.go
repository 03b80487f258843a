package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// every is the interval between readings.
const every = time.Second

// reading is what a subject used up to now. Its subject is the uid of a pod (with all of its
// containers and its sandbox), the same after shimOf (the container runtime's process beside
// the pod, in no pod's control group), apiServer, kubernetesItself or nodeItself.
type reading struct {
	cpu    float64 // seconds since its start
	memory float64 // bytes of its own, the kernel's for it included
	text   float64 // bytes of programs and libraries that are mapped: shared by all pods of an image on a node, and read again when dropped
}

const shimOf = "shim "

// node reads the kernel's own counters, which are exact, on the machine of the pods.
type node struct{ cgroups, proc string } // /sys/fs/cgroup and /proc

var (
	podDir      = regexp.MustCompile(`pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})(\.slice)?$`)
	containerID = regexp.MustCompile(`[0-9a-f]{64}`)
	// programs are the processes of the node and of the control plane, with their subject; the kernel cuts their names.
	programs = map[string]string{
		"kube-apiserver": apiServer, "kubelet": kubernetesItself, "containerd": kubernetesItself,
		"etcd": kubernetesItself, "kube-scheduler": kubernetesItself, "kube-controller": kubernetesItself,
	}
)

// podUID returns the uid of the pod with a control group, or "".
func podUID(dir string) string {
	if m := podDir.FindStringSubmatch(dir); m != nil {
		return strings.ReplaceAll(m[1], "_", "-")
	}
	return ""
}

// groups is a version of control groups: where its counters are, and their names.
type groups struct {
	cpuDir, cpuFile, cpuField string
	second                    float64 // of the CPU counter
	memoryDir, memoryFile     string
	cacheField                string // of memory.stat: pages of files
}

func (n node) groups() groups {
	dir := filepath.Join(n.cgroups, "cpuacct")
	if _, err := os.Stat(dir); err == nil {
		return groups{dir, "cpuacct.usage", "", 1e9, filepath.Join(n.cgroups, "memory"), "memory.usage_in_bytes", "total_cache"}
	}
	return groups{n.cgroups, "cpu.stat", "usage_usec", 1e6, n.cgroups, "memory.current", "file"}
}

// field returns a number of a file of names with numbers. A number alone has the name "".
func field(file, name string) (float64, error) {
	text, err := os.ReadFile(file)
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), strings.TrimLeft(name+" ", " ")); found {
			return strconv.ParseFloat(value, 64)
		}
	}
	return 0, errors.Join(err, fs.ErrNotExist)
}

// read returns the usage of the pod with a control group below cpuDir.
func (g groups) read(dir string) (reading, error) {
	memory := filepath.Join(g.memoryDir, strings.TrimPrefix(dir, g.cpuDir))
	cpu, cpuErr := field(filepath.Join(dir, g.cpuFile), g.cpuField)
	usage, usageErr := field(filepath.Join(memory, g.memoryFile), "")
	cache, statErr := field(filepath.Join(memory, "memory.stat"), g.cacheField)
	return reading{cpu: cpu / g.second, memory: usage - cache}, errors.Join(cpuErr, usageErr, statErr)
}

func (n node) read(context.Context) (map[string]reading, error) {
	proc, err := procfs.NewFS(n.proc)
	if err != nil {
		return nil, err
	}
	readings, pods := map[string]reading{}, map[string]string{} // pods: uid by id of each container and sandbox
	g := n.groups()
	filepath.WalkDir(g.cpuDir, func(dir string, d fs.DirEntry, err error) error {
		uid := podUID(dir)
		if err != nil { // it ended meanwhile
			return fs.SkipDir
		}
		if uid == "" || !d.IsDir() {
			return nil
		}
		r, err := g.read(dir)
		if err != nil {
			return fs.SkipDir
		}
		containers, _ := os.ReadDir(dir)
		for _, container := range containers {
			if id := containerID.FindString(container.Name()); id != "" {
				pods[id] = uid
				r.text += text(proc, filepath.Join(dir, container.Name()))
			}
		}
		readings[uid] = r
		return fs.SkipDir
	})
	if info, err := proc.Meminfo(); err == nil && info.MemTotalBytes != nil && info.MemAvailableBytes != nil {
		readings[nodeItself] = reading{memory: float64(*info.MemTotalBytes - *info.MemAvailableBytes)}
	}
	all, err := proc.AllProcs()
	for _, p := range all {
		program, _ := p.Comm()
		switch {
		case program == "containerd-shim":
			arguments, _ := p.CmdLine()
			uid := pods[containerID.FindString(strings.Join(arguments, " "))]
			memory, err := p.ProcSMapsRollup()
			stat, err2 := p.Stat()
			if uid != "" && errors.Join(err, err2) == nil { // other shims share the rest of its memory
				readings[shimOf+uid] = reading{cpu: stat.CPUTime(), memory: float64(memory.PrivateClean + memory.PrivateDirty)}
			}
		case programs[program] != "":
			status, err := p.NewStatus()
			stat, err2 := p.Stat()
			if r := readings[programs[program]]; errors.Join(err, err2) == nil {
				readings[programs[program]] = reading{r.cpu + stat.CPUTime(), r.memory + float64(status.RssAnon), r.text + float64(status.RssFile)}
			}
		}
	}
	return readings, err
}

// text returns the bytes of files that the processes of a container have mapped. The control
// group does not have them: it counts a page for its first reader, often the container runtime.
func text(proc procfs.FS, container string) (sum float64) {
	pids, _ := os.ReadFile(filepath.Join(container, "cgroup.procs"))
	for pid := range strings.FieldsSeq(string(pids)) {
		n, _ := strconv.Atoi(pid)
		if p, err := proc.Proc(n); err == nil {
			status, _ := p.NewStatus() // zero when it ended meanwhile
			sum += float64(status.RssFile)
		}
	}
	return sum
}

// kubelets reads the summaries of the kubelets of all nodes, from any machine. A kubelet
// reads each container about every ten to fifteen seconds: the last seconds of a pod's life
// are missing, and memory between two samples is a straight line. They lack programs, shims
// and the cluster's own processes.
func (c *cluster) kubelets(ctx context.Context) (map[string]reading, error) {
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	readings := map[string]reading{}
	for _, n := range nodes.Items {
		text, err := c.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", n.Name, "proxy/stats/summary").DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		if err := addSummary(readings, text); err != nil {
			return nil, err
		}
	}
	return readings, nil
}

func addSummary(readings map[string]reading, text []byte) error {
	var summary struct {
		Pods []struct {
			PodRef struct{ UID string }
			CPU    struct{ UsageCoreNanoSeconds float64 }
			Memory struct{ RSSBytes float64 }
		}
	}
	err := json.Unmarshal(text, &summary)
	for _, p := range summary.Pods {
		readings[p.PodRef.UID] = reading{cpu: p.CPU.UsageCoreNanoSeconds / 1e9, memory: p.Memory.RSSBytes}
	}
	return err
}

// record adds up the readings of each subject.
type record struct {
	began, last time.Time
	subjects    map[string]*track
	partOf      func(uid string) (part, namespace string)
	readings    int
	traces      map[string][][2]float64 // of the first operator of some forms and of the node, at every fourth reading
}

// track is what a subject used since the record began.
type track struct {
	first, last time.Time
	older       bool    // it was there when the record began
	peak        float64 // bytes
	reading
	cost
}

// add adds a reading of all subjects. Memory between two readings is a straight line. A
// subject that is not older than the record had used nothing when it started.
func (r *record) add(now time.Time, readings map[string]reading) {
	if r.began.IsZero() {
		r.began = now
	}
	traced := map[string]float64{resident: 0, asleep: 0, serverless: 0, nodeItself: 0, withoutKnative: 0}
	for id, read := range readings {
		t := r.subjects[id]
		if t == nil {
			t = &track{first: now, last: now, older: now.Equal(r.began), reading: read}
			if !t.older {
				t.CPU = read.cpu
			}
			r.subjects[id] = t
		}
		seconds := now.Sub(t.last).Seconds()
		t.cost = t.plus(cost{(t.memory + read.memory) / 2 * seconds, (t.text + read.text) / 2 * seconds, max(read.cpu-t.cpu, 0)}) // a restarted process begins at 0
		t.last, t.reading, t.peak = now, read, max(t.peak, read.memory+read.text)
		part, ns := r.partOf(id)
		if id != nodeItself && !slices.Contains(ofKnative, part) {
			traced[withoutKnative] += read.memory
		}
		if bytes, is := traced[part]; is && (ns == "" || ns == namespace(part, 0)) {
			traced[part] = bytes + read.memory + read.text
		}
	}
	r.last = now
	if r.readings++; r.readings%4 == 1 {
		for form, bytes := range traced {
			r.traces[form] = append(r.traces[form], [2]float64{now.Sub(r.began).Seconds(), bytes})
		}
	}
}

// bill adds up what all subjects that belong to a part used.
func (r *record) bill() *bill {
	b := &bill{TakenAt: r.began, Seconds: r.last.Sub(r.began).Seconds(), Asked: map[string]int{}, Used: map[string]use{}}
	for id, t := range r.subjects {
		uid, isShim := strings.CutPrefix(id, shimOf)
		part, _ := r.partOf(uid)
		u := b.Used[part]
		switch seconds := t.last.Sub(t.first).Seconds(); {
		case part == "":
			continue
		case isShim:
			u.Shim = u.Shim.plus(t.cost)
		default:
			u.Pod, u.Pods, u.There, u.Peak = u.Pod.plus(t.cost), u.Pods+1, u.There+seconds, max(u.Peak, t.peak)
			if atZeroForm(part) && !t.older && t.last.Before(r.last.Add(-3*every)) {
				l := life{seconds, t.cost}
				if shim := r.subjects[shimOf+id]; shim != nil {
					l.Cost = l.Cost.plus(shim.cost)
				}
				u.Lives = append(u.Lives, l)
			}
		}
		b.Used[part] = u
	}
	return b
}

// partOf returns the part of a subject, without its shim, and its namespace.
func (c *cluster) partOf(uid string) (part, namespace string) {
	if uid == kubernetesItself || uid == apiServer || uid == nodeItself {
		return uid, ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return podPart(c.pods[uid]), c.pods[uid].Namespace
}

// measure records while something is done.
func (c *cluster) measure(ctx context.Context, during func()) *bill {
	c.mu.Lock()
	c.late = map[string][]float64{}
	c.mu.Unlock()
	r := &record{subjects: map[string]*track{}, partOf: c.partOf, traces: map[string][][2]float64{}}
	over := make(chan struct{})
	go func() {
		defer close(over)
		during()
	}()
	for done, tick := false, time.Tick(every); !done; {
		readings, err := c.read(ctx)
		if err != nil {
			log.Print(err) // it leaves a gap
		} else {
			r.add(time.Now(), readings)
		}
		select {
		case <-over:
			done = true
		case <-tick:
		}
	}
	b := r.bill()
	c.mu.Lock()
	defer c.mu.Unlock()
	b.Late, b.Traces = maps.Clone(c.late), r.traces
	return b
}

// The parts of the bill: costs are added up for each.
const (
	resident   = "resident"   // the operator that runs all the time, with an informer
	thin       = "thin"       // the operator that runs all the time, behind a source that watches
	asleep     = "asleep"     // the same, which its source scales to zero
	serverless = "serverless" // the same, which Knative scales to zero

	denseResident = "dense-resident" // one of many, each with its own kind
	denseAsleep   = "dense-asleep"

	adapter    = "adapter"    // RescheduleSource's data plane
	controller = "controller" // RescheduleSource's control plane

	activator  = "activator"
	autoscaler = "autoscaler"
	serving    = "serving" // the rest of Knative Serving
	ingress    = "ingress"
	eventing   = "eventing" // Knative Eventing without its Broker

	apiServer        = "API server"
	kubernetesItself = "kubernetes"          // the other processes of the node and of the control plane
	nodeItself       = "node"                // memory of the machine that is not available: MemTotal - MemAvailable
	withoutKnative   = "pods and Kubernetes" // memory of all pods but Knative's, and of the processes of Kubernetes
)

// ofKnative are the parts of Knative.
var ofKnative = []string{activator, autoscaler, serving, ingress, eventing}

// otherParts has the parts of pods outside of the operators' namespaces. The first pattern
// that matches namespace, component and name counts. The ingresses are Traefik, and the
// ingresses that Knative documents.
var otherParts = []struct {
	pattern *regexp.Regexp
	part    string
}{
	{regexp.MustCompile(`^(kourier-system|istio-system|contour-external|contour-internal|traefik) `), ingress},
	{regexp.MustCompile(`^knative-serving .*(gateway|traefik)`), ingress},
	{regexp.MustCompile(`^knative-serving \S* activator`), activator},
	{regexp.MustCompile(`^knative-serving \S* autoscaler-hpa`), serving},
	{regexp.MustCompile(`^knative-serving \S* autoscaler-`), autoscaler},
	{regexp.MustCompile(`^knative-serving `), serving},
	{regexp.MustCompile(`^(knative-eventing|reschedule-system) reschedule-adapter `), adapter},
	{regexp.MustCompile(`^(knative-eventing|reschedule-system) reschedule-controller `), controller},
	{regexp.MustCompile(`^knative-eventing \S* (imc|mt-broker)-`), ""},
	{regexp.MustCompile(`^knative-eventing `), eventing},
}

// podPart returns the part of a pod, or "" for one of another application, which is not counted.
func podPart(pod metav1.ObjectMeta) string {
	if form := formOf(pod.Namespace); form != "" {
		return form
	}
	name := strings.Join([]string{pod.Namespace, cmp.Or(pod.Labels["app.kubernetes.io/component"], "-"), pod.Name}, " ")
	for _, other := range otherParts {
		if other.pattern.MatchString(name) {
			return other.part
		}
	}
	return ""
}
