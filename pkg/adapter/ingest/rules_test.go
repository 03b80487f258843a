package ingest

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
)

// Compile quotes the compiler.
func TestCompile_QuotesTheCompiler(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ key, when, field, say string }{
		"syntax":                {"event.", "", "spec.ingest.key", "Syntax error"},
		"an unknown variable":   {"evnt.id", "", "spec.ingest.key", "undeclared reference to 'evnt'"},
		"an unknown function":   {"", "nope(event)", "spec.ingest.when", "undeclared reference to 'nope'"},
		"the type of a key":     {"1 + 1", "", "spec.ingest.key", "yields int, not string"},
		"the type of a when":    {"", "'true'", "spec.ingest.when", "yields string, not bool"},
		"a key of the wrong":    {"event.size() > 1", "", "spec.ingest.key", "yields bool, not string"},
		"mixed types":           {"'a' + 1", "", "spec.ingest.key", "no matching overload"},
		"too long":              {"'" + strings.Repeat("x", expression.MaxLength) + "'", "", "spec.ingest.key", "size"},
		"too deep":              {strings.Repeat("(", 500) + "'x'" + strings.Repeat(")", 500), "", "spec.ingest.key", "recursion"},
		"a bad regular pattern": {"", "event.id.matches('(')", "spec.ingest.when", "("},
	} {
		_, err := Compile(&schedule.Spec{Ingest: schedule.Ingest{Key: tt.key, When: tt.when}})
		if err == nil || !strings.HasPrefix(err.Error(), tt.field+": ") || !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Compile(&schedule.Spec{Ingest: schedule.Ingest{Key: "event.data.x", When: "event.x && event.y"}}); err != nil {
		t.Errorf("dynamic types: %v", err)
	}
}

// For any message Read returns items with a valid key, event and delay, or a *schedule.Error.
func FuzzReadEvents(f *testing.F) {
	f.Add("application/json", "1.0", "i", "/s", "5m", "", `{"metadata":{"generation":2}}`)
	f.Add("application/cloudevents+json", "", "", "", "", "", `{"specversion":"1.0","id":"i","source":"/s","type":"t","rescheduleafter":5,"data_base64":1}`)
	f.Add("application/cloudevents-batch+json", "", "", "", "", "", `[{"specversion":"0.3","id":"i","source":"/s","type":"t"}]`)
	f.Add("", "0.3", "é", "%C3%A9", "", "2026-11-22T00:00:00Z", "\xff")
	all := []*Rules{
		rules(f, "", ""),
		rules(f, "event.kind + '/' + event.namespace + '/' + event.name", "event.data.metadata.generation != event.data.status.observedGeneration"),
		rules(f, "string(event.data)", "event.data.exists(x, x == event.subject)"),
	}
	f.Fuzz(func(t *testing.T, media, version, id, source, after, at, body string) {
		h := http.Header{}
		for name, v := range map[string]string{
			"Content-Type": media, "Ce-Specversion": version, "Ce-Id": id, "Ce-Source": source, "Ce-Type": id,
			"Ce-Subject": source, "Ce-Rescheduleafter": after, "Ce-Rescheduleat": at, "Traceparent": source,
		} {
			if v != "" {
				h.Set(name, v)
			}
		}
		for _, r := range all {
			items, err := r.Read(context.Background(), h, []byte(body), now, nil)
			var refused *schedule.Error
			if err != nil && !errors.As(err, &refused) {
				t.Fatalf("%v is no *schedule.Error", err)
			}
			for _, i := range items {
				q := i.Request
				if schedule.ValidateKey(i.Key) != nil || q.Event == nil || q.Event.ID == "" || q.Event.Source == "" || !q.Ingested {
					t.Fatalf("accepted %q %+v", i.Key, q)
				}
				if q.Delay != nil && (*q.Delay < 0 || *q.Delay > schedule.MaxDuration || !q.DueAt.IsZero()) {
					t.Fatalf("accepted the time %+v", q)
				}
			}
		}
	})
}
