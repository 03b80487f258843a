package sdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Bounds of one call for many. The contract's are 1000 and 16 MiB.
const (
	maxItems     = 1000
	maxItemBytes = 8 << 20
)

// Schedule schedules the key. Conditions are checked before the policy; a condition that
// does not hold is [ErrConflict].
func (c *Client) Schedule(ctx context.Context, key string, r Request, conditions ...Condition) (*Schedule, error) {
	s, err := c.schedule(ctx, key, &r, conditions)
	if err != nil {
		return nil, fmt.Errorf("sdk: scheduling %q: %w", key, err)
	}
	return s, nil
}

func (c *Client) schedule(ctx context.Context, key string, r *Request, conditions []Condition) (*Schedule, error) {
	k, err := keyCall(http.MethodPut, key, conditions)
	if err != nil {
		return nil, err
	}
	if k.body, err = r.body(nil); err != nil {
		return nil, err
	}
	k.want = []int{http.StatusOK, http.StatusCreated}
	k.repeatable = r.repeatable() && len(k.header) == 0
	return c.keyed(ctx, k, key)
}

// BackOff schedules the key after a wait that the source computes from the number of
// attempts before. It is not repeated when its answer is lost, because it would count
// twice.
func (c *Client) BackOff(ctx context.Context, key string, b Backoff, conditions ...Condition) (*Schedule, error) {
	return c.Schedule(ctx, key, Request{Backoff: &b}, conditions...)
}

// Get returns the key, or [ErrNotFound] once nothing waits and nothing is in
// flight under it.
func (c *Client) Get(ctx context.Context, key string) (*Schedule, error) {
	k, err := keyCall(http.MethodGet, key, nil)
	if err == nil {
		k.want, k.repeatable = []int{http.StatusOK}, true
		var s *Schedule
		if s, err = c.keyed(ctx, k, key); err == nil {
			return s, nil
		}
	}
	return nil, fmt.Errorf("sdk: getting %q: %w", key, err)
}

// keyed makes a call that is answered with the key. It checks the key in the answer: a
// proxy may have cleaned the path.
func (c *Client) keyed(ctx context.Context, k *call, key string) (*Schedule, error) {
	var s Schedule
	if err := c.do(ctx, k, &s); err != nil {
		return nil, err
	}
	if s.Key != key {
		return nil, fmt.Errorf("%w: it is about %q: does a proxy change paths?", ErrForeign, s.Key)
	}
	return &s, nil
}

// Cancel cancels the occurrence that waits under the key, and returns nil too when there
// is none. Then no delivery starts. A delivery in flight may finish, and its answer has
// no effect. Cancel may also cancel what another caller schedules at the same time:
// [IfUID], or [IfRevision] with the revision of the delivery, prevent that. A condition
// that does not hold is [ErrConflict].
func (c *Client) Cancel(ctx context.Context, key string, conditions ...Condition) error {
	k, err := keyCall(http.MethodDelete, key, conditions)
	if err == nil {
		k.want, k.repeatable = []int{http.StatusNoContent}, len(k.header) == 0
		err = c.do(ctx, k, nil)
	}
	if err != nil {
		return fmt.Errorf("sdk: cancelling %q: %w", key, err)
	}
	return nil
}

// CancelPrefix cancels all keys that begin with the prefix, and returns their number.
// After a lost answer that is the number of keys that were left.
func (c *Client) CancelPrefix(ctx context.Context, prefix string) (int, error) {
	return c.cancelMany(ctx, url.Values{"prefix": {prefix}})
}

// CancelAll is CancelPrefix of every key of the source.
func (c *Client) CancelAll(ctx context.Context) (int, error) {
	return c.cancelMany(ctx, url.Values{"all": {"true"}})
}

func (c *Client) cancelMany(ctx context.Context, which url.Values) (int, error) {
	k := call{method: http.MethodDelete, path: "/schedules?" + which.Encode(), want: []int{http.StatusOK}, repeatable: true}
	n, err := c.number(ctx, &k, "deleted")
	if err != nil {
		return 0, fmt.Errorf("sdk: cancelling %s: %w", which.Encode(), err)
	}
	return n, nil
}

// number makes a call that is answered with the number of keys that it changed.
func (c *Client) number(ctx context.Context, k *call, name string) (int, error) {
	n := numberAnswer{name: name}
	err := c.do(ctx, k, &n)
	return n.n, err
}

// numberAnswer is an answer with a number under a name.
type numberAnswer struct {
	name  string
	n     int
	given bool
}

// UnmarshalJSON ignores unknown members.
func (a *numberAnswer) UnmarshalJSON(b []byte) error {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(b, &members); err != nil {
		return err
	}
	raw, given := members[a.name]
	if a.given = given; !given {
		return nil
	}
	return json.Unmarshal(raw, &a.n)
}

func (a *numberAnswer) missing() string {
	if a.given {
		return ""
	}
	return a.name
}

// Order is the order of a list.
type Order string

