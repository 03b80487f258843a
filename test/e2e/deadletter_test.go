//go:build e2e

package e2e

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// An event that its sink refuses reaches the dead letter sink.
func TestDeadLetter_GetsTheRefused(t *testing.T) {
	beside(t)
	n := newNamespace(t, "dead")
	n.serve("operator", quickly, rule{"500/", behaviour{Status: 500}}, rule{"400/", behaviour{Status: 400}})
	n.serve("undertaker", quickly)
	const delivery = "delivery: {retry: 2, backoffDelay: PT0.2S, deadLetterSink: %s}"
	toRecorder := n.source("to-service", toKsvc("operator")+fmt.Sprintf(delivery, "{ref: {apiVersion: v1, kind: Service, name: recorder}, uri: /dead}"))
	toUndertaker := n.source("to-ksvc", toKsvc("operator")+fmt.Sprintf(delivery, "{ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: undertaker}}"))
	// A dead letter wakes its sink as any event does.
	n.atZero("undertaker")

	for _, c := range []struct {
		name     string
		status   int
		attempts int
	}{
		{"after the last retry", 500, 3},
		{"at once when it is refused for good", 400, 1},
	} {
		for sink, s := range map[string]*source{"a Service": toRecorder, "a ksvc": toUndertaker} {
			t.Run(c.name+" to "+sink, func(t *testing.T) {
				key := fmt.Sprintf("%d/%s", c.status, s.name)
				s.put(key, `{"event":{"type":"dev.reschedule.e2e","team":"platform"}}`)

				letter, runs := deadLetterOf(n, s, key)
				if len(runs) != c.attempts {
					t.Fatalf("%d attempts, want %d: %v", len(runs), c.attempts, runs)
				}
				for i, r := range runs {
					if r.Attempt != i || r.Status != c.status || r.ID != runs[0].ID {
						t.Errorf("attempt %d is %s", i, r)
					}
				}
				for name, want := range map[string]string{
					"id": runs[0].ID, "type": "dev.reschedule.e2e", "team": "platform", "subject": key, "reschedulekey": key,
					"source":           "/apis/sources.reschedule.dev/v1alpha1/namespaces/" + n.name + "/reschedulesources/" + s.name,
					"rescheduledueat":  runs[0].attr("rescheduledueat"),
					"knativeerrorcode": fmt.Sprint(c.status),
					"knativeerrordata": base64.StdEncoding.EncodeToString([]byte("as it was told\n")),
				} {
					if got := letter(name); got != want {
						t.Errorf("%s of the dead letter is %q, want %q", name, got, want)
					}
				}
				if dest, err := url.Parse(letter("knativeerrordest")); err != nil || !strings.HasPrefix(dest.Host, "operator."+n.name+".") {
					t.Errorf("knativeerrordest is %q, not the operator's address", letter("knativeerrordest"))
				}
				if said := s.warned("EventDeadLettered"); !strings.Contains(said, "dead letter sink") {
					t.Errorf("the Event says %q", said)
				}
				if left := s.scheduled(key); left != nil {
					t.Errorf("%s is still scheduled: %+v", key, left)
				}
			})
		}
	}
}

// deadLetterOf waits for the dead letter of a key and returns its attributes, and
// the runs of the operator before it. The undertaker is a function as well: its
// run has the error.
func deadLetterOf(n *namespace, s *source, key string) (attr func(string) string, runs []run) {
	n.t.Helper()
	eventually(n.t, patience, "the dead letter of "+key, func() error {
		attr, runs = nil, nil
		letters, err := n.recorded("/dead")
		if err != nil {
			return err
		}
		for _, l := range letters {
			if l.attr("reschedulekey") == key {
				attr = l.attr
			}
		}
		all, err := n.recordedRuns(key)
		if err != nil {
			return err
		}
		for _, r := range all {
			if r.attr("knativeerrordest") == "" {
				runs = append(runs, r)
			} else {
				attr = r.attr
			}
		}
		if attr == nil {
			return fmt.Errorf("it is not there; the runs are %v, the source says %+v", runs, s.counts())
		}
		return nil
	})
	return attr, runs
}
