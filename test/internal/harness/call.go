package harness

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// Client calls. It follows nothing and keeps enough connections for tests in
// parallel.
var Client = &http.Client{
	Transport:     &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	Timeout:       Patience,
}

// Reply is an answer of the schedule API, read.
type Reply struct {
	Status int
	Header http.Header
	Body   []byte
}

// Schedule is a key as the API shows it, with the further fields of a bulk answer
// and of a problem.
type Schedule struct {
	Key           string    `json:"key"`
	Revision      uint64    `json:"revision"`
	Result        string    `json:"result"`
	State         string    `json:"state"`
	DueAt         time.Time `json:"dueAt"`
	PreviousDueAt time.Time `json:"previousDueAt"`
	ScheduledAt   time.Time `json:"scheduledAt"`
	Attempt       *int      `json:"attempt"`
	InFlight      *bool     `json:"inFlight"`
	UID           string    `json:"uid"`
	Reason        string    `json:"reason"`
	Waits
	ExpiresAt time.Time      `json:"expiresAt"`
	Event     map[string]any `json:"event"`

	Status   int        `json:"status"`
	Code     string     `json:"code"`
	Detail   string     `json:"detail"`
	Items    []Schedule `json:"items"`
	Continue *string    `json:"continue"`
	Deleted  *int       `json:"deleted"`
}

// Waits are how long a key may wait, and waits.
type Waits struct {
	MaxInterval  string    `json:"maxInterval"`
	Slack        string    `json:"slack"`
	Cron         string    `json:"cron"`
	TimeZone     string    `json:"timeZone"`
	CompanyUntil time.Time `json:"companyUntil"`
}

// Counts are a source's.
type Counts struct {
	Pending, Due, InFlight int
	NextDueAt, OldestDueAt *time.Time
}

// Do makes a call. headers are names and values in turn; the body is sent as
// JSON where they do not say otherwise.
func Do(ctx context.Context, method, target, body string, headers ...string) (*Reply, error) {
	_ = Binary() // a test that only calls the adapter of TestMain depends on it too
	req, err := http.NewRequestWithContext(ctx, method, target, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i+1] == "" {
			req.Header.Del(headers[i])
			continue
		}
		req.Header.Set(headers[i], headers[i+1])
	}
	resp, err := Client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	r := &Reply{Status: resp.StatusCode, Header: resp.Header}
	r.Body, err = io.ReadAll(resp.Body)
	return r, err
}

// Into reads the answer's JSON.
func (r *Reply) Into(t testing.TB, v any) {
	t.Helper()
	if err := json.Unmarshal(r.Body, v); err != nil {
		t.Fatalf("the answer %d %s: %v", r.Status, r.Body, err)
	}
}

// KeyPath is the path of a key below a source's address.
func KeyPath(key string) string {
	if strings.Trim(key, ".") == "" { // PathEscape leaves . and ..
		return "/schedules/" + strings.ReplaceAll(key, ".", "%2E")
	}
	return "/schedules/" + url.PathEscape(key)
}
