package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/reschedule-dev/reschedule/bench/load"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/util/workqueue"
)

// The driver starts itself again for each process beside it: `driver child KIND
// CONFIG`, with the config as JSON. A job prints its result as JSON; a server
// serves HTTP until a signal.
var children = map[string]func(ctx context.Context, config []byte) (any, error){
	"bare":      childOf(bareServer),
	"sink":      childOf(sinkServer),
	"pebble":    childOf(pebbleJob),
	"post":      childOf(postJob),
	"workqueue": childOf(workqueueJob),
}

func childOf[C any](run func(context.Context, C) (any, error)) func(context.Context, []byte) (any, error) {
	return func(ctx context.Context, text []byte) (any, error) {
		var config C
		if err := json.Unmarshal(text, &config); err != nil {
			return nil, err
		}
		return run(ctx, config)
	}
}

func child(ctx context.Context, args []string) error {
	if len(args) != 3 || children[args[1]] == nil {
		return fmt.Errorf("driver: child wants a kind and a config, not %q", args[1:])
	}
	found, err := children[args[1]](ctx, []byte(args[2]))
	if err != nil {
		return fmt.Errorf("driver: %s: %w", args[1], err)
	}
	return json.NewEncoder(os.Stdout).Encode(found)
}

func childCommand(ctx context.Context, kind string, config any) (*exec.Cmd, error) {
	text, err := json.Marshal(config)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	return exec.CommandContext(ctx, self, "child", kind, string(text)), err
}

// job runs a child that ends on its own, and reads its result.
func job(ctx context.Context, kind string, config, found any) error {
	cmd, err := childCommand(ctx, kind, config)
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.Output()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		err = fmt.Errorf("%w: %s", err, failed.Stderr)
	}
	if err != nil {
		return fmt.Errorf("child %s: %w", kind, err)
	}
	return json.Unmarshal(out, found)
}

// server starts a child that serves HTTP.
func server(ctx context.Context, kind string, config serverConfig) (*service, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	config.Addr = addr
	cmd, err := childCommand(context.WithoutCancel(ctx), kind, config)
	if err != nil {
		return nil, err
	}
	return serve(ctx, cmd, addr, syscall.SIGTERM, 2*time.Millisecond, func() bool { return listens(addr) })
}

// serverConfig has the answer of a bare server. The sink needs only the address.
type serverConfig struct {
	Addr   string
	Status int
	Header map[string]string
	Answer string
}

func (c serverConfig) serve(ctx context.Context, h http.Handler) (any, error) {
	s := &http.Server{Addr: c.Addr, Handler: h}
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return nil, err
	}
	return nil, nil
}

// bareServer only reads the body and always gives the same answer.
func bareServer(ctx context.Context, c serverConfig) (any, error) {
	answer := []byte(c.Answer)
	return c.serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		for name, value := range c.Header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(c.Status)
		w.Write(answer)
	}))
}

// pebbleConfig is a load on bare Pebble.
type pebbleConfig struct {
	Dir   string
	Batch int
	First uint32
	Load  load.Load
}

// jobTally is the result of a load in a process of its own.
type jobTally struct {
	load.Tally
	CPU time.Duration // of the whole process within the window
}

