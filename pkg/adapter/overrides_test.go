package adapter

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
)

// Each accepted spec.ceOverrides reaches the sink unchanged in both formats. A refusal names the field.
func TestAcceptedSpec_ItsOverridesReachTheSink(t *testing.T) {
	t.Parallel()
	r := seeded(t)
	w := &world{t: t, answer: func(rw http.ResponseWriter) { rw.WriteHeader(http.StatusNoContent) }}
	srv := httptest.NewServer(http.HandlerFunc(w.receive))
	defer srv.Close()
	sender := sink.New(sink.Config{Log: slog.New(slog.DiscardHandler)})
	defer sender.Close()
	accepted := 0
	for range 300 {
		overrides := map[string]string{}
		for range 1 + r.IntN(2) {
			overrides[pick(r, "team", "x", "data", "time", "subject", "a-b", "é", "Odd", "datacontenttype", "traceparent", "rescheduleattempt", "id", text(r))] = text(r)
		}
		names, err := json.Marshal(overrides)
		if err != nil {
			t.Fatal(err)
		}
		set, err := sources.Parse("test", fmt.Appendf(nil, `{"apiVersion":"sources.reschedule.dev/v1alpha1","kind":"RescheduleSource","metadata":{"name":"a","namespace":"ns"},
			"spec":{"sink":{"uri":%q},"ceOverrides":{"extensions":%s},"delivery":{"format":%q}}}`, srv.URL, names, pick(r, "json", "binary")), nil)
		if err != nil {
			if !strings.Contains(err.Error(), "ceOverrides.extensions") {
				t.Errorf("%s: %v names no field", names, err)
			}
			continue
		}
		accepted++
		w.got = nil
		entry := &schedule.Entry{Revision: 1, Occurrence: 1, DueAt: time.Now()}
		if a, _ := schedule.NewAttempt(set[0], "key", entry, "store"); sender.Send(t.Context(), a).Kind != schedule.Succeeded || len(w.got) != 1 {
			t.Errorf("%s: not delivered", names)
			continue
		}
		x := expectation{supply: supply{attributes: map[string]any{}}}
		for name, value := range overrides {
			x.supply.attributes[name] = value
		}
		if wrong := x.same(&w.got[0], w.binary); wrong != "" {
			t.Errorf("%s: %s", names, wrong)
		}
	}
	if accepted < 10 {
		t.Errorf("only %d were accepted", accepted)
	}
}
