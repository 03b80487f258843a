// Command function is an operator that does what the tests say. It tells the
// recorder of the start and the end of each run, and keeps nothing: it may be
// gone between two deliveries.
//
// What it does is in RULES, a JSON list: the first rule whose prefix the key
// has counts. An event whose data has a member "do" says it itself, so that a
// reply can say what is done with it when it comes back.
package main

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// rule is what is done with a key.
type rule struct {
	Prefix string `json:"prefix"`
	behaviour
}

// behaviour is what is done with a delivery. Its zero value answers 204 at once.
type behaviour struct {
	Read     string            `json:"read"`     // the resource of the object that the event names, such as configmaps: it is read first
	Work     string            `json:"work"`     // how long it takes, a duration
	Status   int               `json:"status"`   // of the answer; 0: 204, or 200 with a reply
	Failures int               `json:"failures"` // the status is for so many first attempts only; 0: for all
	Headers  map[string]string `json:"headers"`  // of an answer without that status, such as Reschedule-After
	Reply    *reply            `json:"reply"`    // an event, in an answer without that status
}

// reply is an event. Its id is made up.
type reply struct {
	Attributes map[string]string `json:"attributes"`
	Data       json.RawMessage   `json:"data"`
}

// run is what the recorder is told of a delivery, twice.
type run struct {
	Run     string          `json:"run"` // the same at start and end
	Key     string          `json:"key"`
	ID      string          `json:"id"`
	Type    string          `json:"type"`
	Attempt int             `json:"attempt"`
	DueAt   time.Time       `json:"dueAt"`
	Pod     string          `json:"pod"`
	Header  http.Header     `json:"header"` // of the request: all attributes of the event, as they came
	Data    json.RawMessage `json:"data,omitempty"`
	Seen    string          `json:"seen,omitempty"` // the resourceVersion of what was read
	Start   time.Time       `json:"start"`
	End     time.Time       `json:"end,omitzero"`
	Status  int             `json:"status,omitempty"` // that was answered, at the end
}

type function struct {
	rules    []rule
	recorder string
	pod      string
}

func main() {
	f := function{recorder: os.Getenv("RECORDER"), pod: os.Getenv("HOSTNAME")}
	if err := json.Unmarshal([]byte(cmp.Or(os.Getenv("RULES"), "[]")), &f.rules); err != nil {
		log.Fatalf("RULES: %v", err)
	}
	server := http.Server{Addr: ":" + cmp.Or(os.Getenv("PORT"), "8080"), Handler: f, ReadHeaderTimeout: 10 * time.Second}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	go func() {
		log.Print(server.ListenAndServe())
		cancel()
	}()
	<-ctx.Done() // deliveries under way may finish
	if err := server.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
}

// ServeHTTP runs a delivery. A run that the recorder could not be told of has
// failed, or the test would take it for one that is lost.
func (f function) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodPost { // a probe
		return
	}
	r, err := f.read(req)
	if err != nil {
		log.Print(err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if err := f.tell(r); err != nil {
		log.Print(err)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	b, err := f.behaviourOf(r)
	work := time.Duration(0)
	if err == nil && b.Work != "" {
		work, err = time.ParseDuration(b.Work)
	}
	if err != nil {
		log.Print(err)
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if b.Read != "" {
		if r.Seen, err = see(b.Read, req.Header.Get("Ce-Namespace"), req.Header.Get("Ce-Name")); err != nil {
			log.Print(err)
			b = behaviour{Status: http.StatusServiceUnavailable}
		}
	}
	// Works on when the caller hangs up, as work does.
	<-time.After(work)
	r.End, r.Status = time.Now(), b.answer(r.Attempt)
	if err := f.tell(r); err != nil {
		log.Print(err)
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	if r.Status == b.Status {
		http.Error(w, "as it was told", r.Status)
		return
	}
	for name, value := range b.Headers {
		w.Header().Set(name, value)
	}
	if b.Reply == nil {
		w.WriteHeader(r.Status)
		return
	}
	w.Header().Set("Ce-Specversion", "1.0")
	w.Header().Set("Ce-Id", rand.Text())
	w.Header().Set("Ce-Source", "/e2e/function")
	w.Header().Set("Ce-Type", "dev.reschedule.e2e.reply")
	for name, value := range b.Reply.Attributes {
		w.Header().Set("Ce-"+name, value)
	}
	if len(b.Reply.Data) > 0 {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(r.Status)
	w.Write(b.Reply.Data)
}

// read reads a delivery in binary mode.
func (f function) read(req *http.Request) (run, error) {
	r := run{Run: rand.Text(), Pod: f.pod, Start: time.Now(), Header: req.Header, ID: req.Header.Get("Ce-Id"), Type: req.Header.Get("Ce-Type")}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return run{}, err
	}
	if json.Valid(body) {
		r.Data = body
	}
	if req.Header.Get("Ce-Rescheduledueat") == "" {
		// Not from a RescheduleSource, but from a Broker or a caller.
		r.Key, err = url.PathUnescape(req.Header.Get("Ce-Subject"))
		return r, err
	}
	// A Broker or a Channel between source and function keeps the extensions.
	if r.Key, err = url.PathUnescape(req.Header.Get("Ce-Reschedulekey")); err != nil || r.Key == "" {
		return run{}, fmt.Errorf("reschedulekey %q: %w", req.Header.Get("Ce-Reschedulekey"), err)
	}
	if r.Attempt, err = strconv.Atoi(req.Header.Get("Ce-Rescheduleattempt")); err != nil {
		return run{}, fmt.Errorf("rescheduleattempt: %w", err)
	}
	if r.DueAt, err = time.Parse(time.RFC3339Nano, req.Header.Get("Ce-Rescheduledueat")); err != nil {
		return run{}, fmt.Errorf("rescheduledueat: %w", err)
	}
	return r, nil
}

func (f function) behaviourOf(r run) (behaviour, error) {
	var said struct {
		Do *behaviour `json:"do"`
	}
	if bytes.Contains(r.Data, []byte(`"do"`)) {
		if err := json.Unmarshal(r.Data, &said); err != nil {
			return behaviour{}, fmt.Errorf("what to do: %w", err)
		}
	}
	if said.Do != nil {
		return *said.Do, nil
	}
	for _, rule := range f.rules {
		if strings.HasPrefix(r.Key, rule.Prefix) {
			return rule.behaviour, nil
		}
	}
	return behaviour{}, nil
}

// answer is the status of the answer to an attempt.
func (b behaviour) answer(attempt int) int {
	switch {
	case b.Status != 0 && (b.Failures == 0 || attempt < b.Failures):
		return b.Status
	case b.Reply != nil:
		return http.StatusOK
	}
	return http.StatusNoContent
}

// teller waits for the recorder, which may be restarted meanwhile, less than
// any delivery does. It does not share connections with http.DefaultTransport:
// a test server that ends closes these, also while an answer without a body
// comes in.
var teller = http.Client{Timeout: 5 * time.Second, Transport: http.DefaultTransport.(*http.Transport).Clone()}

func (f function) tell(r run) error {
	body, err := json.Marshal(r)
	if err != nil {
		return err
	}
	resp, err := teller.Post(f.recorder+"/runs", "application/json", bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("reporting to the recorder: %w", err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("reporting to the recorder: %s", resp.Status)
	}
	return nil
}
