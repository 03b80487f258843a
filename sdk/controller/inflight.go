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
	// maxEvents is how many events may be in flight: ten sources with their default
	// of 100 deliveries each.
	maxEvents = 1000
	// maxBodies is how many bytes of events may be in flight. There are some copies of
	// them while they become objects; a pod has 256 MiB.
	maxBodies = 32 << 20
)

var (
	errTooMany = errors.New("the operator has too many events in flight")
	// errRunFailed stands for the error of a run, for a sender that is not known.
	errRunFailed = errors.New("the run failed; the operator's log says why")
)

// inFlight counts the events that are being handled, and the bytes of their bodies.
type inFlight struct{ events, bytes atomic.Int64 }

// enter counts an event and, as it is read, its body, until leave is called.
func (n *inFlight) enter(r *http.Request) (leave func(), err error) {
	if n.events.Add(1) > maxEvents {
		n.events.Add(-1)
		return nil, errTooMany
	}
	b := &countedBody{ReadCloser: r.Body, inFlight: n}
	r.Body = b
	return func() {
		n.bytes.Add(-b.bytes)
		n.events.Add(-1)
	}, nil
}

// countedBody is the body of an event, whose bytes are counted.
type countedBody struct {
	io.ReadCloser
	inFlight *inFlight
	bytes    int64
}

// Read implements io.Reader.
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.bytes += int64(n)
	if b.inFlight.bytes.Add(int64(n)) > maxBodies {
		return 0, errTooMany
	}
	return n, err
}

// retryLater answers an event that must come again.
func retryLater(w http.ResponseWriter, err error, after time.Duration) {
	w.Header().Set("Retry-After", strconv.Itoa(int(after/time.Second)))
	http.Error(w, err.Error(), http.StatusServiceUnavailable)
}

// logOpen says in the log how a port that is open to all senders is closed.
func (s *server) logOpen() {
	if s.verify == nil {
		s.log.Info("Events are taken from every sender that reaches this port, and nothing about them is remembered. To take events from your sources only, give WithAudience to NewManager, and the same audience to sink.audience of each RescheduleSource")
	}
}
