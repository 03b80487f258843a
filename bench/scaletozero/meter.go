package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// reading is the usage of a subject up to now.
type reading struct {
	cpu    float64 // seconds since its start
	memory float64 // bytes of its own, the kernel's for it included
	text   float64 // bytes of programs and libraries that are mapped: shared by all pods of an image on a node, and read again when dropped
}

// subject is a pod or a process.
type subject struct {
	kind string // podOf, shimOf or processOf
	name string // uid of the pod, or name of the program
}

const (
	podOf     = "pod"     // all of its containers, its sandbox included
	shimOf    = "shim"    // the container runtime's process beside each pod, in no pod's cgroup
	processOf = "process" // of the node and of the control plane, if they run on this machine
)

// meter reads all subjects at this instant.
type meter func(ctx context.Context) (map[subject]reading, error)

var podDir = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})(\.slice)?$`)

// podUID returns the uid of the pod with a control group, or "".
func podUID(dir string) string {
	m := podDir.FindStringSubmatch(dir)
	if m == nil {
		return ""
	}
	return strings.ReplaceAll(m[1], "_", "-")
}

// node reads the kernel's own counters, which are exact, on the machine of the pods.
type node struct {
	cgroups, proc string // /sys/fs/cgroup and /proc
}

// groups is a version of control groups: where its counters are, and their names.
type groups struct {
	cpuDir, cpuFile, cpuField string
	second                    float64 // of the CPU counter
	memoryDir, memoryFile     string
	cacheField                string // of memory.stat: pages of files
}

func (n node) groups() groups {
	for _, name := range []string{"cpuacct", "cpu,cpuacct"} {
		dir := filepath.Join(n.cgroups, name)
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			return groups{dir, "cpuacct.usage", "", 1e9, filepath.Join(n.cgroups, "memory"), "memory.usage_in_bytes", "total_cache"}
		}
	}
	return groups{n.cgroups, "cpu.stat", "usage_usec", 1e6, n.cgroups, "memory.current", "file"}
}

// read returns the usage of the pod with a control group below cpuDir.
func (g groups) read(dir string) (reading, error) {
	memory := filepath.Join(g.memoryDir, strings.TrimPrefix(dir, g.cpuDir))
	cpu, cpuErr := fields(filepath.Join(dir, g.cpuFile))
	usage, usageErr := fields(filepath.Join(memory, g.memoryFile))
	stat, statErr := fields(filepath.Join(memory, "memory.stat"))
	return reading{cpu: cpu[g.cpuField] / g.second, memory: usage[""] - stat[g.cacheField]}, errors.Join(cpuErr, usageErr, statErr)
}

// fields reads a file of names with numbers. A number alone has the name "".
func fields(file string) (map[string]float64, error) {
	text, err := os.ReadFile(file)
	values := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		name, value, found := strings.Cut(strings.TrimSpace(line), " ")
		if !found {
			name, value = "", name
		}
		values[name], _ = strconv.ParseFloat(value, 64)
	}
	return values, err
}

var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

func (n node) read(context.Context) (map[subject]reading, error) {
	proc, err := procfs.NewFS(n.proc)
	if err != nil {
		return nil, fmt.Errorf("scaletozero: %w", err)
	}
	readings := map[subject]reading{}
	sandboxes := map[string]string{} // id of each container and sandbox to the uid of its pod
	g := n.groups()
	err = filepath.WalkDir(g.cpuDir, func(dir string, d fs.DirEntry, err error) error {
		if err != nil { // it ended meanwhile
			return fs.SkipDir
		}
		uid := podUID(dir)
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
				sandboxes[id] = uid
				r.text += text(proc, filepath.Join(dir, container.Name()))
			}
		}
		readings[subject{podOf, uid}] = r
		return fs.SkipDir
	})
	if err == nil {
		err = processes(proc, readings, sandboxes)
	}
	if err != nil {
		return nil, fmt.Errorf("scaletozero: %w", err)
	}
	return readings, nil
}

// text returns the bytes of files that the processes of a container have mapped. The
// control group does not have them: it counts a page for its first reader, often the
// container runtime.
func text(proc procfs.FS, container string) float64 {
	pids, _ := os.ReadFile(filepath.Join(container, "cgroup.procs"))
	sum := uint64(0)
	for pid := range strings.FieldsSeq(string(pids)) {
		n, _ := strconv.Atoi(pid)
		if p, err := proc.Proc(n); err == nil {
			status, _ := p.NewStatus() // zero when it ended meanwhile
			sum += status.RssFile
		}
	}
	return float64(sum)
}

// programs of the node and of the control plane; the kernel cuts their names.
var programs = []string{"kubelet", "containerd", "kube-apiserver", "etcd", "kube-scheduler", "kube-controller"}

// processes adds the shims of pods and the programs of Kubernetes.
func processes(proc procfs.FS, readings map[subject]reading, sandboxes map[string]string) error {
	all, err := proc.AllProcs()
	if err != nil {
		return err
	}
	for _, p := range all {
		program, _ := p.Comm()
		switch {
		case program == "containerd-shim":
			arguments, _ := p.CmdLine()
			uid := sandboxes[containerID.FindString(strings.Join(arguments, " "))]
			memory, err := p.ProcSMapsRollup()
			if uid == "" || err != nil {
				continue
			}
			own := memory.PrivateClean + memory.PrivateDirty // other shims share the rest
			readings[subject{shimOf, uid}] = reading{cpu: cpuTime(p), memory: float64(own)}
		case slices.Contains(programs, program):
			status, err := p.NewStatus()
			if err != nil {
				continue // it ended meanwhile
			}
			r := readings[subject{processOf, program}]
			readings[subject{processOf, program}] = reading{r.cpu + cpuTime(p), r.memory + float64(status.RssAnon), r.text + float64(status.RssFile)}
		}
	}
	return nil
}

func cpuTime(p procfs.Proc) float64 {
	stat, err := p.Stat()
	if err != nil {
		return 0
	}
	return stat.CPUTime()
}

// kubelets reads the metrics of the kubelets of all nodes, from any machine. A
// kubelet reads each container about every ten to fifteen seconds: the last
// seconds of a pod's life are missing, and memory between two samples is a
// straight line. The metrics lack shims and the cluster's own processes, and of
// mapped files they have only the pages that the pod was the first to read.
func (c cluster) kubelets(ctx context.Context) (map[subject]reading, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	nodes, err := c.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("scaletozero: %w", err)
	}
	readings := map[subject]reading{}
	for _, n := range nodes.Items {
		metrics, err := c.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", n.Name, "proxy/metrics/cadvisor").DoRaw(ctx)
		if err != nil {
			return nil, fmt.Errorf("scaletozero: %w", err)
		}
		cadvisor(string(metrics), readings)
	}
	return readings, nil
}

// cadvisorLine is a line about a whole pod: it names no container, no image and no sandbox.
var cadvisorLine = regexp.MustCompile(`^container_(cpu_usage_seconds_total|memory_rss|memory_mapped_file)\{container="",(?:.*,)?id="([^"]*)",image="",name="",.*\} (\S+)`)

func cadvisor(metrics string, readings map[subject]reading) {
	for line := range strings.Lines(metrics) {
		m := cadvisorLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		uid := podUID(m[2])
		value, err := strconv.ParseFloat(m[3], 64)
		if uid == "" || err != nil {
			continue
		}
		r := readings[subject{podOf, uid}]
		switch m[1] {
		case "cpu_usage_seconds_total":
			r.cpu = value
		case "memory_rss":
			r.memory = value
		default:
			r.text = value
		}
		readings[subject{podOf, uid}] = r
	}
}
