package sdk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// answer is one answer of a fake source, or what happens instead of one.
type answer struct {
	status int
	header http.Header
	body   string
	err    error         // there is no answer
	cut    bool          // the body breaks off
	takes  time.Duration // or until the context ends
}

const waiting = `{"key":"k","revision":1,"result":"created","state":"waiting","dueAt":"2090-01-02T03:04:05Z","scheduledAt":"2090-01-02T03:04:05Z","attempt":0,"inFlight":false}`

var (
	created           = answer{status: 201, body: waiting}
	reset             = answer{err: errors.New("connection reset by peer")}
	refusedConnection = answer{err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
	gateway           = answer{status: 502, body: "<html>Bad Gateway</html>"}
	busy              = refused(503, sdk.ErrUnavailable, "Retry-After", "2")
	full              = refused(429, sdk.ErrFull, "Retry-After", "1")
	unproven          = refused(401, sdk.ErrUnauthorized)
)

func refused(status int, code sdk.Code, header ...string) answer {
	a := answer{status: status, header: http.Header{"Content-Type": {"application/problem+json"}}}
	a.body = fmt.Sprintf(`{"type":"about:blank","title":"t","status":%d,"detail":"field: is wrong","code":%q,"field":"field"}`, status, code)
	for i := 0; i < len(header); i += 2 {
		a.header.Set(header[i], header[i+1])
	}
	return a
}

// fake is a transport that gives the answers in turn, the last one again and again.
type fake struct {
	answers  []answer
	requests []*http.Request
	bodies   []string
}

func (f *fake) RoundTrip(r *http.Request) (*http.Response, error) {
	a := f.answers[min(len(f.requests), len(f.answers)-1)]
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	f.requests, f.bodies = append(f.requests, r), append(f.bodies, string(body))
	select {
	case <-time.After(a.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	if a.err != nil {
		return nil, a.err
	}
	h := a.header.Clone()
	if h == nil {
		h = http.Header{}
	}
	var b io.Reader = strings.NewReader(a.body)
	if a.cut {
		b = io.MultiReader(bytes.NewReader([]byte(a.body[:10])), iotest.ErrReader(io.ErrUnexpectedEOF))
	}
	return &http.Response{StatusCode: a.status, Header: h, Body: io.NopCloser(b), Request: r}, nil
}

func (f *fake) client(t *testing.T, opts ...sdk.Option) *sdk.Client {
	t.Helper()
	c, err := sdk.New("http://source/ops/web/", append([]sdk.Option{sdk.WithHTTPClient(&http.Client{Transport: f})}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The calls of the table below.
var (
	put = func(r sdk.Request, conditions ...sdk.Condition) func(context.Context, *sdk.Client) error {
		return func(ctx context.Context, c *sdk.Client) error {
			return one(c.Schedule(ctx, "k", r, conditions...))
		}
	}
	backOff = func(ctx context.Context, c *sdk.Client) error {
		return one(c.BackOff(ctx, "k", sdk.Backoff{}))
	}
	cancel = func(conditions ...sdk.Condition) func(context.Context, *sdk.Client) error {
		return func(ctx context.Context, c *sdk.Client) error { return c.Cancel(ctx, "k", conditions...) }
	}
	get = func(ctx context.Context, c *sdk.Client) error {
		return one(c.Get(ctx, "k"))
	}
	many = func(items ...sdk.Item) func(context.Context, *sdk.Client) error {
		return func(ctx context.Context, c *sdk.Client) error {
			return one(c.ScheduleAll(ctx, items...))
		}
	}
	resync = func(ctx context.Context, c *sdk.Client) error {
		n, err := c.Resync(ctx, sdk.ResyncOptions{Over: new(time.Minute), Prefix: "Website/"})
		if err == nil && n != 7 {
			err = fmt.Errorf("%d were scheduled", n)
		}
		return err
	}
	list = func(ctx context.Context, c *sdk.Client) error {
		for _, err := range c.List(ctx, sdk.ListOptions{}) {
			if err != nil {
				return err
			}
		}
		return nil
	}
)

// A call is repeated where a second time does no harm.
func TestCall_IsRepeatedWhereSafe(t *testing.T) {
	t.Parallel()
	gone := answer{status: 204}
	bulk := answer{status: 200, body: `{"items":[` + waiting + `]}`}
	for name, c := range map[string]struct {
		call    func(context.Context, *sdk.Client) error
		answers []answer
		tries   int
		want    error
		// How long it takes.
		least, most time.Duration
	}{
		"a first try":                          {put(sdk.After(0)), []answer{created}, 1, nil, 0, 0},
		"a lost answer to a PUT":               {put(sdk.After(0)), []answer{reset, created}, 2, nil, 50 * time.Millisecond, 100*time.Millisecond - 1},
		"an answer that breaks off":            {put(sdk.After(0)), []answer{{status: 201, body: waiting, cut: true}, created}, 2, nil, 50 * time.Millisecond, 100*time.Millisecond - 1},
		"a proxy without a source":             {put(sdk.After(0)), []answer{gateway, refusedConnection, busy, created}, 4, nil, 2 * time.Second, 3 * time.Second},
		"each wait is longer":                  {put(sdk.After(0)), []answer{reset, reset, reset, reset, created}, 5, nil, 750 * time.Millisecond, 1500 * time.Millisecond},
		"Retry-After is honoured":              {put(sdk.After(0)), []answer{busy, created}, 2, nil, 2 * time.Second, 2300 * time.Millisecond},
		"a date of Retry-After too":            {get, []answer{refused(503, sdk.ErrUnavailable, "Retry-After", "Sat, 01 Jan 2000 00:00:03 GMT"), {status: 200, body: waiting}}, 2, nil, 3 * time.Second, 3400 * time.Millisecond},
		"one longer than the budget is not":    {put(sdk.After(0)), []answer{refused(503, sdk.ErrUnavailable, "Retry-After", "11")}, 1, sdk.ErrUnavailable, 0, 0},
		"the budget ends it":                   {get, []answer{refusedConnection}, 7, sdk.ErrUnavailable, 3 * time.Second, 10 * time.Second},
		"a source that stays full":             {put(sdk.After(0)), []answer{full}, 7, sdk.ErrFull, 6 * time.Second, 10 * time.Second},
		"a GET":                                {get, []answer{reset, {status: 200, body: waiting}}, 2, nil, 0, time.Second},
		"a list":                               {list, []answer{reset, {status: 200, body: `{"items":[` + waiting + `],"continue":"x"}`}, gateway, {status: 200, body: `{"items":[],"continue":""}`}}, 4, nil, 0, time.Second},
		"a resync":                             {resync, []answer{reset, busy, {status: 200, body: `{"scheduled":7}`}}, 3, nil, 2 * time.Second, 4 * time.Second},
		"a DELETE":                             {cancel(), []answer{reset, busy, gone}, 3, nil, 0, 3 * time.Second},
		"a DELETE under a uid":                 {cancel(sdk.IfUID("u")), []answer{reset, gone}, 2, nil, 0, time.Second},
		"a DELETE under a revision":            {cancel(sdk.IfRevision(1)), []answer{reset, gone}, 1, sdk.ErrUnavailable, 0, 0},
		"a PUT under a condition":              {put(sdk.After(0), sdk.IfAbsent()), []answer{reset, created}, 1, sdk.ErrUnavailable, 0, 0},
		"a PUT under a condition, not begun":   {put(sdk.After(0), sdk.IfAbsent()), []answer{refusedConnection, created}, 2, nil, 0, time.Second},
		"the policy fail":                      {put(sdk.Request{Policy: sdk.Fail}), []answer{busy, created}, 1, sdk.ErrUnavailable, 0, 0},
		"a back-off counts once":               {backOff, []answer{reset, created}, 1, sdk.ErrUnavailable, 0, 0},
		"a back-off at a proxy":                {backOff, []answer{gateway, created}, 1, sdk.ErrUnavailable, 0, 0},
		"a back-off that was not begun":        {backOff, []answer{refusedConnection, full, created}, 3, nil, time.Second, 2 * time.Second},
		"many":                                 {many(sdk.Item{Key: "k"}), []answer{reset, bulk}, 2, nil, 0, time.Second},
		"many with a back-off among them":      {many(sdk.Item{Key: "k", Request: sdk.Request{Backoff: &sdk.Backoff{}}}), []answer{reset, bulk}, 1, sdk.ErrUnavailable, 0, 0},
		"a refusal is final":                   {put(sdk.After(0)), []answer{refused(400, sdk.ErrInvalid), created}, 1, sdk.ErrInvalid, 0, 0},
		"so is a full disk":                    {put(sdk.After(0)), []answer{refused(507, sdk.ErrStorageFull, "Retry-After", "1"), created}, 1, sdk.ErrStorageFull, 0, 0},
		"a refusal after a lost answer":        {put(sdk.After(0)), []answer{reset, refused(409, sdk.ErrExists)}, 2, sdk.ErrExists, 0, time.Second},
		"it names the lost answer":             {put(sdk.After(0)), []answer{reset, refused(409, sdk.ErrExists)}, 2, sdk.ErrUnavailable, 0, time.Second},
		"a token that does not count is final": {get, []answer{unproven}, 1, sdk.ErrUnauthorized, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &fake{answers: c.answers}
				start := time.Now()
				err := c.call(t.Context(), f.client(t))
				took := time.Since(start)
				// Waits are random by half, so that two more fit in a budget or not.
				tries := len(f.requests) == c.tries || c.most == 10*time.Second && len(f.requests) > c.tries && len(f.requests) <= c.tries+2
				if !errors.Is(err, c.want) || !tries || took < c.least || took > c.most {
					t.Errorf("%d tries in %s: %v; want %d in %s to %s: %v", len(f.requests), took, err, c.tries, c.least, c.most, c.want)
				}
				for i, r := range f.requests[1:] {
					if r.Method != f.requests[0].Method || f.bodies[i+1] != f.bodies[0] && name != "a list" {
						t.Errorf("try %d is %s %s, the first %s %s", i+2, r.Method, f.bodies[i+1], f.requests[0].Method, f.bodies[0])
					}
				}
			})
		})
	}
}

// The context ends a call, and the wait before the next try.
func TestCall_EndsWithTheContext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers []answer
		ends    time.Duration // by itself
		cancel  time.Duration
		want    []error
		took    time.Duration
	}{
		"before a wait that is longer":    {[]answer{busy}, time.Second, 0, []error{sdk.ErrUnavailable}, 0},
		"in a wait":                       {[]answer{busy}, 0, time.Second, []error{sdk.ErrUnavailable, context.Canceled}, time.Second},
		"in a try":                        {[]answer{{takes: time.Minute}}, time.Second, 0, []error{context.DeadlineExceeded}, time.Second},
		"in a later try":                  {[]answer{reset, {takes: time.Minute}}, time.Second, 0, []error{context.DeadlineExceeded, sdk.ErrUnavailable}, time.Second},
		"a try that was longer than that": {[]answer{{takes: 11 * time.Second, err: errors.New("timeout")}}, 0, 0, []error{sdk.ErrUnavailable}, 11 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.ends > 0 {
					ctx, cancel = context.WithTimeout(ctx, c.ends)
					defer cancel()
				}
				if c.cancel > 0 {
					time.AfterFunc(c.cancel, cancel)
				}
				start := time.Now()
				err := put(sdk.After(0))(ctx, (&fake{answers: c.answers}).client(t))
				for _, want := range c.want {
					if !errors.Is(err, want) {
						t.Errorf("%v, want %v", err, want)
					}
				}
				if errors.Is(err, sdk.ErrUnavailable) && !slices.Contains(c.want, error(sdk.ErrUnavailable)) {
					t.Errorf("%v: whose fault is it?", err)
				}
				if took := time.Since(start); took != c.took {
					t.Errorf("it took %s, want %s", took, c.took)
				}
			})
		})
	}
}

