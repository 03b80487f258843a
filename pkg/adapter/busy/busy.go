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
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
)

const (
	// Timeout bounds a read.
	Timeout = 5 * time.Second
	// maxAnswer bounds an answer, maxKept the lines of it that are parsed, maxLine one line.
	maxAnswer = 16 << 20
	maxKept   = 1 << 20
	maxLine   = 16 << 10
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
type Reader struct{ client *http.Client }

// NewReader returns a Reader.
func NewReader() *Reader {
	return &Reader{&http.Client{
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
	answer, err := r.get(ctx, "http://"+address+path, "")
	switch {
	case ctx.Err() != nil:
	case errors.Is(err, errNotHTTP), err == nil && speaksTLS(answer):
		answer, err = r.withToken(ctx, "https://"+address+path, token)
	case err == nil && (answer.status == http.StatusUnauthorized || answer.status == http.StatusForbidden):
		answer, err = r.withToken(ctx, "http://"+address+path, token)
	}
	if err != nil {
		return scale.Work{}, err
	}
	if answer.status != http.StatusOK {
		return scale.Work{}, fmt.Errorf("http://%s%s answered %d", address, path, answer.status)
	}
	return parse(answer.lines)
}

func (r *Reader) withToken(ctx context.Context, url string, token func() (string, error)) (*answer, error) {
	t, err := token()
	if err != nil {
		return nil, err
	}
	return r.get(ctx, url, t)
}

// answer has the lines of the metrics that are read; of another status it has the beginning.
type answer struct {
	status int
	lines  []byte
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
		a.lines, err = io.ReadAll(io.LimitReader(got.Body, 256))
		return a, err
	}
	a.lines, err = relevant(&io.LimitedReader{R: got.Body, N: maxAnswer})
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", url, err)
	}
	return a, nil
}

// errNotHTTP means that the port accepted a connection, and gave no answer of HTTP.
var errNotHTTP = errors.New("the port gave no answer of HTTP")

// speaksTLS reports whether the answer to a plain request is the one of Go's server with TLS.
func speaksTLS(a *answer) bool {
	return a.status == http.StatusBadRequest && bytes.Contains(a.lines, []byte("HTTPS server"))
}

// relevant returns the lines of the metrics that are read.
func relevant(body *io.LimitedReader) ([]byte, error) {
	var kept []byte
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := lines.Bytes()
		if !isRead(line) {
			continue
		}
		kept = append(append(kept, line...), '\n')
		if len(kept) > maxKept {
			return nil, fmt.Errorf("its metrics of queues have more than %d bytes", maxKept)
		}
	}
	if body.N <= 0 {
		return nil, fmt.Errorf("its metrics have more than %d bytes", maxAnswer)
	}
	return kept, lines.Err()
}

func isRead(line []byte) bool {
	for _, name := range []string{depth, unfinished, workers, leads, adds, reconciles} {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok && len(rest) > 0 && (rest[0] == '{' || rest[0] == ' ' || rest[0] == '\t') {
			return true
		}
	}
	return false
}

// parse reads lines.
func parse(lines []byte) (w scale.Work, err error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(lines))
	if err != nil {
		return scale.Work{}, fmt.Errorf("its metrics cannot be read: %w", err)
	}
	for _, name := range []string{depth, unfinished, workers} {
		w.Known = w.Known || len(families[name].GetMetric()) > 0
		w.Busy = w.Busy || has(families[name], func(v float64) bool { return v != 0 })
	}
	w.Fresh = len(families[adds].GetMetric()) > 0 && !has(families[adds], func(v float64) bool { return v > 0 })
	w.Waits = len(families[leads].GetMetric()) > 0 && !has(families[leads], func(v float64) bool { return v == 1 })
	for _, m := range families[reconciles].GetMetric() {
		n := m.GetUntyped().GetValue()
		w.Reconciles += n
		for _, l := range m.GetLabel() {
			switch l.GetName() + "=" + l.GetValue() {
			case "result=requeue_after":
				w.Requeues += n
			case "result=error":
				w.Errors += n
			}
		}
	}
	return w, nil
}

func has(f *dto.MetricFamily, wanted func(float64) bool) bool {
	for _, m := range f.GetMetric() {
		if wanted(m.GetUntyped().GetValue()) {
			return true
		}
	}
	return false
}
