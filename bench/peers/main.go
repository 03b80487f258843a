package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"
)

var peers = []*peer{thisAdapter, natsSchedules, riverJobs, daprEngine, restateSends, postgresLoop, redisLoop}

// parts are the parts of this program that run in processes of their own.
var parts = map[string]func(args []string) error{
	"nats-server": natsServer, "nats-worker": natsWorker, "river": riverWorker,
	"postgres-loop": postgresWorker, "redis-loop": redisWorker, "restate-object": restateObject, "dapr-engine": daprServer,
}

func main() {
	log.SetFlags(log.Ltime)
	if len(os.Args) > 2 && os.Args[1] == "serve" {
		log.Fatal(parts[os.Args[2]](os.Args[3:]))
	}
	dir := flag.String("dir", "/var/tmp", "the directory of the data: on a real disk, not in memory")
	page := flag.String("page", "", "the page whose generated part is written")
	only := flag.String("only", "", "parts of the names of the peers to run, separated by commas; then no page is written")
	seed := flag.Uint64("seed", uint64(time.Now().UnixNano()), "of the rounds of kill -9")
	short := flag.Bool("short", false, "small numbers, to see that all works")
	flag.Parse()
	size := full
	if *short {
		size = small
	}
	if err := measure(*dir, *page, *only, *seed, size); err != nil {
		log.Fatal(err)
	}
}

// A load of the whole machine, and one that shows that all works.
var full = sizes{callers: 64, warm: 500 * time.Millisecond, puts: 3 * time.Second, burst: 10_000, rate: 200, lateFor: 5 * time.Second, kills: 50}

var small = sizes{callers: 8, warm: 100 * time.Millisecond, puts: time.Second, burst: 200, rate: 50, lateFor: time.Second, kills: 5}

// result is what was found about a peer, or why nothing was.
type result struct {
	*peer
	version, absent string
	speeds
	kills killed
}

func measure(dir, page, only string, seed uint64, size sizes) error {
	scratch, err := os.MkdirTemp(dir, "reschedule-peers")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	if err := os.Chmod(scratch, 0o711); err != nil { // PostgreSQL, which does not run as root, may pass through it
		return err
	}
	interrupted := make(chan os.Signal, 1)
	signal.Notify(interrupted, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-interrupted // the processes end with this one
		os.RemoveAll(scratch)
		os.Exit(1)
	}()
	began, machine := time.Now(), conditions(scratch)
	log.Printf("%s, -seed %d", machine, seed)
	var results []*result
	for _, p := range peers {
		if only == "" || slices.ContainsFunc(strings.Split(only, ","), func(part string) bool { return strings.Contains(p.name, part) }) {
			r := &result{peer: p}
			if r.version, err = p.version(); err != nil {
				r.absent = "not run: " + err.Error()
			}
			results = append(results, r)
		}
	}
	// All of one scenario, then all of the next: a slow phase of the machine then affects all. What another load changes
	// least comes first.
	loads := ""
	put := func(r *result) error { return r.put(scratch, size, &r.speeds) }
	late := func(r *result) error { return r.lateness(scratch, size, &r.speeds) }
	for i, scenario := range []func(r *result) error{
		func(r *result) (err error) {
			r.kills, err = r.kill(scratch, size, seed)
			return err
		},
		put, put, put, func(r *result) error { return r.burst(scratch, size, &r.speeds) }, late, late, late,
	} {
		if loads += " " + load(); i == 0 {
			loads = ""
		}
		for _, r := range results {
			if r.absent != "" {
				continue
			}
			if err := scenario(r); err != nil {
				log.Printf("%s: %v", r.name, err)
				r.absent, _, _ = strings.Cut("failed: "+err.Error(), "\n") // without what its processes wrote
			}
			log.Printf("scenario %d, %s: %s; kills %+v, refused %d", i, r.name, r.speeds.String(), r.kills.Counts, r.kills.refused)
		}
	}
	text := markdown(results, size, fmt.Sprintf("%s, in %.0f minutes, seed %d: %s, load average before each scenario but the first%s",
		began.UTC().Format("2 January 2006"), time.Since(began).Minutes(), seed, machine, loads))
	fmt.Println(text)
	if page == "" || only != "" || size.kills < full.kills {
		return nil
	}
	return replace(page, text)
}
