package sdk_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

const structured = `{"specversion":"1.0","id":"1","source":"/s","type":"t","reschedulekey":"k","reschedulerevision":"18446744073709551615",` +
	`"rescheduledueat":"2026-11-21T09:00:00.5Z","rescheduleattempt":3,"flag":true`

// A request is a delivery with all its attributes, or ErrInvalid.
func TestReadDelivery_Attributes(t *testing.T) {
	t.Parallel()
	binary := []string{
		"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/s", "Ce-Type", "t", "Ce-Reschedulekey", "k",
		"Ce-Reschedulerevision", "18446744073709551615", "Ce-Rescheduledueat", "2026-11-21T09:00:00.5Z", "Ce-Rescheduleattempt", "3", "Ce-Flag", "true",
	}
	inMode := []string{"Content-Type", "Application/CloudEvents+JSON; charset=utf-8"}
	whole := sdk.Delivery{
		Key: "k", Revision: 1<<64 - 1, DueAt: time.Date(2026, 11, 21, 9, 0, 0, 5e8, time.UTC), Attempt: 3,
		ID: "1", Source: "/s", Type: "t", Data: []byte{}, Extensions: map[string]string{"flag": "true"},
	}
	with := func(change func(*sdk.Delivery)) *sdk.Delivery {
		d := whole
		change(&d)
		return &d
	}
	for name, c := range map[string]struct {
		header []string // pairs
		body   string
		want   *sdk.Delivery
		words  string // of the error
	}{
		"binary":      {header: binary, want: &whole},
		"a namespace": {header: append(binary, "Kn-Namespace", "ops"), want: with(func(d *sdk.Delivery) { d.Namespace = "ops" })},
		"all of it": {header: append(binary, "Content-Type", "text/plain", "Ce-Subject", "%C3%A9", "Ce-Time", "2026-11-21T09:00:00.5Z", "Ce-Dataschema", "http://x"), body: "hi", want: with(func(d *sdk.Delivery) {
			d.Time, d.DataSchema, d.DataContentType, d.Subject, d.Data = d.DueAt, "http://x", "text/plain", "é", []byte("hi")
		})},
		"a priority":   {header: append(binary, "Ce-Reschedulepriority", "high"), want: with(func(d *sdk.Delivery) { d.Priority = sdk.HighPriority })},
		"structured":   {header: inMode, body: structured + `}`, want: with(func(d *sdk.Delivery) { d.Data = nil })},
		"no event":     {words: "there is no reschedulekey"},
		"of another":   {header: []string{"Ce-Id", "1", "Ce-Type", "dev.knative.apiserver.resource.add"}, words: "there is no reschedulekey"},
		"no number":    {header: append(binary[:len(binary)-4:len(binary)-4], "Ce-Rescheduleattempt", "x"), words: "attribute rescheduleattempt"},
		"no priority":  {header: append(binary, "Ce-Reschedulepriority", "urgent"), words: "attribute reschedulepriority"},
		"no instant":   {header: append(binary, "Ce-Time", "noon"), words: "attribute time"},
		"far too much": {header: binary, body: strings.Repeat("x", 1<<20+1), words: "more than 1048576 bytes"},
	} {
		r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(c.body))
		for i := 0; i < len(c.header); i += 2 {
			r.Header.Set(c.header[i], c.header[i+1])
		}
		got, err := sdk.ReadDelivery(r)
		switch {
		case c.want != nil && (err != nil || !reflect.DeepEqual(got, c.want)):
			t.Errorf("%s: %+v, %v, want %+v", name, got, err, c.want)
		case c.want == nil && (!errors.Is(err, sdk.ErrInvalid) || !strings.Contains(err.Error(), c.words)):
			t.Errorf("%s: %+v, %v, want %s", name, got, err, c.words)
		}
	}

	r := httptest.NewRequest(http.MethodPost, "/", iotest.ErrReader(io.ErrUnexpectedEOF))
	if _, err := sdk.ReadDelivery(r); !errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, sdk.ErrInvalid) {
		t.Errorf("a connection that broke: %v", err)
	}
}

// Each answer has the status and the header of the contract.
func TestDelivery_Answers(t *testing.T) {
	t.Parallel()
	again := func(d time.Duration) func(http.ResponseWriter) {
		return func(w http.ResponseWriter) { sdk.Again(w, d) }
	}
	for name, c := range map[string]struct {
		answer      func(http.ResponseWriter)
		status      int
		after, body string
	}{
		"done":                {sdk.Done, 204, "", ""},
		"again":               {again(5 * time.Minute), 204, "5m0s", ""},
		"again at once":       {again(0), 204, "0s", ""},
		"again, as was due":   {again(-time.Hour), 204, "0s", ""},
		"again in a century":  {again(876600*time.Hour + 1), 204, "876600h0m0s", ""},
		"again in no time":    {again(1500), 204, "1.5us", ""},
		"never":               {sdk.Never, 204, "never", ""},
		"retry":               {func(w http.ResponseWriter) { sdk.Retry(w, errors.New("busy")) }, 503, "", "busy\n"},
		"reject":              {func(w http.ResponseWriter) { sdk.Reject(w, errors.New("no")) }, 422, "", "no\n"},
		"retry in a while":    {func(w http.ResponseWriter) { sdk.RetryIn(w, errors.New("busy"), time.Hour) }, 503, "1h0m0s", "busy\n"},
		"reject, and again":   {func(w http.ResponseWriter) { sdk.RejectAgain(w, errors.New("no"), 1500) }, 422, "1.5us", "no\n"},
		"retry, but not soon": {func(w http.ResponseWriter) { w.Header().Set("Retry-After", "60"); sdk.Retry(w, errors.New("busy")) }, 503, "", "busy\n"},
	} {
		w := httptest.NewRecorder()
		c.answer(w)
		if after := w.Header().Get("Reschedule-After"); w.Code != c.status || after != c.after || w.Body.String() != c.body {
			t.Errorf("%s: %d, %q, %q", name, w.Code, after, w.Body)
		}
	}
}

// SetPriority is the header of whatever answer follows.
func TestSetPriority_IsAHeader(t *testing.T) {
	t.Parallel()
	for p, want := range map[sdk.Priority]string{sdk.LowPriority: "low", sdk.NormalPriority: "normal", sdk.HighPriority: "high"} {
		w := httptest.NewRecorder()
		sdk.SetPriority(w, p)
		sdk.Retry(w, errors.New("busy"))
		if got := w.Header().Get("Reschedule-Priority"); w.Code != http.StatusServiceUnavailable || got != want {
			t.Errorf("%s: %d, %q", p, w.Code, got)
		}
	}
}