// The orders.
const (
	ByKey Order = "key"
	ByDue Order = "due" // by original due time
)

// ListOptions select what to list; zero is everything, by key.
type ListOptions struct {
	Prefix   string // only keys that begin with it
	Order    Order
	State    State // only keys in it: Waiting, Due, Retrying or InFlight
	PageSize int   // keys in one call, 1 to 1000; 0 is the source's default, 100
	// Continue is where to begin, as [Client.ListPage] has returned it; "" is the first key.
	Continue string
}

// List iterates over the keys, page by page. It ends after the first error. The pages
// are not a snapshot: a key that is scheduled or done meanwhile may be in the list or
// not.
func (c *Client) List(ctx context.Context, o ListOptions) iter.Seq2[*Schedule, error] {
	return pages[*Schedule](ctx, c, "/schedules", o)
}

// ListPage returns a page of the keys, and where the next one begins, "" after the last one. A
// page may have fewer keys than PageSize, or none: a source looks for the keys of a state in
// bounded time, and bounds the bytes of a page.
func (c *Client) ListPage(ctx context.Context, o ListOptions) (items []*Schedule, next string, err error) {
	p, err := onePage[*Schedule](ctx, c, "/schedules", o)
	return p.Items, p.Continue, err
}

// entry is an item of a list, which knows what a source would not leave out.
type entry interface {
	comparable
	missing() string
}

// page is a page of a list.
type page[T entry] struct {
	Items    []T    `json:"items"`
	Continue string `json:"continue"`
}

func (p *page[T]) missing() string {
	if p.Items == nil {
		return "items"
	}
	var null T
	for _, i := range p.Items {
		if i == null {
			return "item"
		}
		if name := i.missing(); name != "" {
			return name
		}
	}
	return ""
}

// onePage reads a page of a list.
func onePage[T entry](ctx context.Context, c *Client, path string, o ListOptions) (p page[T], err error) {
	query := url.Values{}
	for name, value := range map[string]string{"prefix": o.Prefix, "order": string(o.Order), "state": string(o.State), "continue": o.Continue} {
		if value != "" {
			query.Set(name, value)
		}
	}
	if o.PageSize != 0 {
		query.Set("limit", strconv.Itoa(o.PageSize))
	}
	k := call{method: http.MethodGet, path: path + "?" + query.Encode(), want: []int{http.StatusOK}, repeatable: true}
	if err := c.do(ctx, &k, &p); err != nil {
		return page[T]{}, fmt.Errorf("sdk: listing: %w", err)
	}
	return p, nil
}

// pages iterates over the items of a list.
func pages[T entry](ctx context.Context, c *Client, path string, o ListOptions) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for {
			p, err := onePage[T](ctx, c, path, o)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, s := range p.Items {
				if !yield(s, nil) {
					return
				}
			}
			if o.Continue = p.Continue; o.Continue == "" {
				return
			}
		}
	}
}

// Counts returns how much waits at the source.
func (c *Client) Counts(ctx context.Context) (*Counts, error) {
	var a countsAnswer
	if err := c.do(ctx, &call{method: http.MethodGet, want: []int{http.StatusOK}, repeatable: true}, &a); err != nil {
		return nil, fmt.Errorf("sdk: counting: %w", err)
	}
	return &a.Counts, nil
}

// ResyncOptions select what a resync schedules, and over which time; zero is every
// object, over the spec.watch.resync.over of the source.
type ResyncOptions struct {
	// Over is the time over which the objects are spread; new(time.Duration(0)) is at once.
	Over *time.Duration
	// Prefix selects the keys that begin with it, such as Website/team-a/.
	Prefix string
}

// Resync schedules every object that the source watches once, and returns their number.
// The source needs a spec.watch. It is repeated after a lost answer: a key that is
// scheduled twice has one occurrence.
func (c *Client) Resync(ctx context.Context, o ResyncOptions) (scheduled int, err error) {
	body, err := json.Marshal(struct {
		Over   *duration `json:"over,omitempty"`
		Prefix string    `json:"prefix,omitempty"`
	}{(*duration)(o.Over), o.Prefix})
	if err != nil {
		return 0, err
	}
	k := call{method: http.MethodPost, path: "/resync", body: body, want: []int{http.StatusOK}, repeatable: true}
	if scheduled, err = c.number(ctx, &k, "scheduled"); err != nil {
		return 0, fmt.Errorf("sdk: resync: %w", err)
	}
	return scheduled, nil
}

// ScheduleAll schedules many keys, in calls of up to 1000 items. Each item is judged
// alone, as by [Client.Schedule], and has its outcome at the same index. The same key
// twice is applied in order. An error is the error of one call: the outcomes of the calls
// before it are returned too, and the outcomes of the call itself are not known.
func (c *Client) ScheduleAll(ctx context.Context, items ...Item) ([]Outcome, error) {
	outcomes := make([]Outcome, len(items))
	for from := 0; from < len(items); {
		next, err := c.scheduleSome(ctx, items, outcomes, from)
		if err != nil {
			return outcomes[:from], fmt.Errorf("sdk: scheduling %d keys from %q on: %w", next-from, items[from].Key, err)
		}
		from = next
	}
	return outcomes, nil
}

