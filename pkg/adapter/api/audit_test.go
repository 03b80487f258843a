package api

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// audited returns an edge whose source wants an audit log, and the lines of it.
func auditEdge(t *testing.T, wanted bool, change ...func(*Config)) (*edge, func() []string) {
	t.Helper()
	var log bytes.Buffer
	noTime := func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.MessageKey && a.Value.String() != "a change was asked for" {
			t.Errorf("the log says %q, also of what is refused", a.Value)
		}
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey || a.Key == slog.MessageKey {
			return slog.Attr{}
		}
		return a
	}
	e := newEdge(t, append(change, func(c *Config) {
		c.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: noTime}))
	})...)
	e.settings.Audit, e.settings.Namespace, e.settings.Name = wanted, "default", "demo"
	return e, func() []string {
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		log.Reset()
		return lines
	}
}

// Each admitted change is logged once, with user, verb, source, key and result; reads and refused callers are not.
func TestAudit_HasALineForEachAdmittedChange(t *testing.T) {
	t.Parallel()
	e, lines := auditEdge(t, true, func(c *Config) { c.Guard = access.NewTokens("secret", "other") })
	const auth = "Bearer other"
	e.do("PUT", base+"/schedules/k", "{}", "Authorization", auth)
	e.do("PUT", base+"/schedules/k", "{}", "Authorization", auth)
	e.do("PUT", base+"/schedules/k", `{"policy":"fail"}`, "Authorization", auth)
	e.do("POST", base+"/schedules", `{"items":[{"key":"b"},{"key":"c","delay":-1},{"key":"b","policy":"keep"}]}`, "Authorization", auth)
	e.do("POST", base, "{}", "Authorization", auth)
	e.refusal = schedule.Invalid("data", "is bad")
	e.do("POST", base, "{}", "Authorization", auth)
	e.do("DELETE", base+"/schedules/k", "", "Authorization", auth)
	e.do("DELETE", base+"/schedules?prefix=b", "", "Authorization", auth)
	e.do("PUT", base+"/schedules/k", "{}", "Authorization", auth)
	e.do("POST", base+"/schedules/k/run", "", "Authorization", auth)
	e.do("POST", base+"/schedules/missing/run", "", "Authorization", auth)
	letter := &schedule.Entry{DeadLetter: &schedule.DeadLetter{}}
	e.letters = map[string]*schedule.Entry{"d1": letter, "d2": letter, "d3": letter, "e1": letter}
	e.do("DELETE", base+"/deadletters/d1", "", "Authorization", auth)
	e.do("POST", base+"/deadletters/d2/redrive", "", "Authorization", auth)
	e.do("DELETE", base+"/deadletters?prefix=d", "", "Authorization", auth)
	e.do("POST", base+"/deadletters/redrive?prefix=e", "", "Authorization", auth)
	e.do("POST", base+"/resync", `{"prefix":"w"}`, "Authorization", auth)
	e.do("GET", base+"/schedules/k", "", "Authorization", auth)
	e.do("GET", base+"/deadletters", "", "Authorization", auth)
	e.do("PUT", base+"/schedules/k", "{}", "Authorization", "Bearer wrong")
	e.do("POST", base+"/schedules/k/run", "", "Authorization", "Bearer wrong")
	const head = `audit.user="token in line 2" audit.verb=`
	want := []string{
		head + `schedule audit.source=default/demo audit.key=k audit.result=created`,
		head + `schedule audit.source=default/demo audit.key=k audit.result=replaced`,
		head + `schedule audit.source=default/demo audit.key=k audit.result="409 already_exists"`,
		head + `bulk audit.source=default/demo audit.key=b audit.result=created`,
		head + `bulk audit.source=default/demo audit.key=c audit.result="400 invalid_argument"`,
		head + `bulk audit.source=default/demo audit.key=b audit.result=kept`,
		head + `event audit.source=default/demo audit.key=ingested audit.result=accepted`,
		head + `event audit.source=default/demo audit.key="" audit.result="400 invalid_argument"`,
		head + `cancel audit.source=default/demo audit.key=k audit.result=cancelled`,
		head + `cancelAll audit.source=default/demo audit.key=b audit.result="deleted 1"`,
		head + `schedule audit.source=default/demo audit.key=k audit.result=created`,
		head + `run audit.source=default/demo audit.key=k audit.result=replaced`,
		head + `run audit.source=default/demo audit.key=missing audit.result="404 not_found"`,
		head + `discard audit.source=default/demo audit.key=d1 audit.result=discarded`,
		head + `redrive audit.source=default/demo audit.key=d2 audit.result=redriven`,
		head + `discard audit.source=default/demo audit.key=d audit.result="deleted 1"`,
		head + `redrive audit.source=default/demo audit.key=e audit.result="redriven 1"`,
		head + `resync audit.source=default/demo audit.key=w audit.result="scheduled 7"`,
	}
	if d := cmp.Diff(want, lines()); d != "" {
		t.Error(d)
	}
}

