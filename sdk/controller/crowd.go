package controller

import (
	"errors"
	"io"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

const (
	// maxCrowd is how many events may be under way: ten sources with their default of
	// 100 deliveries each.
	maxCrowd = 1000
	// maxBodies is how many bytes of events may be under way. Of what is read there
	// are some copies while it is made an object of; a pod has 256 MiB.
	maxBodies = 32 << 20
)

var (
	errCrowded = errors.New("the operator has too many events at once")
	// errUntold stands for why a run failed, before a sender that is not known.
	errUntold = errors.New("the run failed; the operator's log says why")
)

// crowd counts the events under way, and the bytes of their bodies.
type crowd struct{ events, bytes atomic.Int64 }

// enter counts an event and, as it is read, its body, until leave is called.
func (c *crowd) enter(r *http.Request) (leave func(), err error) {
	if c.events.Add(1) > maxCrowd {
		c.events.Add(-1)
		return nil, errCrowded
	}
	b := &body{ReadCloser: r.Body, crowd: c}
	r.Body = b
	return func() {
		c.bytes.Add(-b.bytes)
		c.events.Add(-1)
	}, nil
}

// body is one that is counted.
type body struct {
	io.ReadCloser
	crowd *crowd
	bytes int64
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes += int64(n)
	if b.crowd.bytes.Add(int64(n)) > maxBodies {
		return 0, errCrowded
	}
	return n, err
}

// retryLater answers what is to come again.
func retryLater(w http.ResponseWriter, err error, after time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(after/time.Second)))
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}

// tellOpen says how a door that is open is closed.
func (s *server) tellOpen() {
	if s.verify == nil {
		s.log.Info("Events are taken of anyone who reaches this port, and nothing of them is remembered. To take those of your sources only, give WithAudience to NewManager, and the same audience to sink.audience of each RescheduleSource")
	}
}