// scheduleSome makes one call with the items from an index on, as many as fit, and
// returns the index after them.
func (c *Client) scheduleSome(ctx context.Context, items []Item, outcomes []Outcome, from int) (next int, err error) {
	k := call{method: http.MethodPost, path: "/schedules", want: []int{http.StatusOK}, repeatable: true}
	k.body = []byte(`{"items":[`)
	var sent []*Outcome // where the answers belong
	for next = from; next < len(items) && len(sent) < maxItems && (next == from || len(k.body) < maxItemBytes); next++ {
		item, o := &items[next], &outcomes[next]
		o.Key = item.Key
		b, err := item.body(&item.Key)
		if err != nil {
			o.Err = err
			continue
		}
		if len(sent) > 0 {
			k.body = append(k.body, ',')
		}
		k.body = append(k.body, b...)
		k.repeatable = k.repeatable && item.repeatable()
		sent = append(sent, o)
	}
	if len(sent) == 0 {
		return next, nil
	}
	k.body = append(k.body, "]}"...)
	var answer struct {
		Items []itemAnswer `json:"items"`
	}
	if err := c.do(ctx, &k, &answer); err != nil {
		return next, err
	}
	if len(answer.Items) != len(sent) {
		return next, fmt.Errorf("%w: %d items were answered with %d", ErrForeign, len(sent), len(answer.Items))
	}
	for i, a := range answer.Items {
		if a.err == nil && (a.schedule == nil || a.schedule.Key != sent[i].Key || a.schedule.missing() != "") {
			return next, fmt.Errorf("%w: item %d is not about %q", ErrForeign, i, sent[i].Key)
		}
		sent[i].Schedule, sent[i].Err = a.schedule, a.err
	}
	return next, nil
}

// itemAnswer is the answer to an item: its schedule, or an error.
type itemAnswer struct {
	schedule *Schedule
	err      error
}

// UnmarshalJSON distinguishes the two by the code.
func (a *itemAnswer) UnmarshalJSON(b []byte) error {
	var p problem
	if err := json.Unmarshal(b, &p); err != nil {
		return err
	}
	if p.Code != "" {
		a.err = &Error{Status: p.Status, Code: Code(p.Code), Field: p.Field, Detail: p.Detail}
		return nil
	}
	return json.Unmarshal(b, &a.schedule)
}

// body is the request in JSON.
func (r *Request) body(key *string) ([]byte, error) {
	if err := r.Event.check(); err != nil {
		return nil, err
	}
	b, err := r.encode(key)
	if err != nil {
		return nil, &Error{Code: ErrInvalid, Detail: err.Error()}
	}
	return b, nil
}

// repeatable reports whether the request has the same effect and the same answer when it
// is made twice.
func (r *Request) repeatable() bool { return r.Backoff == nil && r.Policy != Fail }

// Condition must hold for a change to be made.
type Condition struct{ header, value, uid string }

// IfRevision requires the key to have one of the revisions.
func IfRevision(revisions ...uint64) Condition {
	tags := make([]string, len(revisions))
	for i, r := range revisions {
		tags[i] = `"` + strconv.FormatUint(r, 10) + `"`
	}
	return Condition{header: "If-Match", value: strings.Join(tags, ", ")}
}

// IfPresent requires the key to be scheduled or in flight.
func IfPresent() Condition { return Condition{header: "If-Match", value: "*"} }

// IfAbsent requires the key to be neither scheduled nor in flight. It is for Schedule
// only.
func IfAbsent() Condition { return Condition{header: "If-None-Match", value: "*"} }

// IfUID requires the key, if it is scheduled, to be for the object with that uid. It is
// for Cancel only: a request has a uid of its own.
func IfUID(uid string) Condition { return Condition{uid: uid} }

// keyCall is a call to a key. The source refuses what is wrong with it, except for an
// empty key: a proxy that cleans paths would make its path the path of all keys.
func keyCall(method, key string, conditions []Condition) (*call, error) {
	if key == "" {
		return nil, &Error{Code: ErrInvalid, Field: "key", Detail: "key: is empty"}
	}
	k := &call{method: method, path: "/schedules/" + escape(key), header: http.Header{}}
	for _, c := range conditions {
		switch {
		case c.header == "" && strings.Contains(k.path, "?"), k.header[c.header] != nil:
			return nil, errors.New("there are two conditions of the same kind: give one")
		case c.header == "":
			k.path += "?uid=" + url.QueryEscape(c.uid)
		default:
			k.header[c.header] = []string{c.value}
		}
	}
	return k, nil
}

// escape makes a key one segment of a path, also . and .., which a proxy would remove.
func escape(key string) string {
	if strings.Trim(key, ".") == "" {
		return strings.ReplaceAll(key, ".", "%2E")
	}
	return url.PathEscape(key)
}
