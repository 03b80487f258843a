package main

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/procfs"
	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
	"golang.org/x/sys/unix"
)

// conditions describes the machine and the disk of dir.
func conditions(dir string) (report.Conditions, error) {
	c := report.Conditions{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: runtime.GOARCH, Commit: "unknown", FileSystem: fileSystem(dir)}
	if out, err := exec.Command("git", "-C", repo, "describe", "--always", "--dirty").Output(); err == nil {
		c.Commit = cmp.Or(strings.TrimSpace(string(out)), c.Commit)
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		c.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	proc, err := procfs.NewDefaultFS()
	if err != nil {
		return c, err
	}
	if cpus, err := proc.CPUInfo(); err == nil && len(cpus) > 0 {
		c.CPU = cmp.Or(cpus[0].ModelName, c.CPU)
	}
	if memory, err := proc.Meminfo(); err == nil && memory.MemTotalBytes != nil {
		c.MemoryGB = float64(*memory.MemTotalBytes) / 1e9
	}
	if average, err := proc.LoadAvg(); err == nil {
		c.LoadBefore = average.Load1
	}
	times, err := fsyncTimes(dir, 300)
	c.FsyncP50, c.FsyncP99 = load.Percentile(times, 0.5), load.Percentile(times, 0.99)
	return c, err
}

// fileSystem returns the type of the file system that has dir.
func fileSystem(dir string) string {
	best, kind := "", "unknown"
	mounts, _ := procfs.GetMounts()
	dir, err := filepath.Abs(dir)
	for _, m := range mounts {
		inside := err == nil && strings.HasPrefix(dir+"/", strings.TrimSuffix(m.MountPoint, "/")+"/")
		if inside && len(m.MountPoint) >= len(best) {
			best, kind = m.MountPoint, m.FSType
		}
	}
	return kind
}

// fsyncTimes measures an fsync of 4 KiB on the disk of dir. The times are sorted.
func fsyncTimes(dir string, n int) (times []time.Duration, err error) {
	f, err := os.CreateTemp(dir, "fsync")
	if err != nil {
		return nil, err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	for range n {
		if _, err := f.Write(make([]byte, 4096)); err != nil {
			return nil, err
		}
		began := time.Now()
		if err := f.Sync(); err != nil {
			return nil, err
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return times, nil
}

// diskBytes returns the disk space of a directory.
func diskBytes(dir string) (total int64, err error) {
	err = filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		var s unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &s)
		}
		if os.IsNotExist(err) { // a compaction removed it meanwhile
			return nil
		}
		total += s.Blocks * 512
		return err
	})
	return total, err
}
