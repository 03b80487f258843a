package sink

import (
	"bufio"
	"context"
	"io"
	"net"
	"sync"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// closing is a sink that answers the first request of each connection and keeps it open, and
// closes it when the next one comes, as one does whose idle timeout ends at that moment.
func closing(t *testing.T, answersFirst bool) (url string, requests func() int) {
	t.Helper()
	got := make(chan struct{}, 100)
	read := func(in *bufio.Reader) bool {
		_, ok := receive(in)
		if ok {
			got <- struct{}{}
		}
		return ok
	}
	address, _ := listen(t, func(c net.Conn) {
		if in := bufio.NewReader(c); read(in) && answersFirst {
			_, _ = io.WriteString(c, "HTTP/1.1 204 No Content\r\n\r\n")
			read(in)
		}
	})
	return "http://" + address, func() int { return len(got) }
}

// A sink that closes a used connection while a request is on its way makes no failed attempt of it.
func TestReusedConnection_ClosedIsNoFailedAttempt(t *testing.T) {
	t.Parallel()
	url, requests := closing(t, true)
	s, _ := newSender(t)
	a := attempt(url)
	begun, most := 0, 100
	a.Begin = func() (func(), bool) {
		begun++
		return func() {}, begun <= most
	}
	for range 2 {
		delivers(t, s, a)
	}
	if n := requests(); n != 3 || begun != 3 {
		t.Errorf("the sink got %d requests, of 3; Begin was asked %d times", n, begun)
	}
	// A change in between calls off the repetition: no byte of it is sent.
	most = begun + 1
	if o := send(t, s, a); o.Kind != schedule.Aborted {
		t.Errorf("called off: %+v", o)
	}
	if n := requests(); n != 4 {
		t.Errorf("the sink got %d requests, of 4", n)
	}
}

// An event that ends its sink was sent again on every idle connection, and so reached every pod.
func TestReusedConnection_RepeatedOnceOnANewOne(t *testing.T) {
	t.Parallel()
	url, requests := closing(t, true)
	s, _ := newSender(t)
	const idle = 5
	var begun, ended sync.WaitGroup
	begun.Add(idle)
	a := attempt(url)
	a.Begin = func() (func(), bool) {
		begun.Done()
		begun.Wait() // so that each has a connection of its own
		return func() {}, true
	}
	for range idle {
		ended.Go(func() { s.Send(t.Context(), a) })
	}
	ended.Wait()
	if o := send(t, s, attempt(url)); o.Kind != schedule.Succeeded || requests() != idle+2 {
		t.Errorf("%+v after %d requests, of %d", o, requests(), idle+2)
	}
}

// An attempt that has ended before it began wrote to an idle connection.
func TestReusedConnection_NothingAfterTheEnd(t *testing.T) {
	t.Parallel()
	url, requests := closing(t, true)
	s, _ := newSender(t)
	a := attempt(url)
	delivers(t, s, a)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.Begin = func() (func(), bool) {
		t.Error("Begin was asked")
		return func() {}, true
	}
	if o := s.Send(ctx, a); o.Kind != schedule.Aborted || requests() != 1 {
		t.Errorf("%+v after %d requests, of 1", o, requests())
	}
}

// A new connection that the sink closes is a failed attempt: it is not repeated.
func TestNewConnection_ClosedIsAFailedAttempt(t *testing.T) {
	t.Parallel()
	url, requests := closing(t, false)
	s, _ := newSender(t)
	if o := send(t, s, attempt(url)); o.Kind != schedule.Failed || requests() != 1 {
		t.Errorf("%+v after %d requests", o, requests())
	}
}
