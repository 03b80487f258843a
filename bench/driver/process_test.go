package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/bench/load"
)

// A child serves until it is stopped.
func TestChild_ServesUntilStop(t *testing.T) {
	t.Parallel()
	s, err := childProcesses{}.server("bare", bareConfig{Status: 201, Header: map[string]string{"ETag": `"7"`}, Answer: "hello"})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.Post("http://"+s.addr+"/any", "", strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	var body bytes.Buffer
	body.ReadFrom(answer.Body)
	answer.Body.Close()
	if answer.StatusCode != 201 || answer.Header.Get("ETag") != `"7"` || body.String() != "hello" {
		t.Errorf("answered %d, %v, %q", answer.StatusCode, answer.Header, &body)
	}
	if u, err := s.usage(); err != nil || u.rss < 1e6 {
		t.Errorf("usage = %+v, %v", u, err)
	}
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	if _, err := http.Get("http://" + s.addr); err == nil {
		t.Error("it still answers")
	}
}

// A failed job returns the reason.
func TestChild_JobFails(t *testing.T) {
	t.Parallel()
	config := pebbleConfig{Dir: filepath.Join(t.TempDir(), "absent", "\x00"), Callers: 1, Batch: 1, For: time.Millisecond}
	var tally jobTally
	if err := (childProcesses{}).job(t.Context(), "pebble", config, &tally); err == nil || !strings.Contains(err.Error(), "pebble") {
		t.Errorf("err = %v", err)
	}
}

// The sink stores the first arrival of each key.
func TestSink_FirstArrivals(t *testing.T) {
	t.Parallel()
	s, err := inProcess{}.server("sink", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.stop() })
	if err := resetSink(s.addr, 100, 3); err != nil {
		t.Fatal(err)
	}
	began := time.Now().UnixNano()
	for _, index := range []uint32{100, 102, 102, 103, 99} {
		request, _ := http.NewRequest(http.MethodPost, "http://"+s.addr, strings.NewReader("{}"))
		request.Header.Set("Ce-Reschedulekey", load.Key(index))
		answer, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusAccepted {
			t.Errorf("answered %d", answer.StatusCode)
		}
	}
	var got arrivals
	if err := getJSON(s.addr, "/?arrivals=1", &got); err != nil {
		t.Fatal(err)
	}
	if got.Seen != 2 || got.Repeats != 1 || got.Others != 2 {
		t.Errorf("%+v", got)
	}
	if len(got.At) != 3 || got.At[0] != got.FirstAt || got.At[1] != 0 || got.At[2] != got.LastAt || got.FirstAt < began {
		t.Errorf("arrivals %v, first %d, last %d", got.At, got.FirstAt, got.LastAt)
	}
	if got.Header["Ce-Reschedulekey"] != load.Key(100) {
		t.Errorf("header %v", got.Header)
	}
}

// CPU time and memory are read from the kernel.
func TestProcessUsage_OfItself(t *testing.T) {
	t.Parallel()
	before := ownCPU()
	u, err := processUsage(os.Getpid())
	if err != nil || u.rss < 1e6 || u.cpu < before-time.Second || u.cpu > ownCPU()+time.Second {
		t.Errorf("%+v, %v", u, err)
	}
	if _, err := processUsage(-1); err == nil {
		t.Error("a process that does not exist is no error")
	}
}

// A batch is one statement with one row an item.
func TestUpsert_OneRowAnItem(t *testing.T) {
	t.Parallel()
	if got := upsert(2); !strings.Contains(got, "VALUES ($1, $2, $3), ($4, $5, $6) ON CONFLICT") {
		t.Error(got)
	}
}

// No condition is missing.
func TestConditions_Complete(t *testing.T) {
	t.Parallel()
	c, err := conditions(t.TempDir(), "..")
	if err != nil {
		t.Fatal(err)
	}
	if c.CPU == "" || c.Kernel == "" || c.FileSystem == "unknown" || c.Cores < 1 || c.MemoryGB <= 0 || c.FsyncP50 <= 0 {
		t.Errorf("%+v", c)
	}
}

// Disk space is counted in blocks.
func TestDiskBytes_CountsBlocks(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	before, err := diskBytes(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), bytes.Repeat([]byte("x"), 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "file"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Sync(); err != nil { // blocks are allocated late
		t.Fatal(err)
	}
	after, err := diskBytes(dir)
	if err != nil || after-before < 100_000 || after-before > 200_000 {
		t.Errorf("%d bytes more, %v", after-before, err)
	}
}

// A batch for Redis is one ZADD and one HSET with the same keys, and a refusal is an error.
func TestRedisOp_OneBatch(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	commands := make(chan []string, 10)
	go serveRedis(l, commands)
	op, shut, err := redisOp(t.Context(), l.Addr().String(), 0, 1, 2, 7)
	if err != nil {
		t.Fatal(err)
	}
	defer shut()
	if n, err := op(); n != 2 || err != nil {
		t.Fatalf("%d items, %v", n, err)
	}
	zadd, hset := <-commands, <-commands
	if len(zadd) != 6 || zadd[3] != load.Key(7) || zadd[5] != load.Key(8) {
		t.Errorf("%q", zadd)
	}
	if len(hset) != 6 || hset[2] != load.Key(7) || hset[4] != load.Key(8) || len(hset[3]) != load.PayloadBytes {
		t.Errorf("%q", hset)
	}
	if _, err := op(); err == nil {
		t.Error("a refused command is no error")
	}
}

// serveRedis accepts one batch of ZADD and HSET, and refuses all other commands.
func serveRedis(l net.Listener, commands chan<- []string) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	accepted := map[string]bool{}
	for r := bufio.NewReader(conn); ; {
		var words, size int
		if _, err := fmt.Fscanf(r, "*%d\r\n", &words); err != nil {
			return
		}
		command := make([]string, words)
		for i := range command {
			fmt.Fscanf(r, "$%d\r\n", &size)
			word := make([]byte, size+2)
			io.ReadFull(r, word)
			command[i] = string(word[:size])
		}
		name := strings.ToUpper(command[0])
		if (name == "ZADD" || name == "HSET") && !accepted[name] {
			accepted[name] = true
			commands <- command
			fmt.Fprint(conn, ":1\r\n")
			continue
		}
		fmt.Fprint(conn, "-ERR refused\r\n")
	}
}
