package page

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"time"
	"unicode/utf8"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/sdk"
)

// shownBytes is how much of an event's data a view has.
const shownBytes = 64 << 10

// key shows one key, also one that is gone.
func (h *handler) key(r *http.Request) (*view, error) {
	s, t, err := h.find(r)
	if err != nil {
		return nil, err
	}
	key, err := validKey(r)
	if err != nil {
		return nil, err
	}
	f := t.Ask(r.Context(), key)
	if f.Counts == nil || f.Refusal != nil {
		return silent(s, &f), nil
	}
	var shown *event
	if f.Record != nil {
		shown = showEvent(f.Record.Event)
	}
	return &view{name: "key", Title: key, Crumbs: above(s), Live: true, Source: s, Body: struct {
		Done, Key string
		Answer    why.Answer
		Record    *sdk.Schedule
		Letter    *sdk.DeadLetter
		Moments   []moment
		Since     time.Time
		Event     *event
	}{done(r), key, why.Explain(f), f.Record, f.DeadLetter, timeline(f.Record, f.History.Items, f.Now), f.History.Since, shown}}, nil
}

// results are the words and the colours of outcomes.
var results = map[string]badge{
	"delivered": {"good", "delivered"}, "retrying": {"warn", "failed"}, "dead_lettered": {"bad", "to the dead letter sink"}, "kept": {"bad", "given up, kept"},
	"dropped": {"bad", "given up, dropped"}, "expired": {"held", "expired"}, "superseded": {"idle", "replaced"}, "aborted": {"idle", "cut off"},
	"deleted": {"idle", "cancelled"},
}

func result(name string) badge {
	if b, ok := results[name]; ok {
		return b
	}
	return badge{"idle", name}
}

// moment is an item of a key's timeline: words, or an outcome.
type moment struct {
	At      time.Time
	Class   string
	Text    string
	Badge   *badge
	Outcome *sdk.PastAttempt
}

// timeline is what comes and what was, newest first.
func timeline(k *sdk.Schedule, past []sdk.PastAttempt, now time.Time) []moment {
	var all []moment
	add := func(class string, at time.Time, text string) {
		all = append(all, moment{At: at, Class: class, Text: text})
	}
	switch {
	case k == nil:
	case k.InFlight || k.State == sdk.InFlight:
		add("busy", now, "A delivery is under way.")
	case !k.NextAttemptAt.IsZero():
		add("next", k.NextAttemptAt, "Attempt "+number(k.Tries+1)+" begins.")
	case k.DueAt.After(now):
		add("next", k.DueAt, "It becomes due.")
	default:
		add("busy", k.DueAt, "It became due and waits for its turn.")
	}
	scheduled := k == nil || k.ScheduledAt.IsZero()
	for i := range past {
		o := &past[i]
		if !scheduled && o.At.Before(k.ScheduledAt) {
			add("set", k.ScheduledAt, "Scheduled.")
			scheduled = true
		}
		b := result(o.Result)
		all = append(all, moment{At: o.At, Class: b.Class, Badge: &b, Outcome: o})
	}
	if !scheduled {
		add("set", k.ScheduledAt, "Scheduled.")
	}
	return all
}

// event is what a view shows of an event.
type event struct {
	Attributes, Data string
	Bytes            int
	Cut              bool
}

// showEvent is nil without an event.
func showEvent(e *sdk.Event) *event {
	if e == nil {
		return nil
	}
	attributes := *e
	attributes.Data, attributes.Base64 = nil, false
	b, err := json.MarshalIndent(attributes, "", "  ")
	if err != nil || string(b) == "{}" && len(e.Data) == 0 {
		return nil
	}
	shown := &event{Attributes: string(b), Data: readable(e.Data), Bytes: len(e.Data)}
	if shown.Cut = len(shown.Data) > 2*shownBytes; shown.Cut {
		shown.Data = shown.Data[:shownBytes]
	}
	return shown
}

// readable indents JSON; its numbers stay as they are. What is no text is in base64.
func readable(data []byte) string {
	var b bytes.Buffer
	switch {
	case !utf8.Valid(data):
		return base64.StdEncoding.EncodeToString(data)
	case len(data) > shownBytes || json.Indent(&b, data, "", "  ") != nil || b.Len() > 2*shownBytes:
		return string(data)
	}
	return b.String()
}

// letter shows a dead letter.
func (h *handler) letter(r *http.Request) (*view, error) {
	s, c, err := h.call(r)
	if err != nil {
		return nil, err
	}
	key, err := validKey(r)
	if err != nil {
		return nil, err
	}
	l, err := c.DeadLetter(r.Context(), key)
	if err != nil {
		return nil, err
	}
	crumbs := append(above(s), crumb{"Dead letters", href("source", s, "tab", "dead")})
	return &view{name: "letter", Title: key + " (dead letter)", Crumbs: crumbs, Source: s, Body: struct {
		*sdk.DeadLetter
		Shown *event
	}{l, showEvent(l.Event)}}, nil
}