// A 401 is repeated once with a token that was renewed since.
func TestCall_TriesARenewedTokenOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answers []answer
		tries   int
		want    error
	}{
		"it counts":        {[]answer{unproven, created}, 2, nil},
		"it does not":      {[]answer{unproven, unproven, created}, 2, sdk.ErrUnauthorized},
		"it was the other": {[]answer{refused(403, sdk.ErrForbidden), created}, 1, sdk.ErrForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file := filepath.Join(t.TempDir(), "token")
			write := func(token string) {
				if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
					t.Error(err)
				}
			}
			write("old\n")
			f := &fake{answers: c.answers}
			renewing := roundTripper(func(r *http.Request) (*http.Response, error) {
				write(fmt.Sprintf("new%d\n", len(f.requests)))
				return f.RoundTrip(r)
			})
			client, err := sdk.New("http://source/ops/web", sdk.WithTokenFile(file), sdk.WithHTTPClient(&http.Client{Transport: renewing}), sdk.WithRetryBudget(0))
			if err != nil {
				t.Fatal(err)
			}
			// Also a back-off: a call that was not let in changed nothing.
			if err := backOff(t.Context(), client); !errors.Is(err, c.want) || len(f.requests) != c.tries {
				t.Errorf("%d tries: %v, want %d: %v", len(f.requests), err, c.tries, c.want)
			}
			for i, want := range []string{"Bearer old", "Bearer new0"}[:c.tries] {
				if got := f.requests[i].Header.Get("Authorization"); got != want {
					t.Errorf("try %d is by %q, want %q", i+1, got, want)
				}
			}
		})
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// calls are a call of each method, by the request of the contract.
var calls = map[string]func(context.Context, *sdk.Client) error{
	`PUT /ops/web/schedules/k {"delay":"5m0s"}`:              put(sdk.After(5 * time.Minute)),
	`PUT /ops/web/schedules/k {} If-Match="1", "2"`:          put(sdk.Request{}, sdk.IfRevision(1, 2)),
	`PUT /ops/web/schedules/k {} If-Match=* If-None-Match=*`: put(sdk.Request{}, sdk.IfAbsent(), sdk.IfPresent()),
	`PUT /ops/web/schedules/k {"backoff":{}}`:                backOff,
	`DELETE /ops/web/schedules/k `:                           cancel(),
	`DELETE /ops/web/schedules/k?uid=a%26b  If-Match="1"`:    cancel(sdk.IfUID("a&b"), sdk.IfRevision(1)),
	`GET /ops/web/schedules/k `:                              get,
	`GET /ops/web/schedules? `:                               list,
	`POST /ops/web/schedules {"items":[{"key":"a"}]}`:        many(sdk.Item{Key: "a"}),
	`GET /ops/web/schedules?limit=5&order=due&prefix=a%2Fb%26 `: func(ctx context.Context, c *sdk.Client) error {
		for _, err := range c.List(ctx, sdk.ListOptions{Prefix: "a/b&", Order: sdk.ByDue, PageSize: 5}) {
			return err
		}
		return nil
	},
	`DELETE /ops/web/schedules?prefix=a%2Fb `: func(ctx context.Context, c *sdk.Client) error { return one(c.CancelPrefix(ctx, "a/b")) },
	`DELETE /ops/web/schedules?all=true `:     func(ctx context.Context, c *sdk.Client) error { return one(c.CancelAll(ctx)) },
	`POST /ops/web/resync {}`:                 func(ctx context.Context, c *sdk.Client) error { return one(c.Resync(ctx, sdk.ResyncOptions{})) },
	`GET /ops/web/schedules?continue=x&limit=1&state=retrying `: func(ctx context.Context, c *sdk.Client) error {
		return two(c.ListPage(ctx, sdk.ListOptions{Continue: "x", PageSize: 1, State: sdk.Retrying}))
	},
	`POST /ops/web/resync {"over":"0s","prefix":"Website/team-a/"}`: func(ctx context.Context, c *sdk.Client) error {
		return one(c.Resync(ctx, sdk.ResyncOptions{Over: new(time.Duration(0)), Prefix: "Website/team-a/"}))
	},
	`PUT /ops/web/schedules/k {"event":{"data":"<é>","datacontenttype":"text/plain"}}`: put(sdk.Request{Event: &sdk.Event{Data: []byte("<é>"), DataContentType: "text/plain"}}),
	`POST /ops/web/schedules/k/run  If-Match="1"`:                                      func(ctx context.Context, c *sdk.Client) error { return one(c.Run(ctx, "k", sdk.IfRevision(1))) },
	`GET /ops/web/schedules/k/history `:                                                func(ctx context.Context, c *sdk.Client) error { return one(c.History(ctx, "k")) },
	`GET /ops/web/deadletters/k `:                                                      func(ctx context.Context, c *sdk.Client) error { return one(c.DeadLetter(ctx, "k")) },
	`GET /ops/web/deadletters?limit=3&prefix=a `: func(ctx context.Context, c *sdk.Client) error {
		return two(c.DeadLettersPage(ctx, sdk.ListOptions{Prefix: "a", PageSize: 3, Order: sdk.ByDue, State: sdk.Due}))
	},
	`DELETE /ops/web/deadletters/k `:        func(ctx context.Context, c *sdk.Client) error { return c.Discard(ctx, "k") },
	`DELETE /ops/web/deadletters?prefix=a `: func(ctx context.Context, c *sdk.Client) error { return one(c.DiscardPrefix(ctx, "a")) },
	`DELETE /ops/web/deadletters?all=true `: func(ctx context.Context, c *sdk.Client) error { return one(c.DiscardAll(ctx)) },
	`POST /ops/web/deadletters/k/redrive?replace=true `: func(ctx context.Context, c *sdk.Client) error {
		return c.Redrive(ctx, "k", sdk.RedriveOptions{Replace: true})
	},
	`POST /ops/web/deadletters/redrive?prefix=a `: func(ctx context.Context, c *sdk.Client) error {
		return one(c.RedrivePrefix(ctx, "a", sdk.RedriveOptions{}))
	},
	`POST /ops/web/deadletters/redrive?all=true&replace=true `: func(ctx context.Context, c *sdk.Client) error {
		return one(c.RedriveAll(ctx, sdk.RedriveOptions{Replace: true}))
	},
	`GET /ops/web `:                          func(ctx context.Context, c *sdk.Client) error { return one(c.Counts(ctx)) },
	`GET /ops/web/schedules/%2E%2E `:         func(ctx context.Context, c *sdk.Client) error { return one(c.Get(ctx, "..")) },
	`GET /ops/web/schedules/a%2F..%2F%2520 `: func(ctx context.Context, c *sdk.Client) error { return one(c.Get(ctx, "a/../%20")) },
}

