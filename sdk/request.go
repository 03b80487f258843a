package sdk

import (
	"encoding/json"
	"time"
)

// Policy decides about the time when a key already has a waiting occurrence.
type Policy string

// The policies.
const (
	Replace  Policy = "replace"  // the new time, and the request is the whole new occurrence
	Earliest Policy = "earliest" // the sooner
	Latest   Policy = "latest"   // the later
	Keep     Policy = "keep"     // no change at all
	Fail     Policy = "fail"     // ErrExists
)

// Request says when a key becomes due, and with which event. All fields are optional.
// At most one of Delay, DueAt, Backoff and Cron is given; without any the source's schedule
// or delay counts. [After], [At] and [Every] make the usual requests.
type Request struct {
	// Delay is how long from now; 0 is at once. See [Duration].
	Delay *time.Duration `json:"delay,omitempty"`
	// DueAt is when; an instant in the past is now.
	DueAt time.Time `json:"dueAt,omitzero"`
	// Backoff lets the source compute the wait.
	Backoff *Backoff `json:"backoff,omitempty"`
	// Cron makes the key due at each instant of a calendar, in TimeZone, the IANA name of a
	// zone; "" is UTC. See [Every].
	Cron     string `json:"cron,omitempty"`
	TimeZone string `json:"timeZone,omitempty"`

	Policy Policy `json:"policy,omitempty"` // default: the source's conflictPolicy
	// Jitter, from 0 to 1, adds up to that share of the delay.
	Jitter float64 `json:"jitter,omitempty"`
	// Event is delivered; nil is the event that the key has.
	Event *Event `json:"event,omitempty"`
	// MaxInterval is the time after which the key is due again when a run succeeded and
	// asked for nothing; 0 is never, nil is the source's: new(time.Hour).
	MaxInterval *time.Duration `json:"maxInterval,omitempty"`
	// Slack is for how long the key, once it is due, may wait to be delivered together with
	// others; 0 is not at all, nil is the source's: new(10*time.Minute).
	Slack *time.Duration `json:"slack,omitempty"`
	// Priority lifts a key that waits, and never lowers it.
	Priority Priority `json:"priority,omitzero"`
	// ExpiresAt is the instant from which it is not delivered any more, retries included.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// UID is the object's. Another UID than the stored one replaces the occurrence under
	// every policy, and the attempt counter begins again.
	UID    string `json:"uid,omitempty"`
	Reason string `json:"reason,omitempty"` // for people
}

// After asks for a key in d, or at once when d is not above zero.
func After(d time.Duration) Request { return Request{Delay: new(max(d, 0))} }

// At asks for a key at an instant, or at once when it is past.
func At(t time.Time) Request { return Request{DueAt: t} }

// Every asks for a key at each instant of a calendar: five fields of cron(5) in a time zone,
// such as "0 3 * * *" in "Europe/Berlin", or @hourly and the like. However an occurrence ends,
// the key is due again at the next instant. The source checks the two. The calendar ends with
// a request without Cron whose policy is [Replace], [Client.Cancel], [Never] and ExpiresAt.
func Every(cron, timeZone string) Request { return Request{Cron: cron, TimeZone: timeZone} }

// Backoff asks for a wait that grows with the key's attempt counter, which grows by one
// with every such request: min(Base·Factor^(attempt-1), Cap). The source counts, so that
// an operator at zero need not.
type Backoff struct {
	Base   time.Duration // 0 is the default, 1s
	Factor float64       // at least 1; 0 is the default, 2
	Cap    time.Duration // 0 is the default, 1000s
	// MaxAttempts is the number of attempts after which the next request is
	// [ErrExhausted], unless there is a MaxInterval, which then sets the time; 0 is no
	// limit.
	MaxAttempts int
}

// Item is a key and its request, in a call for many.
type Item struct {
	Key string
	Request
}

// MarshalJSON writes the request as the schedule API has it.
func (r Request) MarshalJSON() ([]byte, error) { return r.encode(nil) }

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Request) UnmarshalJSON(b []byte) error {
	var w wireRequest
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*r = w.request()
	return nil
}

// MarshalJSON writes the item as the schedule API has it.
func (i Item) MarshalJSON() ([]byte, error) { return i.encode(&i.Key) }

// UnmarshalJSON reads what MarshalJSON writes.
func (i *Item) UnmarshalJSON(b []byte) error {
	w := wireRequest{Key: &i.Key}
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	i.Request = w.request()
	return nil
}

type plainRequest Request // without methods

// wireRequest is a request in JSON. Its own fields hide the fields of the same name in
// plainRequest.
type wireRequest struct {
	Key *string `json:"key,omitempty"` // of an item
	plainRequest
	Delay       *duration `json:"delay,omitempty"`
	MaxInterval *duration `json:"maxInterval,omitempty"`
	Slack       *duration `json:"slack,omitempty"`
}

func (w *wireRequest) request() Request {
	r := Request(w.plainRequest)
	r.Delay, r.MaxInterval, r.Slack = (*time.Duration)(w.Delay), (*time.Duration)(w.MaxInterval), (*time.Duration)(w.Slack)
	return r
}

// encode writes the request, with its key if it is an item. The event is added at the
// end: json.Marshal would remove the blanks in its data.
func (r *Request) encode(key *string) ([]byte, error) {
	w := wireRequest{
		Key: key, plainRequest: plainRequest(*r),
		Delay: (*duration)(r.Delay), MaxInterval: (*duration)(r.MaxInterval), Slack: (*duration)(r.Slack),
	}
	w.Event = nil
	b, err := json.Marshal(w)
	if err != nil || r.Event == nil {
		return b, err
	}
	event, err := r.Event.MarshalJSON()
	if err != nil {
		return nil, err
	}
	return withMember(b, "event", event), nil
}

// withMember adds a member, whose name needs no escaping, to an object.
func withMember(object []byte, name string, value []byte) []byte {
	object = object[:len(object)-1]
	if len(object) > 1 {
		object = append(object, ',')
	}
	object = append(append(append(object, '"'), name...), '"', ':')
	return append(append(object, value...), '}')
}

type wireBackoff struct {
	Base        duration `json:"base,omitempty"`
	Factor      float64  `json:"factor,omitempty"`
	Cap         duration `json:"cap,omitempty"`
	MaxAttempts int      `json:"maxAttempts,omitempty"`
}

// MarshalJSON writes the back-off as the schedule API has it.
func (b Backoff) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireBackoff{duration(b.Base), b.Factor, duration(b.Cap), b.MaxAttempts})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (b *Backoff) UnmarshalJSON(data []byte) error {
	var w wireBackoff
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	*b = Backoff{time.Duration(w.Base), w.Factor, time.Duration(w.Cap), w.MaxAttempts}
	return nil
}

// duration is a time.Duration that is written as 5m30s.
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(b []byte) error {
	v, err := time.ParseDuration(string(b))
	*d = duration(v)
	return err
}
