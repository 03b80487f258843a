package page

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/why"
)

// Source is a RescheduleSource that the page shows, with what is known of its object.
type Source struct {
	Namespace, Name string
	why.Source
}

// Backend is how the page reaches the schedule API.
type Backend struct {
	// Base is the address of the API: http://127.0.0.1:8080.
	Base string
	// Transport makes the calls and adds what they need for authentication; nil:
	// http.DefaultTransport.
	Transport http.RoundTripper
	// Sources lists the sources that the caller may see, in any order; required.
	Sources func(context.Context) ([]Source, error)
	// Members asks the adapters of a group; nil, or no group: there is only one adapter. It is called for each view of all sources, at most for viewTime.
	Members func(context.Context) why.Group
	// Metrics reads the metrics of the adapter that serves a source, which alone show a full
	// disk, for example; see [ReadMetrics]. Nil, or nil metrics: that stays unknown. It is
	// called for each view of a source or a key, at most for viewTime.
	Metrics func(ctx context.Context, namespace, name string) *why.Metrics
	// Now is the clock, nil = time.Now.
	Now func() time.Time

	recheck time.Duration // of the right to live events; 0 = recheckTime
}

// The bounds of a call.
const (
	// maxListItems is how many items a list has at most.
	maxListItems = 500
	problemBytes = 64 << 10
)

// problem is an answer that refuses.
type problem struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
	// answered is the status of the schedule API, 0 = it did not answer.
	answered int
}

func (p *problem) Error() string {
	if p.Detail == "" {
		return fmt.Sprintf("the schedule API answered %d %s", p.Status, http.StatusText(p.Status))
	}
	return p.Detail
}

// refuse is an error of the page itself.
func refuse(status int, format string, values ...any) error {
	return &problem{Status: status, Detail: fmt.Sprintf(format, values...)}
}

func isStatus(err error, status int) bool {
	var p *problem
	return errors.As(err, &p) && p.Status == status
}

// row is a key as lists show it, without its event, which may be large.
type row struct {
	Key           string    `json:"key"`
	Revision      uint64    `json:"revision"`
	State         string    `json:"state"`
	DueAt         time.Time `json:"dueAt"`
	ScheduledAt   time.Time `json:"scheduledAt"`
	Attempt       uint32    `json:"attempt"`
	Tries         uint32    `json:"tries"`
	InFlight      bool      `json:"inFlight"`
	UID           string    `json:"uid"`
	Reason        string    `json:"reason"`
	MaxInterval   string    `json:"maxInterval"`
	ExpiresAt     time.Time `json:"expiresAt"`
	NextAttemptAt time.Time `json:"nextAttemptAt"`
	LastFailure   *failure  `json:"lastFailure"`
}

func (r *row) retrying() bool { return !r.NextAttemptAt.IsZero() }

// key is one key.
type key struct {
	row
	Event json.RawMessage `json:"event"`
}

type failure struct {
	At     time.Time `json:"at"`
	Status int       `json:"status"`
	Error  string    `json:"error"`
	Detail string    `json:"detail"`
}

// letterRow is a dead letter as lists show it.
type letterRow struct {
	Key      string    `json:"key"`
	At       time.Time `json:"at"`
	DueAt    time.Time `json:"dueAt"`
	Attempts uint32    `json:"attempts"`
	Status   int       `json:"status"`
	Error    string    `json:"error"`
	Detail   string    `json:"detail"`
}

type letter struct {
	letterRow
	Event json.RawMessage `json:"event"`
}

type counts struct {
	Pending     int64     `json:"pending"`
	Due         int64     `json:"due"`
	Retrying    int64     `json:"retrying"`
	InFlight    int64     `json:"inFlight"`
	DeadLetters int64     `json:"deadLetters"`
	NextDueAt   time.Time `json:"nextDueAt"`
	OldestDueAt time.Time `json:"oldestDueAt"`
}

type outcome struct {
	At       time.Time `json:"at"`
	Result   string    `json:"result"`
	Status   int       `json:"status"`
	Attempt  uint32    `json:"attempt"`
	Lateness string    `json:"lateness"`
	Duration string    `json:"duration"`
	Cause    string    `json:"cause"`
}

type history struct {
	Items []outcome `json:"items"`
	Since time.Time `json:"since"`
}

// bearer is the context's key of the token that the caller's session has.
type bearer struct{}

// segment encodes a key as one segment of a path. Dots alone are encoded too: some
// proxies would resolve them.
func segment(key string) string {
	if key == "." || key == ".." {
		return strings.ReplaceAll(key, ".", "%2E")
	}
	return url.PathEscape(key)
}

// apiCall is a call of the schedule API.
type apiCall struct {
	method   string
	source   *Source
	path     string // below the source
	query    url.Values
	revision string // that the key must have, "" for any
}

