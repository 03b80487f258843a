// Command recorder is the eyes and the hand of the tests in the cluster: a sink
// that keeps what it is sent, and a client that calls from where pods call.
//
//	POST any path   is kept, and answered with 204 or as it was told
//	GET /records    what was kept, in the order of arrival; ?path= of one path, &contains= with this in the body
//	PUT /answer     {"path","status","headers","for"}: how a path is answered from now on
//	PUT /call       {"method","url","headers","body","caCerts"}: makes a call, answers with what came back
//
// What it keeps is also in a file, if DIR names a folder: a container that is
// restarted forgets nothing. TLS_DIR names one with tls.crt and tls.key, to
// listen with beside plain HTTP.
package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

const (
	most     = 50_000  // records that are kept; a request beyond them is refused, so that the test sees it
	mostBody = 1 << 20 // bytes of a body
)

// record is a request.
type record struct {
	At     time.Time   `json:"at"` // when its head was there
	Method string      `json:"method"`
	Path   string      `json:"path"`
	Header http.Header `json:"header"`
	Body   []byte      `json:"body"`
}

// answer is how a path is answered.
type answer struct {
	Path    string            `json:"path"`
	Status  int               `json:"status"`
	Headers map[string]string `json:"headers"`
	For     string            `json:"for"` // a duration; "" until it is told something else
	until   time.Time
}

type recorder struct {
	mu      sync.Mutex
	records []record
	answers map[string]answer
	file    *json.Encoder // nil: memory only
}

func main() {
	r := &recorder{answers: map[string]answer{}}
	if dir := os.Getenv("DIR"); dir != "" {
		if err := r.open(filepath.Join(dir, "records")); err != nil {
			log.Fatal(err)
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", r.keep)
	mux.HandleFunc("GET /records", r.show)
	mux.HandleFunc("PUT /answer", r.tell)
	mux.HandleFunc("PUT /call", call)
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	server := http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	go func() {
		log.Print(server.ListenAndServe())
		cancel()
	}()
	if dir := os.Getenv("TLS_DIR"); dir != "" {
		secure := http.Server{Addr: ":8443", Handler: mux, ReadHeaderTimeout: 10 * time.Second}
		go func() {
			log.Print(secure.ListenAndServeTLS(filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")))
			cancel()
		}()
	}
	<-ctx.Done()
	if err := server.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// open reads what an earlier container of the pod kept.
func (r *recorder) open(name string) error {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	for d := json.NewDecoder(file); ; {
		var one record
		if err := d.Decode(&one); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			// It was killed in the middle of a write, whose sender got no answer.
			if err := file.Truncate(d.InputOffset()); err != nil {
				return err
			}
			break
		}
		r.records = append(r.records, one)
	}
	r.file = json.NewEncoder(file)
	return nil
}

func (r *recorder) keep(w http.ResponseWriter, req *http.Request) {
	one := record{At: time.Now(), Method: req.Method, Path: req.URL.Path, Header: req.Header}
	var err error
	if one.Body, err = io.ReadAll(http.MaxBytesReader(w, req.Body, mostBody)); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a, err := r.add(one)
	if err != nil {
		log.Print(err)
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	for name, value := range a.Headers {
		w.Header().Set(name, value)
	}
	w.WriteHeader(a.Status)
}

// add keeps a record and says how it is answered.
func (r *recorder) add(one record) (answer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.records) == most {
		return answer{}, fmt.Errorf("%d records are kept already: the recorder is full", most)
	}
	if r.file != nil {
		if err := r.file.Encode(one); err != nil {
			return answer{}, err
		}
	}
	r.records = append(r.records, one)
	if a, ok := r.answers[one.Path]; ok && (a.until.IsZero() || one.At.Before(a.until)) {
		return a, nil
	}
	return answer{Status: http.StatusNoContent}, nil
}

func (r *recorder) show(w http.ResponseWriter, req *http.Request) {
	path, contains := req.URL.Query().Get("path"), []byte(req.URL.Query().Get("contains"))
	shown := []record{}
	r.mu.Lock()
	for _, one := range r.records {
		if (path == "" || one.Path == path) && bytes.Contains(one.Body, contains) {
			shown = append(shown, one)
		}
	}
	r.mu.Unlock()
	reply(w, shown)
}

func (r *recorder) tell(w http.ResponseWriter, req *http.Request) {
	var a answer
	if !read(w, req, &a) {
		return
	}
	if a.For != "" {
		d, err := time.ParseDuration(a.For)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		a.until = time.Now().Add(d)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answers[a.Path] = a
}

// client waits less than the API server's proxy does, which the call came by, and as long for a
// node that does not answer as the clients of this project do.
var client = http.Client{
	Timeout:       20 * time.Second,
	Transport:     patient(),
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

func patient() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 5 * time.Second}).DialContext
	t.ResponseHeaderTimeout = 15 * time.Second
	return t
}

// call makes a call. One that gets no answer is 502 with the reason.
func call(w http.ResponseWriter, req *http.Request) {
	var c struct {
		Method  string            `json:"method"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
		Body    []byte            `json:"body"`
		CACerts string            `json:"caCerts"` // PEM; "" the system's
	}
	if !read(w, req, &c) {
		return
	}
	out, err := http.NewRequestWithContext(req.Context(), c.Method, c.URL, bytes.NewReader(c.Body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	for name, value := range c.Headers {
		out.Header.Set(name, value)
	}
	caller := client
	if c.CACerts != "" {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(c.CACerts)) {
			http.Error(w, "caCerts has no certificate", http.StatusBadRequest)
			return
		}
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true}
		caller.Transport = transport
	}
	resp, err := caller.Do(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	reply(w, map[string]any{"status": resp.StatusCode, "header": resp.Header, "body": body})
}

// read reads the JSON of a request, or answers that it cannot.
func read(w http.ResponseWriter, req *http.Request, v any) bool {
	if err := json.NewDecoder(req.Body).Decode(v); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return false
	}
	return true
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(v); err != nil {
		log.Print(err) // the client is gone
	}
}
