//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// startRecorder deploys the recorder. Its records are on a volume of the pod,
// and so outlive its container.
func startRecorder(n *namespace) {
	n.t.Helper()
	n.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: recorder}
spec:
  selector: {matchLabels: {app: recorder}}
  template:
    metadata: {labels: {app: recorder}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: recorder
        image: %s
        env: [{name: DIR, value: /var/records}]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
        resources: {requests: {cpu: 10m, memory: 16Mi}}
        securityContext: %s
        volumeMounts: [{name: records, mountPath: /var/records}]
      volumes: [{name: records, emptyDir: {}}]
---
apiVersion: v1
kind: Service
metadata: {name: recorder}
spec:
  selector: {app: recorder}
  ports: [{port: 80, targetPort: 8080}]
`, images.recorder, restricted))
	n.ready(deployment, "recorder")
	// Its endpoints follow a moment later.
	eventually(n.t, patience, "the recorder answers", func() error {
		_, err := n.recorded("")
		return err
	})
}

// recorderURL is where pods reach the recorder.
func recorderURL(n *namespace) string { return "http://recorder." + n.name + ".svc" }

// record is a request that the recorder got.
type record struct {
	At     time.Time // by the recorder's clock
	Method string
	Path   string
	Header http.Header
	Body   []byte
}

// attr is an attribute of the event, which came in binary mode.
func (r record) attr(name string) string { return attribute(r.Header, name) }

func attribute(h http.Header, name string) string {
	value := h.Get("Ce-" + name)
	if plain, err := url.PathUnescape(value); err == nil {
		return plain
	}
	return value
}

// records are the requests so far with a path, or with "" all, in the order
// of arrival.
func records(n *namespace, path string) []record {
	n.t.Helper()
	records, err := n.recorded(path)
	if err != nil {
		n.t.Fatal(err)
	}
	return records
}

// recorded is what records returns, for who waits while the recorder may be
// away.
func (n *namespace) recorded(path string) ([]record, error) { return keptRecords(n, "recorder", path) }

// keptRecords is what any recorder of the namespace got on a path, or with "" on all.
func keptRecords(n *namespace, recorder, path string) ([]record, error) {
	return containing(n, recorder, path, "")
}

// containing is what a recorder got on a path, or with "" on all, with this text in its body.
func containing(n *namespace, recorder, path, contains string) ([]record, error) {
	query := map[string]string{"path": path, "contains": contains}
	text, err := n.proxied(n.t.Context(), proxyCall{method: "GET", namespace: n.name, service: recorder, path: "records", query: query})
	if err != nil {
		return nil, fmt.Errorf("recorder %s: %w", recorder, err)
	}
	var records []record
	return records, json.Unmarshal(text, &records)
}

// answerNext has the recorder answer a path with a status from now on, for a while
// or, with 0, until it is told something else.
func answerNext(n *namespace, path string, status int, during time.Duration) {
	n.t.Helper()
	answer := map[string]any{"path": path, "status": status}
	if during > 0 {
		answer["for"] = during.String()
	}
	body, err := json.Marshal(answer)
	if err == nil {
		_, err = n.proxied(n.t.Context(), proxyCall{method: "PUT", namespace: n.name, service: "recorder", path: "answer", body: body})
	}
	if err != nil {
		n.t.Fatal(err)
	}
}

// do makes a call from within the cluster. headers are names and values in
// turn; the body is sent as JSON where they do not say otherwise. The error is
// of a call that got no answer.
func (n *namespace) do(method, target, body string, headers ...string) (*harness.Reply, error) {
	return doTrusting(n, "", method, target, body, headers...)
}

// doTrusting is do with the certificates to trust, PEM.
func doTrusting(n *namespace, caCerts, method, target, body string, headers ...string) (*harness.Reply, error) {
	call := struct {
		Method  string            `json:"method"`
		URL     string            `json:"url"`
		Headers map[string]string `json:"headers"`
		Body    []byte            `json:"body"`
		CACerts string            `json:"caCerts"`
	}{method, target, map[string]string{}, []byte(body), caCerts}
	if body != "" {
		call.Headers["Content-Type"] = "application/json"
	}
	for i := 0; i < len(headers); i += 2 {
		call.Headers[http.CanonicalHeaderKey(headers[i])] = headers[i+1]
	}
	text, err := json.Marshal(call)
	if err != nil {
		return nil, err
	}
	if text, err = n.proxied(n.t.Context(), proxyCall{method: "PUT", namespace: n.name, service: "recorder", path: "call", body: text}); err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, target, err)
	}
	reply := &harness.Reply{}
	return reply, json.Unmarshal(text, reply)
}

// run is one of a function: what it told the recorder at its start, and at its
// end if it came to one.
type run struct {
	Run     string
	Key     string
	ID      string
	Type    string
	Attempt int
	DueAt   time.Time
	Pod     string
	Header  http.Header
	Data    json.RawMessage
	Seen    string    // the resourceVersion of the object that was read
	Start   time.Time // by the function's clock
	End     time.Time // zero if it was not told
	Status  int       // that was answered
}

// attr is an attribute of the event.
func (r run) attr(name string) string { return attribute(r.Header, name) }

func (r run) String() string {
	return fmt.Sprintf("%s#%d due %s started %s ended %s status %d in %s", r.Key, r.Attempt,
		r.DueAt.Format(time.StampMilli), r.Start.Format(time.StampMilli), r.End.Format(time.StampMilli), r.Status, r.Pod)
}

// runs are the runs of all functions of the namespace so far whose key begins so,
// in the order of their starts.
func (n *namespace) runs(prefix string) []run {
	n.t.Helper()
	runs, err := n.recordedRuns(prefix)
	if err != nil {
		n.t.Fatal(err)
	}
	return runs
}

// recordedRuns is what runs returns, for callers that wait while the recorder may be away.
func (n *namespace) recordedRuns(prefix string) ([]run, error) {
	// A long test has thousands of runs, and asks for one key's many times.
	key, err := json.Marshal(prefix)
	if err != nil {
		return nil, err
	}
	records, err := containing(n, "recorder", "/runs", `"key":`+strings.TrimSuffix(string(key), `"`))
	if err != nil {
		return nil, err
	}
	var runs []run
	index := map[string]int{}
	for _, record := range records {
		var r run
		if err := json.Unmarshal(record.Body, &r); err != nil {
			return nil, fmt.Errorf("a run %s: %w", record.Body, err)
		}
		if !strings.HasPrefix(r.Key, prefix) {
			continue
		}
		if i, ok := index[r.Run]; ok {
			if !r.End.IsZero() {
				runs[i] = r
			}
			continue
		}
		index[r.Run] = len(runs)
		runs = append(runs, r)
	}
	slices.SortStableFunc(runs, func(a, b run) int { return a.Start.Compare(b.Start) })
	return runs, nil
}

// awaitRuns waits until there are at least so many runs of a key that came to
// their end, and returns all of it, also the records without an end.
func (n *namespace) awaitRuns(deadline time.Duration, key string, least int) []run {
	n.t.Helper()
	var of []run
	eventually(n.t, deadline, fmt.Sprintf("%d runs of %s", least, key), func() error {
		all, err := n.recordedRuns(key)
		if err != nil {
			return err
		}
		of = slices.DeleteFunc(all, func(r run) bool { return r.Key != key })
		ended := 0
		for _, r := range of {
			if !r.End.IsZero() {
				ended++
			}
		}
		if ended < least {
			return fmt.Errorf("%d ended: %v", ended, of)
		}
		return nil
	})
	return of
}
