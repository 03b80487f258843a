package ingest

import (
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// fakeSource records what is scheduled.
type fakeSource struct {
	settings *schedule.Spec
	keys     []string
	err      error
}

func (f *fakeSource) Spec() *schedule.Spec { return f.settings }

func (f *fakeSource) ScheduleTogether(items []queue.Item) error {
	for _, item := range items {
		f.keys = append(f.keys, item.Key)
	}
	return f.err
}

// send sends an event of subject s.
func send(t *testing.T, r *Receiver, src *schedule.Spec) ([]string, schedule.Code) {
	t.Helper()
	f := &fakeSource{settings: src}
	h := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/x"}, "Ce-Type": {"t"}, "Ce-Subject": {"s"}}
	_, err := r.Ingest(t.Context(), f, h, nil, nil)
	if refusal, ok := errors.AsType[*schedule.Error](err); ok {
		return f.keys, refusal.Code
	}
	must(t, err)
	return f.keys, ""
}

// An event is keyed by the newest rules that compile; without any it is refused.
func TestReceiver_TakesEventsByTheNewestRules(t *testing.T) {
	t.Parallel()
	var log strings.Builder
	r := &Receiver{Log: slog.New(slog.NewTextHandler(&log, nil))}
	src := func(key string) *schedule.Spec {
		return &schedule.Spec{UID: "u", Namespace: "ns", Name: "a", Ingest: schedule.Ingest{Key: key}}
	}
	for _, step := range []struct {
		do   func()
		keys []string
		code schedule.Code
	}{
		{func() {}, nil, schedule.CodeNotFound},
		{func() { r.Set(src("event.")) }, nil, schedule.CodeUnavailable},
		{func() { r.Set(src("")) }, []string{"s"}, ""},
		{func() { r.Set(src("'k/' + event.subject")) }, []string{"k/s"}, ""},
		{func() { r.Set(src("event.")) }, []string{"k/s"}, ""},
		{func() { r.Set(src("'k/' + event.subject")) }, []string{"k/s"}, ""},
		{func() { r.Remove("u") }, nil, schedule.CodeNotFound},
	} {
		step.do()
		keys, code := send(t, r, src(""))
		if d := cmp.Diff(step.keys, keys); d != "" || code != step.code {
			t.Errorf("code %q, want %q; keys: %s", code, step.code, d)
		}
	}
	if n := strings.Count(log.String(), "do not compile"); n != 2 {
		t.Errorf("%d lines in the log, want 2: %s", n, log.String())
	}
}

// The settings of a source change with its spec, also when its expressions do not.
func TestReceiver_FollowsSettings(t *testing.T) {
	t.Parallel()
	r := &Receiver{}
	src := &schedule.Spec{UID: "u", Ingest: schedule.Ingest{When: "true"}}
	r.Set(src)
	before := r.find("u")
	changed := *src
	changed.Ingest.MaxDelay = 1
	r.Set(&changed)
	if now := r.find("u"); now.src != &changed || now.when != before.when {
		t.Errorf("the settings are %+v, compiled again: %t", now.src, now.when != before.when)
	}
}

// Events are counted as accepted, filtered or refused; a batch counts each event. A refusal is reported with its source.
func TestReceiver_CountsEvents(t *testing.T) {
	t.Parallel()
	var reported []string
	r := &Receiver{Log: slog.New(slog.DiscardHandler), Refused: func(src *schedule.Spec, refusal error) {
		reported = append(reported, src.Name+": "+refusal.Error())
	}}
	src := &schedule.Spec{UID: "u", Name: "a", Ingest: schedule.Ingest{When: `event.type == "t"`}}
	r.Set(src)
	f := &fakeSource{settings: src}
	one := func(kind string) string {
		return `{"specversion":"1.0","id":"1","source":"/x","type":"` + kind + `","subject":"s"}`
	}
	batch := http.Header{"Content-Type": {"application/cloudevents-batch+json"}}
	for _, body := range []string{"[" + one("t") + "," + one("other") + "," + one("t") + "]", "no events"} {
		_, _ = r.Ingest(t.Context(), f, batch, []byte(body), nil) // the second one is refused
	}
	f.err = schedule.Refuse(schedule.CodeQuota, "full")
	_, _ = r.Ingest(t.Context(), f, batch, []byte("["+one("t")+","+one("t")+"]"), nil)
	if len(reported) != 2 || !strings.HasPrefix(reported[0], "a: event: ") || reported[1] != "a: full" {
		t.Errorf("reported %q", reported)
	}
	again := *src
	r.Set(&again) // new settings go on counting
	var got []int64
	for i := range results {
		got = append(got, r.find("u").tally[i].Load())
	}
	if d := cmp.Diff([]int64{accepted: 2, filtered: 1, refused: 3}, got); d != "" {
		t.Error(d)
	}
}
