package cloudevent

import (
	"encoding/base64"
	"maps"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	"github.com/cloudevents/sdk-go/v2/types"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The extension attributes that have a meaning here. In an event that comes in, as
// an ingested event or as a reply, the first four control the schedule.
const (
	KeyAttribute    = "reschedulekey"
	AfterAttribute  = "rescheduleafter"
	AtAttribute     = "rescheduleat"
	PolicyAttribute = "reschedulepolicy"
	// Of an ingested event only.
	CronAttribute     = "reschedulecron"
	TimeZoneAttribute = "rescheduletimezone"

	// Every delivery carries these, and KeyAttribute.
	RevisionAttribute = "reschedulerevision"
	DueAtAttribute    = "rescheduledueat"
	NumberAttribute   = "rescheduleattempt"

	// A dead letter also carries these, by Knative's convention.
	ErrorDestAttribute = "knativeerrordest"
	ErrorCodeAttribute = "knativeerrorcode"
	ErrorDataAttribute = "knativeerrordata"
)

// Reserved are the attributes that control a schedule, that every delivery sets, or that
// a watch alone gives: a request cannot give them, and the event of a reply loses them.
var Reserved = []string{
	KeyAttribute, AfterAttribute, AtAttribute, PolicyAttribute, CronAttribute, TimeZoneAttribute,
	RevisionAttribute, DueAtAttribute, NumberAttribute,
	schedule.FinalAttribute, schedule.PriorityAttribute,
}

// maxErrorData bytes are 1024 in base64, the most that Knative's convention
// gives knativeerrordata.
const maxErrorData = 1024 / 4 * 3

// Describe returns the event that an attempt sends, without the extensions that
// DeliveryExtensions adds: the event's own values, and the occurrence's where the event has none.
// source is the attempt's Source.EventSource, which a caller may have computed already.
func Describe(a *schedule.Attempt, source string) schedule.Event {
	out := schedule.Event{ID: a.ID, Source: source, Type: schedule.DefaultEventType, Subject: a.Key}
	e := a.Entry.Event
	if e == nil {
		out.Time = a.DueAt()
		return out
	}
	if e.Source != "" {
		out.Source = e.Source
	}
	if e.Type != "" {
		out.Type = e.Type
	}
	if e.Subject != "" {
		out.Subject = e.Subject
	}
	out.Time = e.Time
	if e.Time.IsZero() && e.ID == "" {
		out.Time = a.DueAt() // an ingested event without a time stays without
	}
	out.Extensions, out.Data, out.DataBase64 = e.Extensions, e.Data, e.DataBase64
	out.DataContentType, out.DataSchema = e.DataContentType, e.DataSchema
	if out.DataContentType == "" && len(e.Data) > 0 {
		out.DataContentType = defaultDataType
	}
	return out
}

// DeliveryExtensions calls put with each extension attribute that the delivery adds.
func DeliveryExtensions(a *schedule.Attempt, put func(name, value string)) {
	put(KeyAttribute, a.Key)
	put(RevisionAttribute, strconv.FormatUint(a.Revision(), 10))
	put(DueAtAttribute, types.FormatTime(a.DueAt()))
	put(NumberAttribute, strconv.FormatInt(int64(number(a)), 10))
	if p := a.Entry.Priority; p != schedule.NormalPriority {
		put(schedule.PriorityAttribute, p.String())
	}
	if d := a.Entry.DeadLetter; d != nil {
		put(ErrorDestAttribute, d.Failure.Dest)
		put(ErrorCodeAttribute, strconv.FormatInt(int64(errorCode(d.Failure)), 10))
		put(ErrorDataAttribute, base64.StdEncoding.EncodeToString(d.Failure.Data[:min(len(d.Failure.Data), maxErrorData)]))
	}
}

// number is the attempt counter as a CloudEvents Integer, which has 32 bits.
func number(a *schedule.Attempt) int32 { return int32(min(a.Number(), math.MaxInt32)) }

// errorCode is 500 if there was no answer, as in Knative's dispatcher.
func errorCode(f schedule.Failure) int32 {
	if f.Code == 0 {
		return http.StatusInternalServerError
	}
	return int32(f.Code)
}

// Context returns the attributes of an event as the SDK's context. It shares the
// event's memory.
func Context(e *schedule.Event) *event.EventContextV1 {
	ec := &event.EventContextV1{ID: e.ID, Type: e.Type, Source: types.URIRef{URL: verbatim(e.Source)}, Extensions: e.Extensions}
	if e.Subject != "" {
		ec.Subject = &e.Subject
	}
	if e.DataContentType != "" {
		ec.DataContentType = &e.DataContentType
	}
	if e.DataSchema != "" {
		ec.DataSchema = &types.URI{URL: verbatim(e.DataSchema)}
	}
	if !e.Time.IsZero() {
		ec.Time = &types.Timestamp{Time: e.Time}
	}
	return ec
}

// ToSDK is the event that an attempt sends. The revision is a string, because
// a CloudEvents Integer has 32 bits.
func ToSDK(a *schedule.Attempt) event.Event {
	d := Describe(a, a.Source.EventSource())
	ec := Context(&d)
	ec.Extensions = make(map[string]any, len(d.Extensions)+8)
	maps.Copy(ec.Extensions, d.Extensions)
	DeliveryExtensions(a, func(name, value string) { ec.Extensions[name] = value })
	ec.Extensions[NumberAttribute] = number(a)
	if dead := a.Entry.DeadLetter; dead != nil {
		ec.Extensions[ErrorCodeAttribute] = errorCode(dead.Failure)
	}
	for name, value := range a.Source.Extensions {
		ec.Extensions[name] = value
	}
	out := event.Event{Context: ec, DataEncoded: d.Data, DataBase64: d.DataBase64}
	if len(d.Data) == 0 {
		out.DataEncoded, out.DataBase64 = nil, false
	}
	out.DataBase64 = out.DataBase64 || needsBase64(ec.GetDataMediaType, d.Data)
	return out
}

// needsBase64 reports that only data_base64 carries the data to every reader: data
// that is not text, data that is declared as JSON and is not, and types with a +json
// suffix, which some readers take as a JSON value and others as a string.
func needsBase64(mediaType func() (string, error), data []byte) bool {
	if len(data) == 0 {
		return false
	}
	media, err := mediaType()
	switch {
	case err != nil || strings.HasSuffix(media, "+json"):
		return true
	case isJSONMedia(media):
		return !isJSONText(data)
	}
	return !isText(data)
}

// verbatim is a URL that prints as s. Attributes were validated when they came in,
// and leave as they came.
func verbatim(s string) url.URL { return url.URL{Opaque: s} }
