package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
)

// Read makes requests of an HTTP message in order, fewer than it holds events
// where spec.ingest.when drops some, also none. The caller has refused a body
// that is encoded; nothing of it is kept. A judge that is not nil is asked about
// every event, also one that is dropped. Expressions end with ctx. The error
// is an *schedule.Error; then nothing of the message counts.
func (r *Rules) Read(ctx context.Context, h http.Header, body []byte, now time.Time, judge func(*schedule.Event) error) ([]queue.Item, error) {
	items, _, err := r.read(ctx, h, body, now, judge)
	return items, err
}

// read is Read, and counts the events.
func (r *Rules) read(ctx context.Context, h http.Header, body []byte, now time.Time, judge func(*schedule.Event) error) (_ []queue.Item, count int, _ error) {
	events, err := r.decode(ctx, h, body)
	if err != nil {
		return nil, len(events), err
	}
	one := len(events) == 1 && !cloudevent.IsBatch(h)
	items := make([]queue.Item, 0, len(events))
	left := &allowance{cost: maxRequestCost, time: r.time}
	for i, e := range events {
		var item queue.Item
		var ok bool
		if judge != nil {
			err = judge(e)
		}
		if err == nil {
			item, ok, err = r.item(ctx, h, e, now, left)
		}
		if err != nil && !one {
			err = cloudevent.WithEventIndex(i, err)
		}
		if err != nil {
			return nil, len(events), err
		}
		if ok {
			items = append(items, item)
		}
	}
	return items, len(events), nil
}

// decoding shares half of the processors among the long messages.
var decoding = sync.OnceValue(budget.NewProcessors)

// decode reads the events of a message, a long one in turn with the other sources.
func (r *Rules) decode(ctx context.Context, h http.Header, body []byte) ([]*schedule.Event, error) {
	if len(body) >= budget.LongBytes {
		turn, err := decoding().Take(ctx, r.src.Namespace, r.src.Name)
		if err != nil {
			return nil, busy("too many large bodies wait for a processor")
		}
		defer turn.Release()
	}
	return cloudevent.Read(h, body)
}

// item is false for an event that is accepted and dropped.
func (r *Rules) item(ctx context.Context, h http.Header, e *schedule.Event, now time.Time, left *allowance) (queue.Item, bool, error) {
	if len(e.Data) > schedule.MaxDataBytes {
		return queue.Item{}, false, &schedule.Error{
			Code: schedule.CodeTooLarge, Field: "data",
			Detail: "data: " + sizes(len(e.Data), schedule.MaxDataBytes),
		}
	}
	if err := cloudevent.CheckSize("", e); err != nil {
		return queue.Item{}, false, err
	}
	request := schedule.Request{Event: e, Ingested: true}
	if err := r.steer(&request, now); err != nil {
		return queue.Item{}, false, err
	}
	_, explicit := e.Extensions[cloudevent.KeyAttribute]
	made, wanted, err := r.judge(ctx, left, e, r.key != nil && !explicit)
	if err != nil || !wanted {
		return queue.Item{}, false, err
	}
	key, err := r.keyOf(e, made)
	if err != nil {
		return queue.Item{}, false, err
	}
	request.TraceParent, request.TraceState = cloudevent.TraceOf(h, e)
	delete(e.Extensions, schedule.PriorityAttribute) // each delivery says which it has
	return queue.Item{Key: key, Request: request}, true, nil
}

// steer reads the attributes that say when, and whether, as far as the source
// lets events say so.
func (r *Rules) steer(request *schedule.Request, now time.Time) error {
	delay, at, err := cloudevent.RequestedTime(request.Event, now)
	switch {
	case err != nil:
		return err
	case delay != nil:
		err = r.within(request.Event, cloudevent.AfterAttribute, *delay)
	case !at.IsZero():
		err = r.within(request.Event, cloudevent.AtAttribute, at.Sub(now))
	}
	if err != nil {
		return err
	}
	request.Delay, request.DueAt = delay, at
	if request.Calendar, err = r.calendar(request.Event, now); err != nil {
		return err
	}
	if policy, ok := request.Event.Extensions[cloudevent.PolicyAttribute]; ok {
		if request.Policy, err = schedule.ParsePolicy(cloudevent.PolicyAttribute, cloudevent.Canonical(policy)); err != nil {
			return err
		}
		if !slices.Contains(r.src.Ingest.Policies, request.Policy) {
			return &schedule.Error{
				Code: schedule.CodeDenied, Field: cloudevent.PolicyAttribute,
				Detail: fmt.Sprintf("%s: events may not ask for %s: the spec.ingest.policies of %s are %q", cloudevent.PolicyAttribute, request.Policy, r.src.Path(), r.src.Ingest.Policies),
			}
		}
	}
	if priority, ok := request.Event.Extensions[schedule.PriorityAttribute]; ok {
		if request.Priority, err = schedule.ParsePriority(schedule.PriorityAttribute, cloudevent.Canonical(priority)); err != nil {
			return err
		}
	}
	return nil
}