func (h *handler) request(ctx context.Context, c apiCall) (*http.Request, error) {
	u := h.Base + "/" + c.source.Namespace + "/" + c.source.Name + c.path
	if len(c.query) > 0 {
		u += "?" + c.query.Encode()
	}
	r, err := http.NewRequestWithContext(ctx, c.method, u, nil)
	if err != nil {
		return nil, fmt.Errorf("page: calling: %w", err)
	}
	if token, _ := ctx.Value(bearer{}).(string); token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	if c.revision != "" {
		r.Header.Set("If-Match", strconv.Quote(c.revision))
	}
	return r, nil
}

// Refused is the error of a transport that may not make a call: no right or no token.
type Refused struct {
	why.Refusal
	Err error
}

func (r *Refused) Error() string { return r.Err.Error() }

// Unwrap is for errors.Is.
func (r *Refused) Unwrap() error { return r.Err }

// do makes a call; its error is a *problem when there was an answer.
func (h *handler) do(r *http.Request) (*http.Response, error) {
	resp, err := h.client.Do(r)
	if refused, ok := errors.AsType[*Refused](err); ok {
		return nil, &problem{Status: cmp.Or(refused.Status, http.StatusBadGateway), Code: refused.Code, Detail: refused.Detail, answered: refused.Status}
	}
	if err != nil {
		return nil, &problem{Status: http.StatusBadGateway, Detail: "The schedule API cannot be reached: " + why.CallError(errors.Unwrap(err))}
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	p := &problem{}
	if body, err := io.ReadAll(io.LimitReader(resp.Body, problemBytes)); err == nil {
		_ = json.Unmarshal(body, p) // else the status says what there is to say
	}
	p.Status, p.answered = resp.StatusCode, resp.StatusCode
	return nil, p
}

// unreadable is the problem of an answer that the schedule API would not give.
func unreadable(resp *http.Response, err error) error {
	return &problem{Status: http.StatusBadGateway, Detail: "The answer of the schedule API cannot be read: " + err.Error(), answered: resp.StatusCode}
}

// call makes a call and reads its answer into out, unless that is nil.
func (h *handler) call(ctx context.Context, c apiCall, out any) error {
	r, err := h.request(ctx, c)
	if err != nil {
		return err
	}
	resp, err := h.do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return unreadable(resp, err)
	}
	return nil
}

// get is call for what has no body and changes nothing.
func (h *handler) get(ctx context.Context, s *Source, path string, out any) error {
	return h.call(ctx, apiCall{method: http.MethodGet, source: s, path: path}, out)
}

// list reads a page of a list item by item, so that only one event is in memory.
func list[T any](ctx context.Context, h *handler, s *Source, path string, query url.Values) (items []T, next string, err error) {
	r, err := h.request(ctx, apiCall{method: http.MethodGet, source: s, path: path, query: query})
	if err != nil {
		return nil, "", err
	}
	resp, err := h.do(r)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	in := json.NewDecoder(resp.Body)
	err = func() error {
		for {
			token, err := in.Token()
			if errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return err
			}
			switch token {
			case "items":
				if _, err := in.Token(); err != nil {
					return err
				}
				for in.More() {
					if len(items) == maxListItems {
						return errors.New("a page has more items than were asked for")
					}
					var item T
					if err := in.Decode(&item); err != nil {
						return err
					}
					items = append(items, item)
				}
			case "continue":
				if err := in.Decode(&next); err != nil {
					return err
				}
			}
		}
	}()
	if err != nil {
		return nil, "", unreadable(resp, err)
	}
	return items, next, nil
}

// maxMetrics bounds what is read of the metrics.
const maxMetrics = 64 << 20

// ReadMetrics reads the metrics of the adapter at the address of its admin listener.
func ReadMetrics(ctx context.Context, client *http.Client, address string) (*why.Metrics, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+"/metrics", http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("page: reading metrics: %w", err)
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics was answered %s", resp.Status)
	}
	return why.ReadMetrics(io.LimitReader(resp.Body, maxMetrics)), nil
}

// source finds the source that a request names.
func (h *handler) source(r *http.Request) (*Source, error) {
	ns, name := r.FormValue("ns"), r.FormValue("name")
	all, err := h.Sources(r.Context())
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Namespace == ns && all[i].Name == name {
			return &all[i], nil
		}
	}
	return nil, refuse(http.StatusNotFound, "There is no source %.64q in namespace %.64q. It may have been deleted.", name, ns)
}

// validKey reads the key of a request.
func validKey(r *http.Request) (string, error) {
	k := r.FormValue("key")
	if k == "" || len(k) > 512 {
		return "", refuse(http.StatusBadRequest, "key: it must have 1 to 512 bytes")
	}
	return k, nil
}
