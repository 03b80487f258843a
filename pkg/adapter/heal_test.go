package adapter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// pipes is a listener whose connections are in memory, as fake time needs.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (p pipes) Close() error {
	close(p)
	return nil
}

func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// surroundings are what deliveries need, and what is broken of it.
type surroundings struct {
	offset atomic.Int64 // of the clock

	mu        sync.Mutex
	dial      error
	token     error
	status    int // 0: 204
	hangs     bool
	delivered map[string]int

	volume volume
}

// volume is a file system on which other programs may take all space.
type volume struct {
	vfs.FS
	full atomic.Bool
}

const volumeSize = 1 << 30

func (v *volume) GetDiskUsage(string) (vfs.DiskUsage, error) {
	usage := vfs.DiskUsage{AvailBytes: volumeSize, TotalBytes: volumeSize}
	if v.full.Load() {
		usage.AvailBytes = 0
	}
	return usage, nil
}

// write fails while the disk is full.
func (v *volume) write(op errorfs.Op) error {
	if v.full.Load() && (op.Kind == errorfs.OpFileWrite || op.Kind == errorfs.OpCreate) {
		return syscall.ENOSPC
	}
	return nil
}

// set changes what is broken.
func (s *surroundings) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *surroundings) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	s.mu.Lock()
	status, hangs := s.status, s.hangs
	if status == 0 && !hangs {
		s.delivered[r.Header.Get("Ce-Reschedulekey")]++
		status = http.StatusNoContent
	}
	s.mu.Unlock()
	if hangs {
		<-r.Context().Done()
		return
	}
	w.WriteHeader(status)
}

// Whatever a delivery needs is broken for a minute, and then right again: each key goes on, without a restart and
// without a person. No key is given up meanwhile.
func TestHeals_WhatIsBrokenForAMinute(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		broken, right func(*surroundings)
		within        time.Duration // after that all is as before; default two minutes
	}{
		"names are not found": {func(s *surroundings) {
			s.dial = &net.DNSError{Err: "server misbehaving", Name: "sink", IsTemporary: true}
		}, func(s *surroundings) { s.dial = nil }, 0},
		"the sink is down":               {func(s *surroundings) { s.dial = syscall.ECONNREFUSED }, func(s *surroundings) { s.dial = nil }, 0},
		"the sink hangs":                 {func(s *surroundings) { s.hangs = true }, func(s *surroundings) { s.hangs = false }, 0},
		"the sink answers 401":           {func(s *surroundings) { s.status = 401 }, func(s *surroundings) { s.status = 0 }, 0},
		"the sink answers 403":           {func(s *surroundings) { s.status = 403 }, func(s *surroundings) { s.status = 0 }, 0},
		"the sink answers 404":           {func(s *surroundings) { s.status = 404 }, func(s *surroundings) { s.status = 0 }, 0},
		"the sink answers 503":           {func(s *surroundings) { s.status = 503 }, func(s *surroundings) { s.status = 0 }, 0},
		"the disk is full":               {func(s *surroundings) { s.volume.full.Store(true) }, func(s *surroundings) { s.volume.full.Store(false) }, 0},
		"no tokens":                      {func(s *surroundings) { s.token = errors.New("forbidden") }, func(s *surroundings) { s.token = nil }, 0},
		"the clock is behind":            {func(s *surroundings) { s.offset.Add(-int64(time.Hour)) }, func(s *surroundings) { s.offset.Add(int64(time.Hour)) }, 0},
		"the clock is fast":              {func(s *surroundings) { s.offset.Add(int64(time.Hour)) }, func(s *surroundings) { s.offset.Add(-int64(time.Hour)) }, time.Hour + 2*time.Minute},
		"the clock stays an hour behind": {func(s *surroundings) { s.offset.Add(-int64(time.Hour)) }, func(*surroundings) {}, time.Hour + 2*time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &surroundings{delivered: map[string]int{}}
				heals(t, s, func() { s.set(func() { tt.broken(s) }) }, func() { s.set(func() { tt.right(s) }) }, max(tt.within, 2*time.Minute))
			})
		})
	}
}

func heals(t *testing.T, s *surroundings, breaks, repair func(), within time.Duration) {
	const keys = 20
	now := func() time.Time { return time.Now().Add(time.Duration(s.offset.Load())) }
	listener := make(pipes)
	server := &http.Server{Handler: s, ReadHeaderTimeout: time.Hour}
	go func() { _ = server.Serve(listener) }()
	sender := sink.New(sink.Config{
		Log: slog.New(slog.DiscardHandler), Now: now,
		Token: func(context.Context, *schedule.Spec, schedule.Target) (string, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return "token", s.token
		},
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			s.mu.Lock()
			err := s.dial
			s.mu.Unlock()
			if err != nil {
				return nil, err
			}
			here, there := net.Pipe()
			select {
			case listener <- there:
				return here, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		},
	})
	s.volume.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(s.volume.write))
	db, err := store.Open(store.Options{Dir: "data", FS: &s.volume, Log: slog.New(slog.DiscardHandler), Fatal: func(err error) { panic(err) }})
	if err != nil {
		t.Fatal(err)
	}
	d, err := dispatch.New(dispatch.Config{Sender: sender, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(queue.Config{Store: db, Now: now, Wake: d.Wake})
	if err != nil {
		t.Fatal(err)
	}
	src, err := q.Set(&schedule.Spec{
		UID: "u", Namespace: "ns", Name: "s", Targets: schedule.Targets{Sink: schedule.Target{URL: "http://sink", Audience: "sink"}, ServiceAccount: "account"},
		Policy: schedule.Replace, Ingest: schedule.Ingest{Policy: schedule.Earliest}, MaxInterval: 10 * time.Second, Limits: schedule.Limits{MaxPending: 1000, MaxInFlight: 10}, Letters: schedule.Letters{Keep: 100, MaxAge: time.Hour},
		Delivery: schedule.Delivery{Timeout: 20 * time.Second, BackoffDelay: time.Second},
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range keys {
		if _, err := src.Schedule(fmt.Sprint("k", i), &schedule.Request{}, nil); err != nil {
			t.Fatal(err)
		}
	}
	each := func(when string) {
		t.Helper()
		s.mu.Lock()
		defer s.mu.Unlock()
		if len(s.delivered) != keys {
			t.Errorf("%s: %d of %d keys are delivered", when, len(s.delivered), keys)
		}
		s.delivered = map[string]int{}
	}
	time.Sleep(30 * time.Second)
	each("before")
	breaks()
	time.Sleep(time.Minute)
	repair()
	s.set(func() { s.delivered = map[string]int{} })
	time.Sleep(within)
	each("once it is right again")
	time.Sleep(time.Minute)
	each("a minute later")
	if n, err := src.Counts(); err != nil || n.Pending+n.InFlight < keys || n.Kept > 0 {
		t.Errorf("%+v %v", n, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	d.Stop(ctx)
	q.Close()
	sender.Close()
	if err := errors.Join(db.Close(), server.Close()); err != nil {
		t.Error(err)
	}
}
