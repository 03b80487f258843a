// Command operator is an operator without timers, written with plain CloudEvents: it is
// woken with a key, reads the state of the world, and answers. As a Knative Service it
// costs nothing between two wake-ups.
//
// It imports nothing from this project: a delivery is a CloudEvent over HTTP, the answer
// is the outcome, and scheduling is one PUT. Copy it and put your own work into
// reconcile.
package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/cloudevents/sdk-go/v2/types"
)

// operator reconciles a key once at a time: a RescheduleSource never has two deliveries
// of a key in flight, with any number of replicas.
type operator struct {
	source string        // status.address.url of the RescheduleSource
	every  time.Duration // the wait before the next look at a build that is not ready
}

// wakeUp is a delivery.
type wakeUp struct {
	key     string    // of the object
	attempt int32     // failed runs in a row before this one
	dueAt   time.Time // the same over all attempts
	data    []byte    // of the request that scheduled the key
}

// reconcile is the work. After an error it runs again after the back-off. With a duration
// above zero it is done for now, and runs again after it.
func (o operator) reconcile(ctx context.Context, w wakeUp) (again time.Duration, err error) {
	kind, name, _ := strings.Cut(w.key, "/")
	switch kind {
	case "Build": // takes a while: runs until it is ready
		var build struct {
			ReadyAt time.Time `json:"readyAt"`
		}
		if err := json.Unmarshal(w.data, &build); err != nil {
			return 0, fmt.Errorf("reading the build: %w", err)
		}
		if time.Now().Before(build.ReadyAt) {
			return o.every, nil
		}
	case "Deploy": // a dependency is not there yet
		if w.attempt < 2 {
			return 0, errors.New("the database does not answer")
		}
	case "Site": // schedules another key
		return 0, o.schedule(ctx, "Certificate/"+name, o.every)
	}
	return 0, nil
}

// ServeHTTP turns a delivery into a wakeUp, and the result of reconcile into an answer.
func (o operator) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	event, err := cehttp.NewEventFromHTTPRequest(r)
	if err != nil {
		http.Error(rw, err.Error(), http.StatusBadRequest) // not retried: it would fail again
		return
	}
	w := wakeUp{data: event.Data()}
	w.key, _ = types.ToString(event.Extensions()["reschedulekey"])
	if key, err := url.PathUnescape(w.key); err == nil && r.Header.Get("Ce-Reschedulekey") != "" {
		w.key = key // a header is percent-encoded, and the SDK does not decode it (cloudevents/sdk-go issue 1331)
	}
	w.attempt, _ = types.ToInteger(event.Extensions()["rescheduleattempt"])
	w.dueAt, _ = types.ToTime(event.Extensions()["rescheduledueat"])

	again, err := o.reconcile(r.Context(), w)
	log.Printf("key=%s attempt=%d dueAt=%s again=%s err=%v", w.key, w.attempt, w.dueAt.Format(time.RFC3339Nano), again, err)
	switch {
	case err != nil: // retried after the back-off, also after a restart of the adapter
		http.Error(rw, err.Error(), http.StatusServiceUnavailable)
	case again > 0: // done, and due again
		rw.Header().Set("Reschedule-After", again.String())
		rw.WriteHeader(http.StatusNoContent)
	default: // done
		rw.WriteHeader(http.StatusNoContent)
	}
}

// schedule schedules a key. When it returns nil the schedule is on stable storage, and
// this process may end.
func (o operator) schedule(ctx context.Context, key string, after time.Duration) error {
	body, err := json.Marshal(map[string]string{"delay": after.String(), "reason": "asked for by the operator"})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, o.source+"/schedules/"+url.PathEscape(key), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode >= 300 {
		problem, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return fmt.Errorf("scheduling %s: %s: %s", key, resp.Status, problem)
	}
	return nil
}

func main() {
	o := operator{source: os.Getenv("RESCHEDULE_URL"), every: 2 * time.Second}
	if every, err := time.ParseDuration(os.Getenv("LOOK_AGAIN_EVERY")); err == nil {
		o.every = every
	}
	address := cmp.Or(os.Getenv("LISTEN"), "127.0.0.1:8081")
	if port := os.Getenv("PORT"); port != "" { // set by Knative
		address = ":" + port
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("ready: http://%s\n", listener.Addr())

	server := http.Server{Handler: o, ReadHeaderTimeout: 10 * time.Second}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	go func() {
		log.Print(server.Serve(listener))
		cancel()
	}()
	<-ctx.Done() // scaled to zero: the deliveries in flight may finish
	if err := server.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
}
