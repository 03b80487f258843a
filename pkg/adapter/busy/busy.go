// Package busy reads from the metrics of a workload whether it works.
//
// It knows the metrics of client-go's work queues, which controller-runtime has too: a workload works
// while a queue has items or a worker is active. One that waits to become the leader, or
// whose queues have had no item, has not begun: it may still fill its caches.
//
// It guarantees bounds in bytes and time, whatever the workload answers. It sends the token only
// to a port that asks for one, or that speaks https; the certificate is not checked, because
// operators sign their own.
package busy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
)

const (
	// Timeout bounds a read.
	Timeout = 5 * time.Second
	// maxAnswer bounds an answer, maxLine one line of it, maxName the name of a metric.
	maxAnswer = 16 << 20
	maxLine   = 16 << 10
	maxName   = 64
)

// The metrics that are read.
const (
	depth      = "workqueue_depth"
	unfinished = "workqueue_unfinished_work_seconds"
	workers    = "controller_runtime_active_workers"
	leads      = "leader_election_master_status" // of client-go: 0 until it leads
	adds       = "workqueue_adds_total"
	reconciles = "controller_runtime_reconcile_total"
)

// Reader reads metrics. It may be used concurrently.
type Reader struct {
	client *http.Client

	mu  sync.Mutex
	tls map[string]bool // addresses that speak https: each try of http would be a line in the log of the workload
}

// maxKnown bounds Reader.tls.
const maxKnown = 1000

// NewReader returns a Reader.
func NewReader() *Reader {
	return &Reader{tls: map[string]bool{}, client: &http.Client{
		Timeout:       Timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{
			DisableKeepAlives:      true, // the next read may be of another pod with this address
			DisableCompression:     true, // what an answer is after it is not bounded otherwise
			MaxResponseHeaderBytes: 16 << 10,
			TLSClientConfig:        &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}, //nolint:gosec // operators sign their own certificates
		},
	}}
}

// Read reads the metrics at the path of address, a host and a port. token is called if the
// port asks for one.
func (r *Reader) Read(ctx context.Context, address, path string, token func() (string, error)) (scale.Work, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	at, secure := "http://"+address+path, r.isTLS(address)
	var got *answer
	var err error
	if !secure {
		got, err = r.get(ctx, at, "")
		secure = errors.Is(err, errNotHTTP) || err == nil && speaksTLS(got)
	}
	if secure {
		at = "https://" + address + path
	}
	if ctx.Err() == nil && (secure || err == nil && (got.status == http.StatusUnauthorized || got.status == http.StatusForbidden)) {
		var t string
		if t, err = token(); err != nil {
			return scale.Work{}, err
		}
		got, err = r.get(ctx, at, t)
	}
	r.remember(address, secure && err == nil)
	switch {
	case err != nil:
		return scale.Work{}, err
	case got.status != http.StatusOK:
		return scale.Work{}, fmt.Errorf("%s answered %d", at, got.status)
	}
	return got.work, nil
}

func (r *Reader) isTLS(address string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tls[address]
}

// remember notes whether an address speaks https. Pods have the addresses of others later.
func (r *Reader) remember(address string, speaks bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !speaks {
		delete(r.tls, address)
		return
	}
	if len(r.tls) >= maxKnown {
		clear(r.tls)
	}
	r.tls[address] = true
}

// answer is what metrics say; of another status than 200 it has the beginning.
type answer struct {
	status int
	begin  []byte
	work   scale.Work
}

func (r *Reader) get(ctx context.Context, url, token string) (*answer, error) {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	q.Header.Set("Accept", "text/plain;version=0.0.4")
	if token != "" {
		q.Header.Set("Authorization", "Bearer "+token)
	}
	got, err := r.client.Do(q)
	if op, ok := errors.AsType[*net.OpError](err); err != nil && (!ok || op.Op != "dial") {
		return nil, fmt.Errorf("%w: %w", errNotHTTP, err)
	}
	if err != nil {
		return nil, err
	}
	defer got.Body.Close()
	a := &answer{status: got.StatusCode}
	if got.StatusCode != http.StatusOK {
		a.begin, err = io.ReadAll(io.LimitReader(got.Body, 256))
		return a, err
	}
	a.work, err = sum(&io.LimitedReader{R: got.Body, N: maxAnswer})
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", url, err)
	}
	return a, nil
}

// errNotHTTP means that the port accepted a connection, and gave no answer of HTTP.
var errNotHTTP = errors.New("the port gave no answer of HTTP")

// speaksTLS reports whether the answer to a plain request is the one of Go's server with TLS.
func speaksTLS(a *answer) bool {
	return a.status == http.StatusBadRequest && bytes.Contains(a.begin, []byte("HTTPS server"))
}

// sum adds up what an answer says.
func sum(body *io.LimitedReader) (scale.Work, error) {
	var s sums
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		if err := s.add(lines.Bytes()); err != nil {
			return scale.Work{}, err
		}
	}
	if body.N <= 0 {
		return scale.Work{}, fmt.Errorf("its metrics have more than %d bytes", maxAnswer)
	}
	return s.work(), lines.Err()
}

// sums are what the samples of an answer come to.
type sums struct {
	scale.Work
	leases, leads int
	adds          int
	added         bool
}

// add adds a line, in the text format of Prometheus. It reads only the lines of its metrics, and of
// their labels only result: a parser of all labels takes seconds for a line of thousands.
func (s *sums) add(line []byte) error {
	end := bytes.IndexAny(line, "{ \t")
	if end <= 0 {
		return nil
	}
	name := string(line[:min(end, maxName)])
	switch name {
	case depth, unfinished, workers, leads, adds, reconciles:
	default:
		return nil
	}
	labels, rest := line[:0], line[end:]
	if rest[0] == '{' {
		length := labelsEnd(rest)
		if length < 0 {
			return fmt.Errorf("its metrics cannot be read: the labels of a sample of %s do not end", name)
		}
		labels, rest = rest[:length], rest[length:]
	}
	fields := bytes.Fields(rest)
	if len(fields) == 0 {
		return fmt.Errorf("its metrics cannot be read: a sample of %s has no value", name)
	}
	value, err := strconv.ParseFloat(string(fields[0]), 64)
	if err != nil {
		return fmt.Errorf("its metrics cannot be read: %s is %.32q", name, fields[0])
	}
	s.sample(name, labels, value)
	return nil
}

func (s *sums) sample(name string, labels []byte, value float64) {
	switch name {
	case depth, unfinished, workers:
		s.Known, s.Busy = true, s.Busy || value != 0 // also NaN
	case leads:
		s.leases++
		if value == 1 {
			s.leads++
		}
	case adds:
		s.adds++
		s.added = s.added || value > 0
	case reconciles:
		s.Reconciles += value
		switch {
		case bytes.Contains(labels, []byte(`result="requeue_after"`)):
			s.Requeues += value
		case bytes.Contains(labels, []byte(`result="error"`)):
			s.Errors += value
		}
	}
}

func (s *sums) work() scale.Work {
	s.Waits = s.leases > 0 && s.leads == 0
	s.Fresh = s.adds > 0 && !s.added
	return s.Work
}

// labelsEnd is the length of labels in braces; less than 0: they do not end.
func labelsEnd(text []byte) int {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case c == '}' && !quoted:
			return i + 1
		}
	}
	return -1
}
