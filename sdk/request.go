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

// Request says when a key is to be due, and with what. All of it is optional,
// and at most one of Delay, DueAt and Backoff is given; without any the source's
// delay counts. [After] and [At] make the usual ones.
type Request struct {
	// Delay is how long from now; 0 is at once. See [Duration].
	Delay *time.Duration `json:"delay,omitempty"`
	// DueAt is when; an instant in the past is now.
	DueAt time.Time `json:"dueAt,omitzero"`
	// Backoff lets the source compute the wait.
	Backoff *Backoff `json:"backoff,omitempty"`

	Policy Policy `json:"policy,omitempty"` // default: the source's conflictPolicy
	// Jitter, from 0 to 1, adds up to that share of the delay.
	Jitter float64 `json:"jitter,omitempty"`
	// Event is what to deliver; nil is the one that the key has.
	Event *Event `json:"event,omitempty"`
	// MaxInterval is after how long the key is due again when a run succeeded and
	// asked for nothing; 0 is never, nil the source's: new(time.Hour).
	MaxInterval *time.Duration `json:"maxInterval,omitempty"`
	// ExpiresAt is from when on it is not delivered any more, retries included.
	ExpiresAt time.Time `json:"expiresAt,omitzero"`
	// UID is that of the object. Another one than the stored one replaces whatever
	// the policy, and the attempt counter begins anew.
	UID    string `json:"uid,omitempty"`
	Reason string `json:"reason,omitempty"` // for people
}

// After asks for a key in d, or at once when d is not above zero.
func After(d time.Duration) Request { return Request{Delay: new(max(d, 0))} }

// At asks for a key at an instant, or at once when it is past.
func At(t time.Time) Request { return Request{DueAt: t} }

// Backoff asks for a wait that grows with the key's attempt counter, by one
// with every such request: min(Base·Factor^(attempt-1), Cap). The source
// counts, so that an operator that was asleep need not.
type Backoff struct {
	Base   time.Duration // 0 is the default, 1s
	Factor float64       // at least 1; 0 is the default, 2
	Cap    time.Duration // 0 is the default, 1000s
	// MaxAttempts is after how many of them the next one is [ErrExhausted],
	// unless there is a MaxInterval, which then sets the time; 0 is no limit.
	MaxAttempts int
}

// Item is a key and what is asked for it, in a call for many.
type Item struct {
	Key string
	Request
}

// MarshalJSON writes the request as the wire has it.
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

// MarshalJSON writes the item as the wire has it.
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

// wireRequest is a request in JSON. Its own fields take the place of those of
// the same name further down.
type wireRequest struct {
	Key *string `json:"key,omitempty"` // of an item
	plainRequest
	Delay       *duration `json:"delay,omitempty"`
	MaxInterval *duration `json:"maxInterval,omitempty"`
}

func (w *wireRequest) request() Request {
	r := Request(w.plainRequest)
	r.Delay, r.MaxInterval = (*time.Duration)(w.Delay), (*time.Duration)(w.MaxInterval)
	return r
}

// encode writes the request, with its key where it is an item. The event comes
// in at the end: json.Marshal would take the blanks out of its data.
func (r *Request) encode(key *string) ([]byte, error) {
	w := wireRequest{Key: key, plainRequest: plainRequest(*r), Delay: (*duration)(r.Delay), MaxInterval: (*duration)(r.MaxInterval)}
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

// MarshalJSON writes the back-off as the wire has it.
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