func one[T any](_ T, err error) error { return err }

func two[T, U any](_ T, _ U, err error) error { return err }

// Each method sends one request of the contract.
func TestCall_Requests(t *testing.T) {
	t.Parallel()
	for want, call := range calls {
		f := &fake{answers: []answer{refused(403, sdk.ErrForbidden)}}
		if err := call(t.Context(), f.client(t, sdk.WithToken("secret"))); !errors.Is(err, sdk.ErrForbidden) || len(f.requests) != 1 {
			t.Errorf("%s: %d requests, %v", want, len(f.requests), err)
			continue
		}
		r := f.requests[0]
		parts := []string{r.Method, r.URL.RequestURI(), f.bodies[0]}
		for _, name := range []string{"If-Match", "If-None-Match"} {
			if v := r.Header.Get(name); v != "" {
				parts = append(parts, name+"="+v)
			}
		}
		if got := strings.Join(parts, " "); got != want {
			t.Errorf("sent %s, want %s", got, want)
		}
		if contentType := r.Header.Get("Content-Type"); r.Header.Get("Authorization") != "Bearer secret" || (contentType == "application/json") != (f.bodies[0] != "") {
			t.Errorf("%s: the header is %v", want, r.Header)
		}
	}
}

// What is wrong with a call whatever the source, is refused before it is made.
func TestCall_RefusedBeforeItIsMade(t *testing.T) {
	t.Parallel()
	for name, call := range map[string]func(context.Context, *sdk.Client) error{
		"an empty key":          func(ctx context.Context, c *sdk.Client) error { _, err := c.Get(ctx, ""); return err },
		"data that is no JSON":  put(sdk.Request{Event: &sdk.Event{Data: []byte("hello")}}),
		"no such priority":      put(sdk.Request{Priority: 2}),
		"an instant of no year": put(sdk.At(far.AddDate(9000, 0, 0))),
	} {
		f := &fake{answers: []answer{created}}
		if err := call(t.Context(), f.client(t)); !errors.Is(err, sdk.ErrInvalid) || len(f.requests) > 0 {
			t.Errorf("%s: %v, %d requests", name, err, len(f.requests))
		}
	}
	f := &fake{answers: []answer{created}}
	if err := cancel(sdk.IfRevision(1), sdk.IfPresent())(t.Context(), f.client(t)); err == nil || len(f.requests) > 0 {
		t.Errorf("two conditions of a kind: %v, %d requests", err, len(f.requests))
	}
}

