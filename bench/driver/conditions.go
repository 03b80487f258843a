package main

import (
	"cmp"
	"fmt"
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
func conditions(dir, repo string) (report.Conditions, error) {
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
		return c, fmt.Errorf("driver: %w", err)
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
	if err != nil {
		return c, err
	}
	c.FsyncP50, c.FsyncP99 = load.Percentile(times, 0.5), load.Percentile(times, 0.99)
	return c, nil
}

// fileSystem returns the type of the file system that has dir.
func fileSystem(dir string) string {
	mounts, mountsErr := procfs.GetMounts()
	dir, err := filepath.Abs(dir)
	if err != nil || mountsErr != nil {
		return "unknown"
	}
	best, kind := "", "unknown"
	for _, m := range mounts {
		inside := m.MountPoint == "/" || dir == m.MountPoint || strings.HasPrefix(dir, m.MountPoint+"/")
		if inside && len(m.MountPoint) >= len(best) {
			best, kind = m.MountPoint, m.FSType
		}
	}
	return kind
}

// fsyncTimes measures an fsync of 4 KiB on the disk of dir. The times are sorted.
func fsyncTimes(dir string, n int) ([]time.Duration, error) {
	f, err := os.CreateTemp(dir, "fsync")
	if err != nil {
		return nil, fmt.Errorf("driver: measuring fsync: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	block := make([]byte, 4096)
	times := make([]time.Duration, 0, n)
	for range n {
		if _, err := f.Write(block); err != nil {
			return nil, fmt.Errorf("driver: measuring fsync: %w", err)
		}
		began := time.Now()
		if err := f.Sync(); err != nil {
			return nil, fmt.Errorf("driver: measuring fsync: %w", err)
		}
		times = append(times, time.Since(began))
	}
	slices.Sort(times)
	return times, nil
}

// diskBytes returns the disk space of a directory.
func diskBytes(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
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
	if err != nil {
		return 0, fmt.Errorf("driver: measuring the data directory: %w", err)
	}
	return total, nil
}
