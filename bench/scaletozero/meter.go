package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

func (n node) read(context.Context) (map[subject]reading, error) {
	readings := map[subject]reading{}
	sandboxes := map[string]string{} // id of each container and sandbox to the uid of its pod
	hierarchy, version2 := n.hierarchy()
	err := filepath.WalkDir(hierarchy, func(dir string, d fs.DirEntry, err error) error {
		if err != nil { // it ended meanwhile
			return fs.SkipDir
		}
		uid := podUID(dir)
		if uid == "" || !d.IsDir() {
			return nil
		}
		r, err := n.pod(dir, version2)
		if err != nil {
			return fs.SkipDir
		}
		containers, _ := os.ReadDir(dir)
		for _, container := range containers {
			if id := containerID.FindString(container.Name()); id != "" {
				sandboxes[id] = uid
				r.text += n.text(filepath.Join(dir, container.Name()))
			}
		}
		readings[subject{podOf, uid}] = r
		return fs.SkipDir
	})
	if err != nil {
		return nil, fmt.Errorf("scaletozero: %w", err)
	}
	return readings, n.processes(readings, sandboxes)
}

// hierarchy returns the directory of the CPU counters: of version 1, or the only one of version 2.
func (n node) hierarchy() (dir string, version2 bool) {
	for _, name := range []string{"cpuacct", "cpu,cpuacct"} {
		if dir := filepath.Join(n.cgroups, name); isDir(dir) {
			return dir, false
		}
	}
	return n.cgroups, true
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

func (n node) pod(dir string, version2 bool) (reading, error) {
	if version2 {
		cpu, err := fields(filepath.Join(dir, "cpu.stat"))
		if err != nil {
			return reading{}, err
		}
		usage, err := number(filepath.Join(dir, "memory.current"))
		if err != nil {
			return reading{}, err
		}
		stat, err := fields(filepath.Join(dir, "memory.stat"))
		return reading{cpu: cpu["usage_usec"] / 1e6, memory: usage - stat["file"]}, err
	}
	nanoseconds, err := number(filepath.Join(dir, "cpuacct.usage"))
	if err != nil {
		return reading{}, err
	}
	root, _ := n.hierarchy()
	below, err := filepath.Rel(root, dir)
	if err != nil {
		return reading{}, err
	}
	memory := filepath.Join(n.cgroups, "memory", below)
	usage, err := number(filepath.Join(memory, "memory.usage_in_bytes"))
	if err != nil {
		return reading{}, err
	}
	stat, err := fields(filepath.Join(memory, "memory.stat"))
	return reading{cpu: nanoseconds / 1e9, memory: usage - stat["total_cache"]}, err
}

// text returns the bytes of files that the processes of a container have mapped. The
// control group does not have them: it counts a page for its first reader, often the
// container runtime.
func (n node) text(container string) float64 {
	processes, _ := os.ReadFile(filepath.Join(container, "cgroup.procs"))
	sum := 0.0
	for pid := range strings.FieldsSeq(string(processes)) {
		if status, err := fields(filepath.Join(n.proc, pid, "status")); err == nil {
			sum += status["RssFile"] * 1024
		}
	}
	return sum
}

// number reads a file with one number.
func number(file string) (float64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
}

// fields reads a file of names with numbers.
func fields(file string) (map[string]float64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	values := map[string]float64{}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 {
			values[strings.TrimSuffix(f[0], ":")], _ = strconv.ParseFloat(f[1], 64)
		}
	}
	return values, nil
}

var (
	containerID = regexp.MustCompile(`[0-9a-f]{64}`)
	// programs of the node and of the control plane; the kernel cuts their names.
	programs = []string{"kubelet", "containerd", "kube-apiserver", "etcd", "kube-scheduler", "kube-controller"}
)

// processes adds the shims of pods and the programs of Kubernetes.
func (n node) processes(readings map[subject]reading, sandboxes map[string]string) error {
	dirs, err := filepath.Glob(filepath.Join(n.proc, "[0-9]*"))
	if err != nil {
		return fmt.Errorf("scaletozero: %w", err)
	}
	for _, dir := range dirs {
		name, err := os.ReadFile(filepath.Join(dir, "comm"))
		if err != nil {
			continue // it ended meanwhile
		}
		program := strings.TrimSpace(string(name))
		switch {
		case program == "containerd-shim":
			arguments, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
			uid := sandboxes[containerID.FindString(string(arguments))]
			memory, err := fields(filepath.Join(dir, "smaps_rollup"))
			if uid == "" || err != nil {
				continue
			}
			own := (memory["Private_Clean"] + memory["Private_Dirty"]) * 1024 // other shims share the rest
			readings[subject{shimOf, uid}] = reading{cpu: processCPU(dir), memory: own}
		case slices.Contains(programs, program):
			status, err := fields(filepath.Join(dir, "status"))
			if err != nil {
				continue
			}
			r := readings[subject{processOf, program}]
			r.cpu += processCPU(dir)
			r.memory += status["RssAnon"] * 1024
			r.text += status["RssFile"] * 1024
			readings[subject{processOf, program}] = r
		}
	}
	return nil
}

// processCPU is the user and system time of a process, in Linux' hundredths of a second.
func processCPU(dir string) float64 {
	text, _ := os.ReadFile(filepath.Join(dir, "stat"))
	_, after, _ := strings.Cut(string(text), ") ") // the name may hold spaces
	f := strings.Fields(after)
	if len(f) < 13 {
		return 0
	}
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return (user + system) / 100
}

// kubelets reads the metrics of the kubelets of all nodes, from any machine. A
// kubelet reads each container about every ten to fifteen seconds: the last
// seconds of a pod's life are missing, and memory between two samples is a
// straight line. The metrics lack shims and the cluster's own processes, and of
// mapped files they have only the pages that the pod was the first to read.
func (c *cluster) kubelets(ctx context.Context) (map[subject]reading, error) {
	var nodes struct{ Items []struct{ Metadata metadata } }
	if err := c.get(ctx, "/api/v1/nodes", &nodes); err != nil {
		return nil, err
	}
	readings := map[subject]reading{}
	for _, n := range nodes.Items {
		text, err := c.text(ctx, "/api/v1/nodes/"+n.Metadata.Name+"/proxy/metrics/cadvisor")
		if err != nil {
			return nil, err
		}
		cadvisor(string(text), readings)
	}
	return readings, nil
}

var cadvisorLine = regexp.MustCompile(`^(container_cpu_usage_seconds_total|container_memory_rss|container_memory_mapped_file)\{container="",(.*)\} (\S+)`)

// cadvisor adds the lines about whole pods: they name no container, no image and no sandbox.
func cadvisor(text string, readings map[subject]reading) {
	for line := range strings.Lines(text) {
		m := cadvisorLine.FindStringSubmatch(line)
		if m == nil || !strings.Contains(m[2], `image=""`) || !strings.Contains(m[2], `name=""`) {
			continue
		}
		_, id, _ := strings.Cut(m[2], `id="`)
		id, _, _ = strings.Cut(id, `"`)
		uid := podUID(id)
		value, err := strconv.ParseFloat(m[3], 64)
		if uid == "" || err != nil {
			continue
		}
		r := readings[subject{podOf, uid}]
		switch m[1] {
		case "container_cpu_usage_seconds_total":
			r.cpu = value
		case "container_memory_rss":
			r.memory = value
		default:
			r.text = value
		}
		readings[subject{podOf, uid}] = r
	}
}