// A list is read page by page, as far as it is looked at.
func TestList_PageByPage(t *testing.T) {
	t.Parallel()
	first := answer{status: 200, body: `{"items":[` + waiting + `,` + waiting + `],"continue":"x"}`}
	f := &fake{answers: []answer{first, {status: 200, body: `{"items":[` + waiting + `],"continue":""}`}}}
	n := 0
	for s, err := range f.client(t).List(t.Context(), sdk.ListOptions{Prefix: "a"}) {
		if n++; err != nil || s.Key != "k" {
			t.Fatal(show(s), err)
		}
	}
	if n != 3 || len(f.requests) != 2 || f.requests[1].URL.RawQuery != "continue=x&prefix=a" {
		t.Errorf("%d keys in %d requests", n, len(f.requests))
	}
	f = &fake{answers: []answer{first}}
	for range f.client(t).List(t.Context(), sdk.ListOptions{}) {
		break
	}
	if items, next, err := f.client(t).ListPage(t.Context(), sdk.ListOptions{}); err != nil || len(items) != 2 || next != "x" || len(f.requests) != 2 {
		t.Errorf("%d items, then %q, %v, after %d requests", len(items), next, err, len(f.requests))
	}
}

// Many keys go in calls that are not too large.
func TestCall_SplitsManyKeys(t *testing.T) {
	t.Parallel()
	items := make([]sdk.Item, 1500)
	for i := range items {
		items[i].Key = "k"
	}
	for i := range 10 { // 1.5 MiB each, as JSON writes it
		items[i].Event = &sdk.Event{DataContentType: "text/plain", Data: []byte(strings.Repeat("\x01", 256<<10))}
	}
	items[3].Event = &sdk.Event{Data: []byte("hello")} // no JSON: refused alone, and not sent
	answered := func(n int) answer {
		return answer{status: 200, body: `{"items":[` + strings.Repeat(waiting+",", n-1) + waiting + `]}`}
	}
	f := &fake{answers: []answer{answered(6), answered(1000), refused(507, sdk.ErrStorageFull)}}
	outcomes, err := f.client(t).ScheduleAll(t.Context(), items...)
	if !errors.Is(err, sdk.ErrStorageFull) || len(outcomes) != 1007 || !strings.Contains(err.Error(), `scheduling 493 keys from "k" on`) {
		t.Errorf("%d outcomes, %v", len(outcomes), err)
	}
	for i, o := range outcomes {
		if bad := i == 3; o.Key != "k" || (o.Schedule == nil) != bad || errors.Is(o.Err, sdk.ErrInvalid) != bad {
			t.Errorf("outcome %d is %+v", i, o)
		}
	}
	for i, want := range []int{6, 1000, 493} {
		if n := strings.Count(f.bodies[i], `"key":`); n != want || len(f.bodies[i]) > 16<<20 {
			t.Errorf("call %d has %d items in %d bytes, want %d", i+1, n, len(f.bodies[i]), want)
		}
	}
}

