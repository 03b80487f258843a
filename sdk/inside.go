package sdk

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Run makes the key due now, and keeps its event, attempt counter, uid, reason and
// MaxInterval. A key in flight comes up once more afterwards. A key that is absent is
// [ErrNotFound]. Of the conditions it takes [IfRevision] and [IfPresent].
func (c *Client) Run(ctx context.Context, key string, conditions ...Condition) (*Schedule, error) {
	k, err := keyCall(http.MethodPost, key, conditions)
	var s *Schedule
	if err == nil {
		k.path += "/run"
		k.want = []int{http.StatusOK}
		s, err = c.keyed(ctx, k, key)
	}
	if err != nil {
		return nil, fmt.Errorf("sdk: running %q: %w", key, err)
	}
	return s, nil
}

// History is the last outcomes of a key that the source still knows, newest first. None
// after Since is missing.
type History struct {
	Items []PastAttempt `json:"items"`
	Since time.Time     `json:"since"`
}

func (h *History) missing() string {
	switch {
	case h.Items == nil:
		return "items"
	case h.Since.IsZero():
		return "since"
	}
	return ""
}

// PastAttempt is the end of an attempt to deliver a key.
type PastAttempt struct {
	At time.Time `json:"at"`
	// Result is delivered, retrying, dead_lettered, kept, dropped, expired, superseded or
	// aborted. A source may have more.
	Result   string        `json:"result"`
	Status   int           `json:"status"` // of the sink's answer; 0 = there was none
	Attempt  int           `json:"attempt"`
	Lateness time.Duration `json:"lateness"`
	Duration time.Duration `json:"duration"`
	Cause    string        `json:"cause,omitempty"` // the object whose change woke the key
}

type plainAttempt PastAttempt // without methods

type wireAttempt struct {
	plainAttempt
	Lateness duration `json:"lateness"`
	Duration duration `json:"duration"`
}

// MarshalJSON writes the attempt as the schedule API has it.
func (a PastAttempt) MarshalJSON() ([]byte, error) {
	return json.Marshal(wireAttempt{plainAttempt(a), duration(a.Lateness), duration(a.Duration)})
}

// UnmarshalJSON reads the answer of a source. It ignores unknown members.
func (a *PastAttempt) UnmarshalJSON(b []byte) error {
	var w wireAttempt
	if err := json.Unmarshal(b, &w); err != nil {
		return err
	}
	*a = PastAttempt(w.plainAttempt)
	a.Lateness, a.Duration = time.Duration(w.Lateness), time.Duration(w.Duration)
	return nil
}

// History returns the last outcomes of the key, also when it is absent now.
func (c *Client) History(ctx context.Context, key string) (*History, error) {
	k, err := keyCall(http.MethodGet, key, nil)
	var h History
	if err == nil {
		k.path += "/history"
		k.want, k.repeatable = []int{http.StatusOK}, true
		err = c.do(ctx, k, &h)
	}
	if err != nil {
		return nil, fmt.Errorf("sdk: history of %q: %w", key, err)
	}
	return &h, nil
}

// DeadLetter is an event that was given up, and that the source keeps. Status, Error and
// Detail are of the last attempt.
type DeadLetter struct {
	Key      string    `json:"key"`
	At       time.Time `json:"at"` // when it was given up
	DueAt    time.Time `json:"dueAt"`
	Attempts int       `json:"attempts"`
	Status   int       `json:"status"` // of the sink's answer; 0 = there was none
	Error    string    `json:"error,omitempty"`
	Detail   string    `json:"detail,omitempty"`
	Event    *Event    `json:"event,omitempty"`
}

func (l *DeadLetter) missing() string {
	switch {
	case l.Key == "":
		return "key"
	case l.At.IsZero():
		return "at"
	}
	return ""
}

// DeadLetters iterates over the dead letters by key, page by page, as [Client.List] does
// over keys. It has no order and no state to select.
func (c *Client) DeadLetters(ctx context.Context, o ListOptions) iter.Seq2[*DeadLetter, error] {
	o.Order, o.State = "", ""
	return pages[*DeadLetter](ctx, c, "/deadletters", o)
}

// DeadLettersPage is [Client.ListPage] of the dead letters.
func (c *Client) DeadLettersPage(ctx context.Context, o ListOptions) (items []*DeadLetter, next string, err error) {
	o.Order, o.State = "", ""
	p, err := onePage[*DeadLetter](ctx, c, "/deadletters", o)
	return p.Items, p.Continue, err
}