// pebbleJob writes the least that a scheduler needs, the record and the row of
// the due-time index, and waits until both are durable.
func pebbleJob(ctx context.Context, c pebbleConfig) (any, error) {
	// The defaults of Pebble are for a few megabytes.
	db, err := pebble.Open(c.Dir, &pebble.Options{MemTableSize: 64 << 20, CacheSize: 64 << 20, Logger: silent{}})
	if err != nil {
		return nil, err
	}
	open := func(caller int) (load.Op, func(), error) {
		maker := load.NewMaker(uint64(c.First) + uint64(caller))
		index := c.First + uint32(caller*c.Batch)
		var record, row []byte
		return func() (int, error) {
			batch := db.NewBatch()
			for i := range c.Batch {
				key := load.Key(index + uint32(i))
				record = append(append(record[:0], "s/bench/"...), key...)
				row = binary.BigEndian.AppendUint64(append(row[:0], "d/"...), uint64(time.Now().Add(writeDelay).UnixNano()))
				row = append(append(row, "/bench/"...), key...)
				if err := errors.Join(batch.Set(record, maker.Random(), nil), batch.Set(row, nil, nil)); err != nil {
					return 0, err
				}
			}
			index += uint32(c.Load.Callers * c.Batch)
			if err := db.ApplyNoSyncWait(batch, pebble.Sync); err != nil {
				return 0, err
			}
			return c.Batch, errors.Join(batch.SyncWait(), batch.Close())
		}, func() {}, nil
	}
	var found jobTally
	found.Tally, err = c.Load.Run(ctx, open, func() { found.CPU = ownCPU() - found.CPU })
	return found, errors.Join(err, db.Close())
}

// silent drops the log of Pebble. A fatal error ends the process.
type silent struct{}

func (silent) Infof(string, ...any)  {}
func (silent) Errorf(string, ...any) {}
func (silent) Fatalf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, format+"\n", args...)
	os.Exit(1)
}

// postConfig is the work of a bare client.
type postConfig struct {
	Addr           string
	First          uint32
	N, Connections int
	Header         http.Header
}

// postJob posts events with net/http, as fast as it can.
func postJob(ctx context.Context, c postConfig) (any, error) {
	c.Header.Del("Content-Length") // net/http sets it
	client := &http.Client{Transport: &http.Transport{MaxIdleConns: c.Connections, MaxIdleConnsPerHost: c.Connections}}
	var next atomic.Int64
	senders, running := errgroup.WithContext(ctx)
	for sender := range c.Connections {
		senders.Go(func() error {
			maker := load.NewMaker(uint64(c.First) + uint64(sender))
			var data []byte
			for i := next.Add(1) - 1; i < int64(c.N); i = next.Add(1) - 1 {
				data = maker.AppendData(data[:0])
				if err := c.post(running, client, load.Key(c.First+uint32(i)), data); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := senders.Wait()
	return jobTally{CPU: ownCPU()}, err
}

// workqueueConfig is the lateness scenario for client-go.
type workqueueConfig struct {
	Pending, N  int
	Every, Lead time.Duration
}

// workqueueJob does the same work with the in-memory queue of a resident
// operator, without disk and sink, and returns the lateness of each item.
func workqueueJob(_ context.Context, c workqueueConfig) (any, error) {
	queue := workqueue.NewTypedDelayingQueue[string]()
	defer queue.ShutDown()
	far := farAway(time.Now())
	for i := range c.Pending {
		index := firstIndex(maxRounds-1) + uint32(i)
		queue.AddAfter(load.Key(index), time.Until(far(index)))
	}
	start := time.Now().Add(c.Lead)
	due := func(i int) time.Time { return start.Add(time.Duration(i) * c.Every) }
	for i := range c.N {
		queue.AddAfter(load.Key(uint32(i)), time.Until(due(i)))
	}
	late := make([]time.Duration, c.N)
	for range late {
		key, _ := queue.Get()
		now := time.Now()
		i, _ := load.Index(key)
		late[i] = now.Sub(due(int(i)))
		queue.Done(key)
	}
	return late, nil
}

// post sends one event with the header of another, whose key it replaces.
func (c postConfig) post(ctx context.Context, client *http.Client, key string, data []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.Addr+"/", bytes.NewReader(data))
	if err != nil {
		return err
	}
	for name, values := range c.Header {
		if values[0] == c.Header.Get("Ce-Reschedulekey") {
			values = []string{key}
		}
		request.Header[name] = values
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	io.Copy(io.Discard, answer.Body)
	if answer.StatusCode != http.StatusAccepted {
		return fmt.Errorf("the sink answered %s", answer.Status)
	}
	return nil
}