// A change whose request cannot be read is logged too, with its verb, its key and the status of the refusal.
func TestAudit_HasALineForWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	e, lines := auditEdge(t, true)
	e.do("PUT", base+"/schedules/k", `{"delay":"x"}`)
	e.do("PUT", base+"/schedules/k", "{}", "Content-Type", "text/plain")
	e.do("PUT", base+"/schedules/k", "{}", "If-None-Match", "tag")
	e.do("DELETE", base+"/schedules/k?uid=", "")
	e.do("DELETE", base+"/schedules", "")
	e.do("POST", base+"/schedules", "[]")
	e.do("POST", base, "{}", "Content-Encoding", "gzip")
	e.do("POST", base+"/schedules/k/run", `{"x":1}`)
	e.do("DELETE", base+"/deadletters", "")
	e.do("POST", base+"/deadletters/redrive", "")
	e.do("POST", base+"/deadletters/k/redrive", `{"x":1}`)
	e.do("POST", base+"/resync", `{"over":"x"}`)
	e.do("GET", base+"/schedules/k?x=1", "")
	e.do("GET", base+"/deadletters?x=1", "")
	const invalid, media = "400 invalid_argument", "415 unsupported_media_type"
	want := [][3]string{
		{"schedule", "k", invalid}, {"schedule", "k", media}, {"schedule", "k", invalid}, {"cancel", "k", invalid},
		{"cancelAll", "", invalid}, {"bulk", "", invalid}, {"event", "", media}, {"run", "k", invalid},
		{"discard", "", invalid}, {"redrive", "", invalid}, {"redrive", "k", invalid}, {"resync", "", invalid},
	}
	got := lines()
	if len(got) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(got), len(want), strings.Join(got, "\n"))
	}
	for i, w := range want {
		key := w[1]
		if key == "" {
			key = `""`
		}
		if tail := "audit.verb=" + w[0] + " audit.source=default/demo audit.key=" + key + ` audit.result="` + w[2] + `"`; !strings.HasSuffix(got[i], tail) {
			t.Errorf("%q, want %q", got[i], tail)
		}
	}
}

// Without authentication audit.user is the address of the peer. A source without spec.audit logs nothing.
func TestAudit_NamesThePeerWithoutAUser(t *testing.T) {
	t.Parallel()
	e, lines := auditEdge(t, true)
	e.do("PUT", base+"/schedules/k", "{}")
	if got := lines(); len(got) != 1 || !strings.HasPrefix(got[0], "audit.user=192.0.2.1 audit.verb=schedule") {
		t.Error(got)
	}
	e, lines = auditEdge(t, false)
	e.do("PUT", base+"/schedules/k", "{}")
	if got := lines(); len(got) != 1 || got[0] != "" {
		t.Error(got)
	}
}

// Without spec.audit a change allocates no memory for its audit line.
func TestAudit_CostsNothingWhenItIsOff(t *testing.T) {
	e, _ := auditEdge(t, false)
	c := &call{Handler: e.Handler, src: e.fake, r: nil}
	if n := testing.AllocsPerRun(100, func() {
		c.audit(auditSchedule, "k", "created")
		_ = c.audited(auditCancel, "k", context.Canceled, "cancelled")
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