// DeadLetter returns the dead letter of a key. A key without one is [ErrNotFound].
func (c *Client) DeadLetter(ctx context.Context, key string) (*DeadLetter, error) {
	k, err := letterCall(http.MethodGet, key)
	var l DeadLetter
	if err == nil {
		k.want, k.repeatable = []int{http.StatusOK}, true
		if err = c.do(ctx, k, &l); err == nil && l.Key != key {
			err = fmt.Errorf("%w: it is about %q", ErrForeign, l.Key)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("sdk: dead letter of %q: %w", key, err)
	}
	return &l, nil
}

// Discard removes the dead letter of a key, and returns nil too when there is none.
func (c *Client) Discard(ctx context.Context, key string) error {
	k, err := letterCall(http.MethodDelete, key)
	if err == nil {
		k.want, k.repeatable = []int{http.StatusNoContent}, true
		err = c.do(ctx, k, nil)
	}
	if err != nil {
		return fmt.Errorf("sdk: discarding the dead letter of %q: %w", key, err)
	}
	return nil
}

// DiscardPrefix removes all dead letters whose keys begin with the prefix, and returns
// their number.
func (c *Client) DiscardPrefix(ctx context.Context, prefix string) (int, error) {
	return c.letters(ctx, http.MethodDelete, "", url.Values{"prefix": {prefix}})
}

// DiscardAll is DiscardPrefix of every dead letter.
func (c *Client) DiscardAll(ctx context.Context) (int, error) {
	return c.letters(ctx, http.MethodDelete, "", url.Values{"all": {"true"}})
}

// RedriveOptions say which dead letters are redriven; zero: the letters of keys that have nothing
// newer.
type RedriveOptions struct {
	// Replace lets a dead letter take the place of something newer that waits or is in
	// flight, whose event is lost.
	Replace bool
}

func (o RedriveOptions) add(to url.Values) url.Values {
	if o.Replace {
		to.Set("replace", "true")
	}
	return to
}

// Redrive makes a new occurrence of the dead letter of a key, due now, with a new id and
// attempt 0, and removes the dead letter. A key without one is [ErrNotFound], a key with
// something newer [ErrExists].
func (c *Client) Redrive(ctx context.Context, key string, o RedriveOptions) error {
	k, err := letterCall(http.MethodPost, key)
	if err == nil {
		k.path += "/redrive"
		if query := o.add(url.Values{}).Encode(); query != "" {
			k.path += "?" + query
		}
		k.want = []int{http.StatusOK}
		_, err = c.number(ctx, k, "redriven")
	}
	if err != nil {
		return fmt.Errorf("sdk: redriving the dead letter of %q: %w", key, err)
	}
	return nil
}

// RedrivePrefix is Redrive of all dead letters whose keys begin with the prefix, and
// returns their number. It skips letters of keys with something newer. They are redriven one by
// one: after an error some are.
func (c *Client) RedrivePrefix(ctx context.Context, prefix string, o RedriveOptions) (int, error) {
	return c.letters(ctx, http.MethodPost, "/redrive", o.add(url.Values{"prefix": {prefix}}))
}

// RedriveAll is RedrivePrefix of every dead letter.
func (c *Client) RedriveAll(ctx context.Context, o RedriveOptions) (int, error) {
	return c.letters(ctx, http.MethodPost, "/redrive", o.add(url.Values{"all": {"true"}}))
}

func (c *Client) letters(ctx context.Context, method, path string, which url.Values) (int, error) {
	name := "redriven"
	if method == http.MethodDelete {
		name = "deleted"
	}
	k := call{method: method, path: "/deadletters" + path + "?" + which.Encode(), want: []int{http.StatusOK}, repeatable: method == http.MethodDelete}
	n, err := c.number(ctx, &k, name)
	if err != nil {
		return 0, fmt.Errorf("sdk: dead letters of %s: %w", which.Encode(), err)
	}
	return n, nil
}

// letterCall is a call to the dead letter of a key.
func letterCall(method, key string) (*call, error) {
	k, err := keyCall(method, key, nil)
	if err == nil {
		k.path = "/deadletters/" + escape(key)
	}
	return k, err
}
