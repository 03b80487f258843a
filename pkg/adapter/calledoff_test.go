package adapter

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/dispatch"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// wire looks at what is written to sinks. A revision must not be written any
// more once a change that took its place is answered.
type wire struct {
	*testing.T
	answered [4]atomic.Uint64 // by key: revisions up to here were replaced or cancelled
	written  atomic.Int64
}

type wireConn struct {
	net.Conn
	w *wire
}

func (w *wire) dial(ctx context.Context, network, address string) (net.Conn, error) {
	select { // some connections take their time
	case <-time.After(rand.N(2 * time.Millisecond)):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	return wireConn{c, w}, nil
}

// Write judges right before it writes, and not at once: from the question
// whether an attempt may begin to its first byte no change may be answered that
// takes the place of what it writes.
func (c wireConn) Write(b []byte) (int, error) {
	_, key, starts := bytes.Cut(b, []byte("Ce-Reschedulekey: k"))
	_, revision, _ := bytes.Cut(b, []byte("Ce-Reschedulerevision: "))
	if starts {
		revision, _, _ = bytes.Cut(revision, []byte("\r"))
		r, err := strconv.ParseUint(string(revision), 10, 64)
		if err != nil {
			c.w.Error(err)
		}
		<-time.After(rand.N(time.Millisecond))
		c.w.written.Add(1)
		if now := c.w.answered[key[0]-'0'].Load(); r <= now {
			c.w.Errorf("revision %d of k%c is written after the answer to a change that took its place (up to %d)", r, key[0], now)
		}
	}
	return c.Conn.Write(b)
}

// Once a PUT or DELETE is answered, no byte of the occurrence that it replaced or cancelled is written to the sink.
func TestChange_NoByteOfTheOlderAfterItsAnswer(t *testing.T) {
	t.Parallel()
	// Callers replace and cancel keys just when they are delivered, over
	// connections that are new, slow, or used again.
	w := &wire{T: t}
	srv := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if rand.IntN(3) == 0 {
			rw.Header().Set("Connection", "close")
		}
		rw.WriteHeader([]int{204, 500}[rand.IntN(2)])
	}))
	defer srv.Close()
	fatal := func(err error) { t.Error(err) }
	db, err := store.Open(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: fatal})
	if err != nil {
		t.Fatal(err)
	}
	sender := sink.New(sink.Config{Dial: w.dial})
	d, err := dispatch.New(dispatch.Config{Sender: sender})
	if err != nil {
		t.Fatal(err)
	}
	q, err := queue.Open(queue.Config{Store: db, Wake: d.Wake, Fatal: fatal})
	if err != nil {
		t.Fatal(err)
	}
	s, err := q.Set(&schedule.Spec{
		UID: "u", Namespace: "ns", Name: "s", Targets: schedule.Targets{Sink: schedule.Target{URL: srv.URL}}, Policy: schedule.Replace,
		Delivery: schedule.Delivery{BackoffDelay: time.Millisecond}, Limits: schedule.Limits{MaxInFlight: 100, MaxPending: 100},
	})
	if err != nil {
		t.Fatal(err)
	}
	rounds := 400
	if testing.Short() {
		rounds = 100
	}
	var callers sync.WaitGroup
	for i := range w.answered {
		callers.Go(func() {
			key, now := fmt.Sprint("k", i), time.Duration(0)
			for range rounds {
				put, err := s.Schedule(key, &schedule.Request{Delay: &now}, nil)
				if err != nil {
					t.Error(err)
					return
				}
				w.answered[i].Store(put.View.Revision - 1)
				<-time.After(rand.N(3 * time.Millisecond))
				switch rand.IntN(3) {
				case 0: // the next PUT replaces it
				case 1:
					err = s.Cancel(key, schedule.Conditions{})
					w.answered[i].Store(put.View.Revision)
				case 2:
					_, err = s.CancelAll(t.Context(), key)
					w.answered[i].Store(put.View.Revision)
				}
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
	if w.written.Load() == 0 {
		t.Error("nothing was written at all")
	}
	t.Logf("%d deliveries in %d rounds", w.written.Load(), rounds*len(w.answered))
	d.Stop(t.Context())
	q.Close()
	sender.Close()
	if err := db.Close(); err != nil {
		t.Error(err)
	}
}
