package main

import (
	"bufio"
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
	"github.com/reschedule-dev/reschedule/bench/report"
	"golang.org/x/sys/unix"
)

// conditions gathers what the numbers are to be read with.
func conditions(dir, repo string) (report.Conditions, error) {
	c := report.Conditions{Cores: runtime.NumCPU(), Go: runtime.Version(), CPU: cpuModel(), Commit: commit(repo)}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		c.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err == nil {
		c.MemoryGB = float64(info.Totalram) * float64(info.Unit) / 1e9
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		first, _, _ := strings.Cut(string(text), " ")
		c.LoadBefore, _ = strconv.ParseFloat(first, 64)
	}
	c.FileSystem = fileSystem(dir)
	times, err := fsyncTimes(dir, 300)
	if err != nil {
		return c, err
	}
	c.FsyncP50, c.FsyncP99 = load.Percentile(times, 0.5), load.Percentile(times, 0.99)
	return c, nil
}

func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return runtime.GOARCH
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH
}

// commit is what of the repository is measured.
func commit(repo string) string {
	out, err := exec.Command("git", "-C", repo, "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return cmp.Or(strings.TrimSpace(string(out)), "unknown")
}

// fileSystem is the type of the file system that holds dir.
func fileSystem(dir string) string {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "unknown"
	}
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	best, kind := "", "unknown"
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// 36 35 98:0 /root /mount/point options … - type source …
		before, after, ok := strings.Cut(lines.Text(), " - ")
		fields, rest := strings.Fields(before), strings.Fields(after)
		if !ok || len(fields) < 5 || len(rest) < 1 {
			continue
		}
		at := fields[4]
		inside := at == "/" || dir == at || strings.HasPrefix(dir, at+"/")
		if inside && len(at) >= len(best) {
			best, kind = at, rest[0]
		}
	}
	return kind
}

// fsyncTimes measures what an fsync of 4 KiB costs on the disk of dir, sorted.
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

// diskBytes is what the directory takes on the disk.
func diskBytes(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		var s unix.Stat_t
		if err == nil {
			err = unix.Lstat(path, &s)
		}
		if err != nil {
			if os.IsNotExist(err) { // removed by a compaction meanwhile
				return nil
			}
			return err
		}
		total += s.Blocks * 512
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("driver: measuring the data directory: %w", err)
	}
	return total, nil
}
