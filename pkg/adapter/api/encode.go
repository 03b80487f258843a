package api

import (
	"encoding/base64"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const contentJSON = "application/json"

// Header values are shared: assigning one costs no allocation, and net/http
// does not write to them.
var (
	typeJSON    = []string{contentJSON}
	typeProblem = []string{"application/problem+json"}
	noStore     = []string{"no-store"}
)

// pooledBytes is the largest buffer that is kept for later requests: the pools
// are in no budget.
const pooledBytes = 8 << 10

// buffer is an answer being written.
type buffer struct{ b []byte }

var buffers = sync.Pool{New: func() any { return &buffer{b: make([]byte, 0, 2048)} }}

func (b *buffer) free() {
	if cap(b.b) <= pooledBytes {
		b.b = b.b[:0]
		buffers.Put(b)
	}
}

// send writes the whole answer.
func (c *call) send(status int, contentType []string, body []byte) {
	if c.status == 0 { // else it is the end of a stream
		h := c.w.Header()
		h["Content-Type"] = contentType
		h["Cache-Control"] = noStore
		if len(body) > 2000 { // net/http counts a shorter one itself, for less
			h["Content-Length"] = []string{strconv.Itoa(len(body))}
		}
		c.writeHeader(status)
	}
	_, _ = c.w.Write(body) // it fails when the caller is gone
}

// streamBytes is how much of a long answer is held before it is sent.
const streamBytes = 32 << 10

// stream sends what there is of the answer once it is much, and returns the
// buffer for the rest: an answer that must come whatever the budget says.
func (c *call) stream(b []byte) []byte {
	if len(b) < streamBytes {
		return b
	}
	if c.status == 0 {
		h := c.w.Header()
		h["Content-Type"] = typeJSON
		h["Cache-Control"] = noStore
		c.writeHeader(http.StatusOK)
	}
	_, _ = c.w.Write(b) // as in send
	return b[:0]
}

// tag sets the ETag of a key's answer.
func (c *call) tag(revision uint64) {
	var buf [24]byte
	b := append(buf[:0], '"')
	b = strconv.AppendUint(b, revision, 10)
	c.w.Header()["Etag"] = []string{string(append(b, '"'))}
}

// appendScheduled writes the answer to a request. Items of a bulk call carry
// their status, which is 0 otherwise.
func appendScheduled(b []byte, s *queue.Scheduled, status int) []byte {
	b = append(b, `{"key":`...)
	b = appendString(b, s.View.Key)
	if status != 0 {
		b = append(b, `,"status":`...)
		b = strconv.AppendInt(b, int64(status), 10)
	}
	b = append(b, `,"revision":`...)
	b = strconv.AppendUint(b, s.View.Revision, 10)
	b = append(b, `,"result":"`...)
	b = append(b, s.Result...)
	b = append(b, '"')
	b = appendState(b, &s.View)
	return appendShown(b, s.View.Event)
}

// appendView writes a key as GET and the list show it.
func appendView(b []byte, v *schedule.View) []byte {
	b = append(b, `{"key":`...)
	b = appendString(b, v.Key)
	b = append(b, `,"revision":`...)
	b = strconv.AppendUint(b, v.Revision, 10)
	b = appendState(b, v)
	b = append(b, `,"tries":`...)
	b = strconv.AppendUint(b, uint64(v.Attempts()), 10)
	if !v.CompanyUntil.IsZero() {
		b = append(b, `,"companyUntil":`...)
		b = appendTime(b, v.CompanyUntil)
	}
	if v.Retrying() {
		b = append(b, `,"nextAttemptAt":`...)
		b = appendTime(b, v.RetryAt)
	}
	if f := v.LastFailure; f != nil {
		b = append(b, `,"lastFailure":{"at":`...)
		b = appendTime(b, f.At)
		b = append(appendFailure(b, f.Code, f.Data), '}')
	}
	return appendShown(b, v.Event)
}

// appendState writes the members from state on, without the event.
func appendState(b []byte, v *schedule.View) []byte {
	b = append(b, `,"state":"`...)
	b = append(b, v.State...)
	b = append(b, `","dueAt":`...)
	b = appendTime(b, v.DueAt)
	if !v.PreviousDueAt.IsZero() {
		b = append(b, `,"previousDueAt":`...)
		b = appendTime(b, v.PreviousDueAt)
	}
	b = append(b, `,"scheduledAt":`...)
	b = appendTime(b, v.ScheduledAt)
	b = append(b, `,"attempt":`...)
	b = strconv.AppendUint(b, uint64(v.Attempt), 10)
	b = append(b, `,"inFlight":`...)
	b = strconv.AppendBool(b, v.InFlight)
	b = appendMember(b, "uid", v.UID)
	b = appendMember(b, "reason", v.Reason)
	if c := v.Calendar; c != nil {
		b = appendMember(b, "cron", c.Cron)
		b = appendMember(b, "timeZone", c.TimeZone)
		if c.Jitter != 0 {
			b = append(b, `,"jitter":`...)
			b = strconv.AppendFloat(b, c.Jitter, 'g', -1, 64)
		}
	}
	if v.MaxInterval != nil {
		b = appendMember(b, "maxInterval", v.MaxInterval.String())
	}
	if v.Slack != nil {
		b = appendMember(b, "slack", v.Slack.String())
	}
	if v.Priority != schedule.NormalPriority {
		b = appendMember(b, "priority", v.Priority.String())
	}
	if !v.ExpiresAt.IsZero() {
		b = append(b, `,"expiresAt":`...)
		b = appendTime(b, v.ExpiresAt)
	}
	return b
}

// appendShown writes the event of a key, if it has one, as the last member.
func appendShown(b []byte, e *schedule.Event) []byte {
	if e != nil {
		b = append(b, `,"event":`...)
		b = appendEvent(b, e)
	}
	return append(b, '}')
}

// appendEvent writes what is set of an event, in the manner of the CloudEvents
// JSON format: the answer to a request shows what the request asked for.
func appendEvent(b []byte, e *schedule.Event) []byte {
	start := len(b)
	b = appendMember(b, "id", e.ID)
	b = appendMember(b, "source", e.Source)
	b = appendMember(b, "type", e.Type)
	b = appendMember(b, "subject", e.Subject)
	if !e.Time.IsZero() {
		b = append(b, `,"time":`...)
		b = appendTime(b, e.Time)
	}
	b = appendMember(b, "datacontenttype", e.DataContentType)
	b = appendMember(b, "dataschema", e.DataSchema)
	b = appendExtensions(b, e.Extensions)
	if e.Data != nil {
		b = appendData(b, e)
	}
	if len(b) == start {
		return append(b, "{}"...)
	}
	b[start] = '{' // in place of the first member's comma
	return append(b, '}')
}

func appendExtensions(b []byte, extensions map[string]any) []byte {
	if len(extensions) == 0 {
		return b
	}
	for _, name := range slices.Sorted(maps.Keys(extensions)) {
		value := extensions[name]
		switch value.(type) {
		case string, bool, int32:
		default:
			continue // there are no other types
		}
		b = append(b, ',')
		b = appendString(b, name)
		b = append(b, ':')
		switch v := value.(type) {
		case string:
			b = appendString(b, v)
		case bool:
			b = strconv.AppendBool(b, v)
		case int32:
			b = strconv.AppendInt(b, int64(v), 10)
		}
	}
	return b
}

func appendData(b []byte, e *schedule.Event) []byte {
	isJSON := !e.DataBase64 && e.IsJSON()
	if isJSON && e.Source != "" { // an ingested event was not read as JSON
		isJSON = jsontext.Value(e.Data).IsValid(decodeOptions...)
	}
	switch {
	case isJSON:
		b = append(b, `,"data":`...)
		return append(b, e.Data...)
	case !e.DataBase64 && utf8.Valid(e.Data) && !e.IsJSON():
		b = append(b, `,"data":`...)
		b, _ = jsontext.AppendQuote(b, e.Data)
		return b
	}
	b = append(b, `,"data_base64":"`...)
	b = base64.StdEncoding.AppendEncode(b, e.Data)
	return append(b, '"')
}

func appendMember(b []byte, name, value string) []byte {
	if value == "" {
		return b
	}
	b = append(b, ',', '"')
	b = append(b, name...)
	b = append(b, '"', ':')
	return appendString(b, value)
}

// appendString writes a JSON string; what is not UTF-8 becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

func appendTime(b []byte, t time.Time) []byte {
	b = append(b, '"')
	b = t.UTC().AppendFormat(b, time.RFC3339Nano)
	return append(b, '"')
}

// appendInstant writes null for the zero time.
func appendInstant(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, "null"...)
	}
	return appendTime(b, t)
}