// An answer that no RescheduleSource wrote is an error that says so.
func TestCall_AnswersOfProxies(t *testing.T) {
	t.Parallel()
	html := http.Header{"Content-Type": {"text/html"}}
	for name, c := range map[string]struct {
		call   func(context.Context, *sdk.Client) error
		answer answer
		code   sdk.Code // "" is none
		words  string
	}{
		"a redirect":                      {put(sdk.After(0)), answer{status: 301, header: http.Header{"Location": {"https://source/ops/web"}}}, "", "a redirect to https://source/ops/web"},
		"a proxy's 404 is not a key's":    {get, answer{status: 404, header: html, body: "<h1>404</h1>"}, "", `404: not an answer of a RescheduleSource, but "<h1>404</h1>"`},
		"a proxy's 409":                   {put(sdk.After(0)), answer{status: 409}, "", "409"},
		"a proxy's 401":                   {get, answer{status: 401, header: html}, sdk.ErrUnauthorized, "401 unauthenticated"},
		"a proxy's 403":                   {get, answer{status: 403, header: html, body: "RBAC: access denied"}, sdk.ErrForbidden, "RBAC: access denied"},
		"a proxy's 504":                   {get, answer{status: 504}, sdk.ErrUnavailable, "504 unavailable"},
		"a plain 400":                     {get, answer{status: 400, body: "400 Bad Request"}, "", "400 Bad Request"},
		"a problem without a code":        {get, answer{status: 404, header: http.Header{"Content-Type": {"application/problem+json"}}, body: `{"status":404}`}, "", "404"},
		"JSON that is no problem":         {get, answer{status: 404, header: http.Header{"Content-Type": {"application/json"}}, body: `{"code":"not_found"}`}, "", "404"},
		"a page":                          {get, answer{status: 200, header: html, body: "<h1>Welcome</h1>"}, "", "the answer is not an answer of a RescheduleSource"},
		"a 200 to DELETE":                 {cancel(), answer{status: 200, body: "{}"}, "", "200: not an answer"},
		"a 202 to PUT":                    {put(sdk.After(0)), answer{status: 202}, "", "202: not an answer"},
		"an answer about another key":     {get, answer{status: 200, body: strings.Replace(waiting, `"k"`, `"x"`, 1)}, "", `it is about "x"`},
		"an answer about another letter":  {calls["GET /ops/web/deadletters/k "], answer{status: 200, body: `{"key":"x","at":"2090-01-02T03:04:05Z"}`}, "", `it is about "x"`},
		"a bulk answer with too few":      {many(sdk.Item{Key: "a"}), answer{status: 200, body: `{"items":[]}`}, "", "1 items were answered with 0"},
		"a code of a newer source":        {get, refused(418, "teapot"), "teapot", `sdk: getting "k": 418 teapot: field: is wrong`},
		"a refusal":                       {put(sdk.After(0)), refused(400, sdk.ErrInvalid), sdk.ErrInvalid, `sdk: scheduling "k": 400 invalid_argument: field: is wrong`},
		"a token that no header can hold": {get, answer{}, "", "the token has blanks"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := []sdk.Option{sdk.WithRetryBudget(0)}
			if strings.HasPrefix(name, "a token") {
				file := filepath.Join(t.TempDir(), "token")
				if err := os.WriteFile(file, []byte("hush\nhush"), 0o600); err != nil {
					t.Fatal(err)
				}
				opts = append(opts, sdk.WithTokenFile(file))
			}
			err := c.call(t.Context(), (&fake{answers: []answer{c.answer}}).client(t, opts...))
			if err == nil || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "hush") {
				t.Errorf("the error is %v, want %s", err, c.words)
			}
			var refused *sdk.Error
			if errors.As(err, &refused) && refused.Code != c.code || c.code != "" && !errors.Is(err, c.code) || errors.Is(err, sdk.ErrNotFound) || errors.Is(err, sdk.ErrExists) {
				t.Errorf("the error is %#v, want code %q", err, c.code)
			}
		})
	}
}

// JSON of another server is no answer: it read as a source where nothing waits.
func TestCall_JSONOfAnotherServer(t *testing.T) {
	t.Parallel()
	for request, call := range calls {
		if strings.HasPrefix(request, "DELETE") && strings.Contains(request, "/k") {
			continue // answered without a body
		}
		for _, body := range []string{`{}`, `null`, `[]`, `"ok"`, `{"status":"UP"}`, `{"items":null}`, `{"items":[null]}`, `{"items":[{}]}`, `{"items":[{"key":"x"}]}`} {
			f := &fake{answers: []answer{{status: 200, body: body}}}
			if err := call(t.Context(), f.client(t)); !errors.Is(err, sdk.ErrForeign) || len(f.requests) != 1 {
				t.Errorf("%s, answered with %s: %v after %d requests", request, body, err, len(f.requests))
			}
		}
	}
}
