// Command nodekill kills processes of a node's pods without a warning, as a
// power cut does. It needs the node's process IDs, and the right to kill.
//
//	nodekill                 the containers of all pods, also the containers that hold their networks
//	nodekill CONTAINER-ID…   these containers
//
// Its own pod, whose uid POD_UID is, is spared. It prints what it killed.
package main

import (
	"errors"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// ofPod is how the cgroups of a pod's processes name the pod, with dashes or
// underscores, whatever is before and behind it: that depends on who made them.
var ofPod = regexp.MustCompile(`pod([0-9a-f]{8}([-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})`)

func main() {
	log.SetFlags(log.Lmicroseconds)
	own := os.Getenv("POD_UID")
	if own == "" {
		log.Fatal("POD_UID is not set: this would kill itself")
	}
	containers := os.Args[1:]
	meant := func(cgroups []byte) bool {
		return len(containers) == 0 || slices.ContainsFunc(containers, func(id string) bool { return strings.Contains(string(cgroups), id) })
	}
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		log.Fatal(err)
	}
	processes, pods := 0, map[string]bool{}
	for _, file := range files {
		cgroups, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pod := ofPod.FindSubmatch(cgroups)
		if pod == nil || !meant(cgroups) {
			continue
		}
		uid := strings.ReplaceAll(string(pod[1]), "_", "-")
		if uid == own {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			log.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			log.Fatalf("process %d of pod %s: %v: it takes a privileged pod to kill it", pid, uid, err)
		}
		processes++
		pods[uid] = true
	}
	if processes == 0 {
		log.Fatal("found nothing to kill: does this pod have the node's process IDs?")
	}
	log.Printf("killed %d processes of %d pods", processes, len(pods))
}
