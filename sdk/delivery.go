package sdk

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/sdk/internal/cloudevent"
)

// maxDelivery is larger than any delivery: 256 KiB of data, at most as base64, and its
// attributes.
const maxDelivery = 1 << 20

// Delivery is one attempt to wake a sink.
type Delivery struct {
	Key      string
	Revision uint64    // see [Schedule]; a condition for calls that this delivery leads to
	DueAt    time.Time // the same over all attempts
	Attempt  int       // how many runs in a row failed before: 0 is the first
	Priority Priority

	// Namespace is the RescheduleSource's.
	Namespace string

	// The event. A repeat has the same Source and ID.

	ID, Source, Type, Subject   string
	Time                        time.Time
	DataContentType, DataSchema string
	Data                        []byte
	// Extensions are the other attributes, by name.
	Extensions map[string]string
}

// ReadDelivery reads a request of a RescheduleSource, in the binary or the structured
// mode of CloudEvents. Answer its errors with [Retry]: then nothing is lost. An error
// that is [ErrInvalid] means that the request is not a delivery, and may be answered
// with [Reject] as well.
func ReadDelivery(r *http.Request) (*Delivery, error) {
	e, err := cloudevent.Read(r, maxDelivery)
	switch {
	case errors.Is(err, cloudevent.ErrUnreadable):
		return nil, fmt.Errorf("sdk: reading a delivery: %w: %w", ErrInvalid, err)
	case err != nil:
		return nil, fmt.Errorf("sdk: reading a delivery: %w", err)
	}
	d := &Delivery{Namespace: r.Header.Get("Kn-Namespace"), Data: e.Data, Extensions: map[string]string{}}
	for name, value := range e.Attributes {
		err = errors.Join(err, d.set(name, value))
	}
	if d.Key == "" {
		err = fmt.Errorf("there is no %s: a RescheduleSource did not send it", cloudevent.KeyAttribute)
	}
	if err != nil {
		return nil, fmt.Errorf("sdk: reading a delivery: %w: %w", ErrInvalid, err)
	}
	return d, nil
}

// set takes an attribute.
func (d *Delivery) set(name, value string) (err error) {
	switch name {
	case cloudevent.KeyAttribute:
		d.Key = value
	case cloudevent.RevisionAttribute:
		d.Revision, err = strconv.ParseUint(value, 10, 64)
	case cloudevent.DueAtAttribute:
		d.DueAt, err = time.Parse(time.RFC3339Nano, value)
	case cloudevent.AttemptAttribute:
		d.Attempt, err = strconv.Atoi(value)
	case cloudevent.PriorityAttribute:
		err = d.Priority.UnmarshalText([]byte(value))
	case "specversion":
	case "id":
		d.ID = value
	case "source":
		d.Source = value
	case "type":
		d.Type = value
	case "subject":
		d.Subject = value
	case "time":
		d.Time, err = time.Parse(time.RFC3339Nano, value)
	case "datacontenttype":
		d.DataContentType = value
	case "dataschema":
		d.DataSchema = value
	default:
		d.Extensions[name] = value
	}
	if err != nil {
		return fmt.Errorf("attribute %s: %w", name, err)
	}
	return nil
}

// Done answers that the work is done: the key is not due again, except by its
// maxInterval.
func Done(w http.ResponseWriter) { w.WriteHeader(http.StatusNoContent) }

// Again answers that the work is done and the key is due again in d: at once when d is
// not above zero, and in 100 years at the latest.
func Again(w http.ResponseWriter, d time.Duration) {
	after(w, d)
	w.WriteHeader(http.StatusNoContent)
}

// AgainWith answers that the work is done, and that the key is due again as a request says,
// which can be more than an answer: [Every] gives the key a calendar. The client makes the
// request, and if it fails, the answer is [Retry], with its error. So nothing is lost: the
// delivery comes again.
//
// The default policy is [Earliest]: a change that came in meanwhile stays due. The priority is
// at least the delivery's. A key that was cancelled meanwhile stays cancelled. A calendar
// continues by itself: once the key has it, answer [Done].
func AgainWith(ctx context.Context, w http.ResponseWriter, d *Delivery, c *Client, r Request) {
	r.Policy, r.Priority = cmp.Or(r.Policy, Earliest), max(r.Priority, d.Priority)
	if _, err := c.Schedule(ctx, d.Key, r, IfPresent()); err != nil {
		Retry(w, err)
		return
	}
	Done(w)
}

// Never answers that the work is done, and that maxInterval must not bring the key
// back: its object is gone.
func Never(w http.ResponseWriter) {
	w.Header().Set(cloudevent.AfterHeader, cloudevent.Never)
	w.WriteHeader(http.StatusNoContent)
}

// after sets the header that says when the key is due again, or retried.
func after(w http.ResponseWriter, d time.Duration) {
	text := strings.Replace(min(max(d, 0), cloudevent.MaxWait).String(), "µs", "us", 1) // a header is ASCII
	w.Header().Set(cloudevent.AfterHeader, text)
}

// Retry answers that the work failed: the delivery is repeated after the source's
// back-off. A Retry-After that was set on w before can make it later. The text of why
// goes to the dead letter sink when the retries are used up.
func Retry(w http.ResponseWriter, why error) {
	http.Error(w, why.Error(), http.StatusServiceUnavailable)
}

// RetryIn is [Retry], but the delivery is repeated in d, in the place of the source's
// back-off. It counts as an attempt as well.
func RetryIn(w http.ResponseWriter, why error, d time.Duration) {
	after(w, d)
	Retry(w, why)
}

// Reject answers that a repetition would fail too: the delivery goes to the dead letter
// sink, if there is one, with the text of why. Then the key is due again after its
// maxInterval.
func Reject(w http.ResponseWriter, why error) {
	http.Error(w, why.Error(), http.StatusUnprocessableEntity)
}

// RejectAgain is [Reject], and the key is due again in d, as a new occurrence with
// attempt 0.
func RejectAgain(w http.ResponseWriter, why error, d time.Duration) {
	after(w, d)
	Reject(w, why)
}