// calendar is what the event asks for in place of a time. It stays for longer than the event, so
// that only an event which may change the time of a key may bring one.
func (r *Rules) calendar(e *schedule.Event, now time.Time) (*schedule.Calendar, error) {
	c, err := cloudevent.RequestedCalendar(e)
	if c == nil {
		return nil, err
	}
	if policies := r.src.Ingest.Policies; !slices.Contains(policies, schedule.Replace) && !slices.Contains(policies, schedule.Latest) {
		return nil, &schedule.Error{
			Code: schedule.CodeDenied, Field: cloudevent.CronAttribute,
			Detail: fmt.Sprintf("%s: events may not ask for a calendar: the spec.ingest.policies of %s are %q, without replace and latest", cloudevent.CronAttribute, r.src.Path(), policies),
		}
	}
	return c, r.within(e, cloudevent.CronAttribute, c.Next(now).Sub(now))
}

// within holds a delay to what events may ask for.
func (r *Rules) within(e *schedule.Event, attribute string, delay time.Duration) error {
	if most := r.src.Ingest.MaxDelay; delay > most {
		return schedule.Invalid(attribute, "%.64q is more than %s ahead, the spec.ingest.maxDelay of %s", e.Extensions[attribute], most, r.src.Path())
	}
	return nil
}

// keyOf is the key of an event: what it says itself, else what the source's
// expression makes of it, else its subject, else source + "/" + id.
func (r *Rules) keyOf(e *schedule.Event, made string) (string, error) {
	field, key := "id", e.Source+"/"+e.ID
	switch explicit, ok := e.Extensions[cloudevent.KeyAttribute]; {
	case ok:
		field, key = cloudevent.KeyAttribute, cloudevent.Canonical(explicit)
	case r.key != nil:
		field, key = expression.KeyField, made
	case e.Subject != "":
		field, key = "subject", e.Subject
	}
	if err := schedule.ValidateKey(key); err != nil {
		return "", schedule.Invalid(field, "as the %v", err)
	}
	return key, nil
}

// emptyWhenMissing read as "" in CEL: ApiServerSource leaves them out or empty
// for cluster-scoped objects.
var emptyWhenMissing = [...]string{"namespace", "kind", "name", "subject"}

// viewOf is the event as expressions see it.
func viewOf(e *schedule.Event) map[string]any {
	view := make(map[string]any, 12+len(e.Extensions))
	for _, name := range emptyWhenMissing {
		view[name] = ""
	}
	maps.Copy(view, e.Extensions)
	view["specversion"], view["id"], view["source"], view["type"] = "1.0", e.ID, e.Source, e.Type
	for name, value := range map[string]string{
		"subject": e.Subject, "datacontenttype": e.DataContentType, "dataschema": e.DataSchema,
	} {
		if value != "" {
			view[name] = value
		}
	}
	if !e.Time.IsZero() {
		view["time"] = e.Time.Format(time.RFC3339Nano)
	}
	if data, ok := jsonData(e); ok {
		view["data"] = data
	}
	return view
}

func jsonData(e *schedule.Event) (any, bool) {
	if len(e.Data) == 0 || !e.IsJSON() {
		return nil, false
	}
	d := json.NewDecoder(bytes.NewReader(e.Data))
	d.UseNumber()
	var v any
	if d.Decode(&v) != nil {
		return nil, false
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, false
	}
	return v, true
}

func sizes(got, limit int) string {
	return fmt.Sprintf("has %d bytes, more than %d", got, limit)
}
