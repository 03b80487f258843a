package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/sdk"
)

var update = flag.Bool("update", false, "write the golden files")

var now = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

// fakeAPI is a schedule API that answers as it is told, and remembers what was asked.
type fakeAPI struct {
	answers map[string]string   // by method and path; others are not found
	status  map[string]sdk.Code // of calls that are refused

	mu    sync.Mutex
	calls []*http.Request
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.calls = append(f.calls, r)
	f.mu.Unlock()
	name := r.Method + " " + r.URL.Path
	body, ok := f.answers[name]
	code, refused := f.status[name]
	switch {
	case refused:
	case !ok:
		code, refused = sdk.ErrNotFound, true
	case body == "":
		w.WriteHeader(http.StatusNoContent)
	case strings.HasSuffix(name, "/events"):
		w.Header().Set("Content-Type", "text/event-stream")
	}
	if refused {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(map[sdk.Code]int{sdk.ErrNotFound: 404, sdk.ErrConflict: 412}[code])
		body = fmt.Sprintf(`{"code":%q,"detail":"there is no such thing"}`, code)
	}
	if head, rest, _ := strings.Cut(body, "\n\n"); strings.HasPrefix(head, ": following") && rest != "" && r.Header.Get("Last-Event-ID") == "0" {
		body = ": following\nid: e-0\n\n" + rest // what it remembers comes behind this
	}
	_, _ = io.WriteString(w, body)
}

// last returns the last call of a method.
func (f *fakeAPI) last(t *testing.T, method string) *http.Request {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range slices.Backward(f.calls) {
		if c.Method == method {
			return c
		}
	}
	t.Fatalf("the API had no %s", method)
	return nil
}

var ops = Source{Namespace: "ops", Name: "repos", Source: why.Source{SinkURI: "http://sink.example/", MaxInFlight: 100, Timeout: time.Minute}}

// backend has some sources of an API.
type backend struct {
	sources []Source
	group   why.Group
}

func (b *backend) Sources(context.Context) ([]Source, error) { return b.sources, nil }
func (b *backend) Members(context.Context) why.Group         { return b.group }

// serve returns a page in front of an API.
func serve(t *testing.T, api http.Handler, sources ...Source) http.Handler {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	return over(server.URL, "", sources...)
}

// over returns a page with sources of the API at an address, and metrics.
func over(address, metrics string, sources ...Source) http.Handler {
	if len(sources) == 0 {
		sources = []Source{ops}
	}
	b := &backend{}
	for _, s := range sources {
		s.Target = func(context.Context) *why.Target {
			t := &why.Target{Namespace: s.Namespace, Name: s.Name, Source: &s.Source, Now: func() time.Time { return now }}
			t.Client, t.Err = sdk.New(address+"/"+s.Namespace+"/"+s.Name, sdk.WithRetryBudget(0))
			t.Metrics = func(context.Context) (*why.Metrics, error) { return why.ReadMetrics(strings.NewReader(metrics)), nil }
			return t
		}
		b.sources = append(b.sources, s)
	}
	return Handler(b, func() time.Time { return now })
}

// do makes a request as a browser on the page does.
func do(h http.Handler, method, target, form string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(form))
	r.Host = "127.0.0.1:9090"
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
		if headers[i] == "Host" {
			r.Host = headers[i+1]
		}
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

const (
	noCounts = `{"pending":0,"due":0,"inFlight":0,"retrying":0,"deadLetters":0,"nextDueAt":null,"oldestDueAt":null,"watched":0}`
	retryKey = `{"key":%s,"revision":184467440737095,"state":"due","dueAt":"2026-11-22T02:50:00Z","scheduledAt":"2026-11-22T02:40:00Z","attempt":3,"inFlight":false,
 "reason":%[2]s,"uid":%[2]s,"tries":3,"nextAttemptAt":"2026-11-22T03:04:00Z","lastFailure":{"at":"2026-11-22T02:59:00Z","status":503,"error":"the sink answered 503 Service Unavailable","detail":%[2]s},
 "event":{"type":%[2]s,"subject":%[2]s,"data":{"text":%[2]s,"big":184467440737095516150.10}}}`
	someHistory = `{"items":[{"at":"2026-11-22T02:59:00Z","result":"retrying","status":503,"attempt":3,"lateness":"1.5ms","duration":"20ms","cause":%s}],"since":"2026-11-22T01:00:00Z"}`
	someLetter  = `{"key":%s,"at":"2026-11-22T02:00:00Z","dueAt":"2026-11-22T01:00:00Z","attempts":4,"status":400,"error":%[2]s,"detail":%[2]s,"event":{"type":%[2]s,"data_base64":"PHNjcmlwdD4="}}`
)

func quote(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

// trouble is an API that has one key, which has failed, and a dead letter of it.
func trouble(key, text string) *fakeAPI {
	k, l := fmt.Sprintf(retryKey, quote(key), quote(text)), fmt.Sprintf(someLetter, quote(key), quote(text))
	one := "/ops/repos/schedules/" + key
	return &fakeAPI{answers: map[string]string{
		"GET /ops/repos":                                  `{"pending":3,"due":1,"inFlight":0,"retrying":1,"deadLetters":1,"nextDueAt":"2026-11-22T04:00:00Z","oldestDueAt":"2026-11-22T02:50:00Z","watched":0}`,
		"GET /ops/repos/schedules":                        `{"items":[` + k + `],"continue":"next page"}`,
		"GET /ops/repos/deadletters":                      `{"items":[` + l + `],"continue":""}`,
		"GET " + one:                                      k,
		"GET " + one + "/history":                         fmt.Sprintf(someHistory, quote(text)),
		"GET /ops/repos/deadletters/" + key:               l,
		"POST " + one + "/run":                            k,
		"DELETE " + one:                                   "",
		"POST /ops/repos/deadletters/redrive":             `{"redriven":2}`,
		"DELETE /ops/repos/deadletters":                   `{"deleted":2}`,
		"POST /ops/repos/deadletters/" + key + "/redrive": `{"redriven":1}`,
		"DELETE /ops/repos/deadletters/" + key:            "",
		"GET /ops/repos/events": ": following\nid: e-2\n\nid: e-1\nevent: started\ndata: {\"key\":" + quote(key) + `,"at":"2026-11-22T02:58:59Z","attempt":3}` +
			"\n\nid: e-2\nevent: outcome\ndata: {\"key\":" + quote(key) + `,"at":"2026-11-22T02:59:00Z","attempt":3,"result":"retrying","status":503}` + "\n\n",
	}}
}

func viewsOf(key string) []string {
	q := url.Values{"ns": {"ops"}, "name": {"repos"}, "key": {key}}.Encode()
	return []string{
		"/", "/?q=" + url.QueryEscape(key), "/source?" + q, "/source?tab=dead&" + q, "/source?tab=waiting&prefix=" + url.QueryEscape(key) + "&" + q, "/key?" + q, "/letter?" + q, "/live?" + q,
		"/confirm?what=cancel&revision=1&" + q, "/confirm?what=discard&" + q, "/confirm?what=redrive&ns=ops&name=repos&prefix=" + url.QueryEscape(key), "/source?ns=no&name=" + url.QueryEscape(key),
	}
}

// The views say what there is to say. The golden files hold what is in main.
func TestViews_Golden(t *testing.T) {
	page := serve(t, trouble("GitRepo/team-a/site", "no space left"))
	for name, target := range map[string]string{
		"sources": "/", "source": "/source?ns=ops&name=repos", "key": "/key?ns=ops&name=repos&key=GitRepo/team-a/site&done=run", "letter": "/letter?ns=ops&name=repos&key=GitRepo/team-a/site",
	} {
		w := do(page, "GET", target, "")
		if w.Code != http.StatusOK {
			t.Errorf("%s: status %d:\n%s", target, w.Code, w.Body)
		}
		got := w.Body.String()
		got = got[strings.Index(got, "<main"):strings.Index(got, "</body>")]
		if name != "sources" && !strings.Contains(got, "503") && !strings.Contains(got, "400 Bad Request") {
			t.Errorf("%s does not say what failed", name)
		}
		got = regexp.MustCompile(`(class="sentence">).*?</p>|(<dl class="facts"><div><dt>source<).*?</dl>`).ReplaceAllString(got, "${1}${2}WHY") // has tests of its own
		got = regexp.MustCompile(`(</(?:tr|div|section|li|form|p|details)>)`).ReplaceAllString(got, "$1\n")
		got = regexp.MustCompile(`\n\s*\n`).ReplaceAllString(got, "\n")
		file := filepath.Join("testdata", name+".html")
		if *update {
			if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != got {
			t.Errorf("%s differs (go -C cli test ./internal/page -update writes it, git diff shows it):\n%s", file, got)
		}
	}
}

// A replicated group: who owns the group, and each member. Without an owner the view warns.
func TestMembers_OfAGroup(t *testing.T) {
	group := why.Group{
		{Pod: "adapter-0", Majority: true, Applied: 98, Behind: 100 * time.Millisecond},
		{Pod: "adapter-1", Majority: true, Owner: true, Applied: 100},
		{Pod: "adapter-2", Silence: errors.New("<b>gone</b>\u202e")},
	}
	b := &backend{group: group}
	page := Handler(b, time.Now)
	expect := func(texts ...string) {
		t.Helper()
		body := do(page, "GET", "/", "").Body.String()
		for _, text := range texts {
			if !strings.Contains(body, text) {
				t.Errorf("no %q in\n%s", text, body)
			}
		}
	}
	expect(`<p class="sub"><bdi>adapter-1 owns the group.</bdi></p>`, `<span class="badge good">owner</span>`, `<span class="badge idle">standby</span>`,
		`it lacks 2 entries of the log`, `<span class="badge bad">no answer</span>`, `&lt;b&gt;gone&lt;/b&gt;`)
	group[1].Owner, group[0].Behind, group[2] = false, time.Hour, why.Member{Pod: "adapter-2"}
	expect(`<p class="banner bad"><bdi>No member owns the group`, `<span class="badge warn">behind</span>`, `<span class="badge bad">no majority</span>`)
	b.group = nil
	if body := do(page, "GET", "/", "").Body.String(); strings.Contains(body, "members-head") {
		t.Errorf("one adapter is shown as a group: %s", body)
	}
}

var hostile = []string{
	"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, "'><svg onload=alert(1)>", "..", ".", "a/../../b", "%2F%2e%2e%2F", "safe\u202egnp.exe", "\u200bhidden", "?a=b&c#d",
	"javascript:alert(1)", " blanks ", strings.Repeat("w", 512), strings.Repeat("\u202e", 170), "&amp;&lt;", "{{.}}",
}

// Whatever a key, an event or the answer of a sink has in it, it is shown as text, and the
// links and forms lead to the very key.
func TestViews_HostileTexts(t *testing.T) {
	// What only this package writes. Each tag of an answer must be one of these.
	tags := regexp.MustCompile(`<[!/]?[a-zA-Z][^\s>]*`)
	known := map[string]bool{}
	for _, target := range viewsOf("key") {
		for _, tag := range tags.FindAllString(do(serve(t, trouble("key", "text")), "GET", target, "").Body.String(), -1) {
			known[tag] = true
		}
	}
	known[`<span`] = true
	for _, key := range hostile {
		api := trouble(key, key)
		page := serve(t, api)
		for _, target := range viewsOf(key) {
			w := do(page, "GET", target, "")
			body := w.Body.String()
			if w.Code != http.StatusOK && !strings.Contains(target, "ns=no") {
				t.Errorf("%q: %s: status %d", key, target, w.Code)
			}
			for _, tag := range tags.FindAllString(body, -1) {
				if !known[tag] {
					t.Errorf("%q: %s has the tag %s", key, target, tag)
				}
			}
			body = regexp.MustCompile(` value="[^"]*"`).ReplaceAllString(body, "") // what a form sends is the very key
			if strings.Count(body, "<script") != 1 || strings.ContainsAny(body, "\u202e\u200b") {
				t.Errorf("%q: %s has more than one script, or characters that hide or reorder text", key, target)
			}
		}
		link := regexp.MustCompile(`<a class="keyname" href="([^"]*)"`).FindStringSubmatch(do(page, "GET", "/source?ns=ops&name=repos&tab=overdue", "").Body.String())
		if link == nil {
			t.Fatalf("%q: there is no link", key)
		}
		u, err := url.Parse("http://127.0.0.1/" + html.UnescapeString(link[1]))
		if err != nil || u.Path != "/key" || u.Query().Get("key") != key {
			t.Errorf("%q: the link %q leads to %q of %q, %v", key, link[1], u.Query().Get("key"), u.Path, err)
		}
		if w := do(page, "POST", "/run", filled("key", key, "revision", "7")); w.Code != http.StatusSeeOther {
			t.Errorf("%q: run: status %d: %s", key, w.Code, w.Body)
		}
		if got := api.last(t, "POST"); got.URL.Path != "/ops/repos/schedules/"+key+"/run" || got.Header.Get("If-Match") != `"7"` {
			t.Errorf("%q: run called %q with %q", key, got.URL.Path, got.Header.Get("If-Match"))
		} else if strings.Contains(got.RequestURI, "/./") || strings.Contains(got.RequestURI, "/../") {
			t.Errorf("%q: run called %q, which proxies resolve", key, got.RequestURI)
		}
	}
}

// filled is what the form of a button sends.
func filled(pairs ...string) string {
	q := url.Values{"ns": {"ops"}, "name": {"repos"}}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return q.Encode()
}

// Each answer has the policy and no cache, also a refusal, a redirect and a file.
func TestAnswers_HaveThePolicy(t *testing.T) {
	page := Loopback("s", serve(t, trouble("k", "x")))
	open := serve(t, trouble("k", "x"))
	for _, w := range []*httptest.ResponseRecorder{
		do(open, "GET", "/", ""), do(open, "GET", "/none", ""), do(open, "GET", "/style.css", ""), do(open, "GET", "/page.js", ""), do(open, "PUT", "/", ""), do(open, "POST", "/run", "a=b"),
		do(open, "POST", "/run", filled("key", "k", "revision", "1")), do(page, "GET", "/", ""), do(page, "GET", "/?secret=s", ""), do(page, "POST", "/", "a=b", "Sec-Fetch-Site", "cross-site"),
		do(open, "GET", "/source", ""), do(open, "GET", "//evil.example/..", ""),
	} {
		h := w.Header()
		if h.Get("Content-Security-Policy") != policy || h.Get("X-Content-Type-Options") != "nosniff" || h.Get("Referrer-Policy") != "same-origin" || h.Get("Cache-Control") == "" {
			t.Errorf("%d %.80s: headers %v", w.Code, w.Body, h)
		}
	}
	for _, weak := range []string{"unsafe", "http:", "https:", "*"} {
		if strings.Contains(policy, weak) {
			t.Errorf("the policy has %s", weak)
		}
	}
}

// A form of another page changes nothing, though the browser has the session, and neither does a link.
func TestChanges_RefuseOtherPages(t *testing.T) {
	api := trouble("k", "x")
	page, session := opened(t, serve(t, api))
	good := filled("key", "k", "revision", "1")
	for name, headers := range map[string][]string{
		"from another origin": {"Origin", "http://evil.example"},
		"from another port":   {"Origin", "http://127.0.0.1:8000"},
		"from no origin":      {"Origin", "null"},
		"from another site":   {"Sec-Fetch-Site", "cross-site"},
		"from the same site":  {"Sec-Fetch-Site", "same-site"},
	} {
		if w := do(page, "POST", "/cancel", good, append(headers, "Cookie", session)...); w.Code < 400 {
			t.Errorf("%s: status %d", name, w.Code)
		}
	}
	for _, query := range []string{"/cancel?", "/run?", "/discard?all=true&"} {
		for _, method := range []string{"GET", "POST"} {
			if w := do(page, method, query+good, "", "Cookie", session); w.Code < 400 {
				t.Errorf("%s %s: status %d", method, query, w.Code)
			}
		}
	}
	for _, c := range api.calls {
		if c.Method != http.MethodGet {
			t.Errorf("the API had %s %s", c.Method, c.URL)
		}
	}
	if w := do(page, "POST", "/cancel", good, "Origin", "http://127.0.0.1:9090", "Sec-Fetch-Site", "same-origin", "Cookie", session); w.Code != http.StatusSeeOther {
		t.Errorf("the page's own form: status %d", w.Code)
	}
}

// Each change calls what it says, and leads to the view that shows it.
func TestChanges_CallTheAPI(t *testing.T) {
	api := trouble("k", "x")
	page := serve(t, api)
	for _, c := range []struct{ action, fields, call, to string }{
		{"run", "key=k&revision=5", "POST /ops/repos/schedules/k/run", "/key?done=run&key=k&name=repos&ns=ops"},
		{"cancel", "key=k&revision=5", "DELETE /ops/repos/schedules/k", "/key?done=cancel&key=k&name=repos&ns=ops"},
		{"redrive", "key=k&at=2026-11-22T02:00:00Z", "POST /ops/repos/deadletters/k/redrive", "/key?done=redrive&key=k&name=repos&ns=ops"},
		{"redrive", "prefix=a/", "POST /ops/repos/deadletters/redrive?prefix=a%2F", "/source?count=2&done=redrive&name=repos&ns=ops&tab=dead"},
		{"discard", "all=true", "DELETE /ops/repos/deadletters?all=true", "/source?count=2&done=discard&name=repos&ns=ops&tab=dead"},
		{"discard", "key=k&at=2026-11-22T02:00:00Z", "DELETE /ops/repos/deadletters/k", "/source?count=1&done=discard&name=repos&ns=ops&tab=dead"},
	} {
		w := do(page, "POST", "/"+c.action, filled()+"&"+c.fields)
		method, _, _ := strings.Cut(c.call, " ")
		if got := api.last(t, method); method+" "+got.URL.RequestURI() != c.call {
			t.Errorf("%s %s: called %s", c.action, c.fields, got.URL.RequestURI())
		}
		if w.Code != http.StatusSeeOther || w.Header().Get("Location") != c.to {
			t.Errorf("%s %s: status %d, to %q, want %q", c.action, c.fields, w.Code, w.Header().Get("Location"), c.to)
		}
	}
	before := len(api.calls)
	for _, action := range []string{"/discard", "/redrive"} {
		if w := do(page, "POST", action, filled("key", "k", "at", "2026-11-22T01:59:59Z")); w.Code != http.StatusPreconditionFailed {
			t.Errorf("%s of a letter that a newer one has replaced: status %d", action, w.Code)
		}
		if w := do(page, "POST", action, filled("key", "k")); w.Code != http.StatusBadRequest {
			t.Errorf("%s of any letter of a key: status %d", action, w.Code)
		}
	}
	for _, call := range api.calls[before:] {
		if call.Method != http.MethodGet {
			t.Errorf("a refused form called %s %s", call.Method, call.URL)
		}
	}
	do(page, "POST", "/discard?all=true", filled("prefix", "a/"))
	if got := api.last(t, "DELETE").URL.RequestURI(); got != "/ops/repos/deadletters?prefix=a%2F" {
		t.Errorf("the query of a form changed the call: %s", got)
	}
	api.status = map[string]sdk.Code{"POST /ops/repos/schedules/k/run": sdk.ErrConflict}
	if w := do(page, "POST", "/run", filled("key", "k", "revision", "4")); w.Code != http.StatusPreconditionFailed || !strings.Contains(w.Body.String(), "The key has changed") {
		t.Errorf("an old revision: status %d: %s", w.Code, w.Body)
	}
	if w := do(page, "POST", "/cancel", filled("key", "k")); w.Code != http.StatusBadRequest {
		t.Errorf("cancel without a revision: status %d", w.Code)
	}
}

// A view asks for pages of keys, and has a bounded size, whatever there is.
func TestViews_Bounded(t *testing.T) {
	large := strings.Repeat("x", 200<<10)
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit := r.URL.Query().Get("limit")
		switch {
		case strings.HasSuffix(r.URL.Path, "/schedules") || strings.HasSuffix(r.URL.Path, "/deadletters"):
			n := 0
			if _, err := fmt.Sscan(limit, &n); err != nil || n < 1 || n > 1000 {
				t.Errorf("%s has the limit %q", r.URL, limit)
			}
			_, _ = io.WriteString(w, `{"items":[`)
			for i := range min(n, 20) { // as the API, which ends a page after 4 MiB
				if i > 0 {
					_, _ = io.WriteString(w, ",")
				}
				_, _ = fmt.Fprintf(w, `{"key":"k%d","revision":1,"state":"due","dueAt":"2026-11-22T02:00:00Z","event":{"data":"%s"}}`, i, large)
			}
			_, _ = io.WriteString(w, `],"continue":"more"}`)
		case strings.HasSuffix(r.URL.Path, "/repos"):
			_, _ = io.WriteString(w, `{"pending":1000000,"due":500000,"inFlight":100,"retrying":5000,"deadLetters":100,"nextDueAt":null,"oldestDueAt":"2026-11-22T01:00:00Z"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	page := serve(t, api)
	for _, target := range viewsOf("k")[:5] {
		if w := do(page, "GET", target, ""); w.Code != http.StatusOK || w.Body.Len() > 256<<10 {
			t.Errorf("%s: status %d, %d bytes", target, w.Code, w.Body.Len())
		}
	}
}

// Ten thousand sources come page by page, and the API is asked about one page alone.
func TestSources_Paged(t *testing.T) {
	api := &fakeAPI{answers: map[string]string{}}
	var sources []Source
	for i := range 10_000 {
		sources = append(sources, Source{Namespace: fmt.Sprintf("team-%02d", i%100), Name: fmt.Sprintf("source-%05d", i)})
		api.answers["GET /"+sources[i].Namespace+"/"+sources[i].Name] = noCounts
	}
	page := serve(t, api, sources...)
	seen, pages := map[string]bool{}, 0
	for target := "/?q=team-07"; target != ""; pages++ {
		body := do(page, "GET", target, "").Body.String()
		for _, m := range regexp.MustCompile(`href="source\?name=(source-\d+)&amp;ns=(team-\d+)"`).FindAllStringSubmatch(body, -1) {
			seen[m[2]+"/"+m[1]] = true
		}
		target = ""
		if m := regexp.MustCompile(`rel="next" href="([^"]+)"`).FindStringSubmatch(body); m != nil {
			target = "/" + strings.TrimPrefix(strings.ReplaceAll(m[1], "&amp;", "&"), "./")
		}
	}
	if len(seen) != 100 || pages != 2 || len(api.calls) != 100 {
		t.Errorf("%d sources on %d pages with %d calls, want 100 on 2 with 100", len(seen), pages, len(api.calls))
	}
}

// The stream of events goes on from where the browser was.
func TestEvents_PassedOn(t *testing.T) {
	api := trouble("k", "x")
	server := httptest.NewServer(serve(t, api))
	defer server.Close()
	for _, c := range []struct{ last, again, from string }{{"e-1", "", "e-1"}, {"e-1", "e-2", "e-2"}} {
		ctx, end := context.WithCancel(t.Context())
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/events?ns=ops&name=repos&last="+c.last, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Last-Event-ID", c.again)
		resp, err := server.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		first, err := bufio.NewReader(resp.Body).ReadString('}')
		end()
		resp.Body.Close()
		if want := "id: e-1\nevent: started\ndata: {\"id\":\"e-1\",\"kind\":\"started\",\"key\":\"k\""; err != nil || resp.Header.Get("Content-Type") != "text/event-stream" || !strings.HasPrefix(first, want) {
			t.Errorf("%v %q %v", resp.Header, first, err)
		}
		api.mu.Lock()
		if !slices.ContainsFunc(api.calls, func(r *http.Request) bool { return r.Header.Get("Last-Event-ID") == c.from }) {
			t.Errorf("it does not follow from %q", c.from)
		}
		api.mu.Unlock()
	}
}

// The list called a source idle whose events are lost, or that refuses new keys.
func TestSources_IdleOnlyIfAllIsWell(t *testing.T) {
	const labels = `{kn_source_namespace="ops",kn_source_name="repos",`
	server := httptest.NewServer(&fakeAPI{answers: map[string]string{"GET /ops/repos": noCounts}})
	t.Cleanup(server.Close)
	for metrics, want := range map[string]string{
		"": "idle",
		"reschedule_dead_letters_pending" + labels + "} 51\n": "giving up",
		"reschedule_deliveries_total" + labels + `result="dropped"} 1` + "\nreschedule_given_up_timestamp_seconds" + labels + `result="dropped"} 1.7953163e+09` + "\n": "giving up",
		"reschedule_storage_free_bytes 1\nreschedule_storage_reserve_bytes 2\n":                                                                                        "full",
	} {
		if w := do(over(server.URL, metrics), "GET", "/", ""); !strings.Contains(w.Body.String(), ">"+want+"</span>") {
			t.Errorf("with %q not %s: %s", metrics, want, w.Body)
		}
	}
}

// The list and the page of a source show the state of its workload, and that it cannot be scaled.
func TestViews_Workload(t *testing.T) {
	t.Parallel()
	for scale, want := range map[string][2]string{
		`{"state":"Asleep","since":"2026-11-22T02:00:00Z","starts":2,"awakeSeconds":1,"observedSeconds":2,"lastStart":"1.3s"}`: {">asleep</span>", "the workload: Asleep, since 1h0m; 2 starts, the last one took 1.3s"},
		`{"state":"Starting","starts":1,"awakeSeconds":1,"observedSeconds":2}`:                                                 {">starting</span>", "the workload: Starting; 1 start"},
		`{"starts":0,"awakeSeconds":0,"observedSeconds":0,"reason":"Forbidden","message":"no right"}`:                          {">not scaled</span>", "(Forbidden): no right."},
	} {
		server := httptest.NewServer(&fakeAPI{answers: map[string]string{
			"GET /ops/repos": strings.TrimSuffix(noCounts, "}") + `,"scale":` + scale + "}", "GET /ops/repos/schedules": `{"items":[],"continue":""}`,
		}})
		t.Cleanup(server.Close)
		h := over(server.URL, "")
		for i, target := range []string{"/", "/source?ns=ops&name=repos"} {
			if w := do(h, "GET", target, ""); !strings.Contains(w.Body.String(), want[i]) {
				t.Errorf("%s of %s does not show %q: %s", target, scale, want[i], w.Body)
			}
		}
	}
}

// A source without a sink shows what it wakes instead, and its due key is not late while the workload works.
func TestViews_WithoutASink(t *testing.T) {
	t.Parallel()
	alone := Source{Namespace: "ops", Name: "repos", Source: why.Source{Workload: &why.Workload{Kind: "Deployment", Name: "web", Mode: "Auto", Sinkless: true, Cooldown: 10 * time.Second}}}
	const key = `{"key":"k","revision":7,"state":"due","dueAt":"2026-11-22T02:00:00Z","scheduledAt":"2026-11-22T02:00:00Z","attempt":0,"inFlight":false}`
	counts := func(scale string) string {
		return `{"pending":1,"due":1,"inFlight":0,"retrying":0,"deadLetters":0,"nextDueAt":null,"oldestDueAt":"2026-11-22T02:00:00Z","watched":0,"scale":{"starts":1,"awakeSeconds":1,"observedSeconds":2,` + scale + `}}`
	}
	for scale, want := range map[string]map[string]string{
		`"state":"Awake"`: {
			"/": ">working</span>", "/source?ns=ops&name=repos": "sink: <bdi>none: it wakes Deployment web</bdi>", "/source?ns=ops&name=repos&tab=overdue": `<span class="badge busy">due</span>`,
			"/key?ns=ops&name=repos&key=k": "done when the workload was idle for 10s: Deployment web is awake.",
		},
		`"state":"Awake","reason":"Crashed","message":"a container has ended"`: {"/": ">late</span>", "/source?ns=ops&name=repos": "Deployment web crashes (Crashed): a container has ended."},
	} {
		api := &fakeAPI{answers: map[string]string{"GET /ops/repos": counts(scale), "GET /ops/repos/schedules": `{"items":[` + key + `],"continue":""}`, "GET /ops/repos/schedules/k": key}}
		h := serve(t, api, alone)
		for target, part := range want {
			if w := do(h, "GET", target, ""); !strings.Contains(html.UnescapeString(w.Body.String()), part) || strings.Contains(w.Body.String(), ">overdue</span>") {
				t.Errorf("%s of %s does not show %q: %s", target, scale, part, w.Body)
			}
		}
	}
}

// An API that does not answer is a sentence on the page, not an empty one.
func TestViews_WithoutTheAPI(t *testing.T) {
	api := httptest.NewServer(http.NotFoundHandler())
	api.Close()
	for _, target := range []string{"/", "/source?ns=ops&name=repos", "/key?ns=ops&name=repos&key=k", "/letter?ns=ops&name=repos&key=k"} {
		if body := do(over(api.URL, ""), "GET", target, "").Body.String(); !strings.Contains(body, "connection refused") {
			t.Errorf("%s: %s", target, body)
		}
	}
}

// Live events named the third attempt the second one, and the second one not at all.
func TestLive_SecondAttemptIsNamed(t *testing.T) {
	api := trouble("k", "x")
	api.answers["GET /ops/repos/events"] = ": following\nid: e-1\n\nid: e-1\nevent: started\ndata: {\"key\":\"k\",\"at\":\"2026-11-22T02:59:10Z\",\"attempt\":1}\n\n"
	if w := do(serve(t, api), "GET", "/live?ns=ops&name=repos", ""); !strings.Contains(w.Body.String(), "after 1 failure in a row") {
		t.Error(w.Body)
	}
}

// A duration is shown in at most two units, rounded down and without its sign.
func TestSpan_TwoUnits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0 ms", 300 * time.Microsecond: "<1 ms", 1500 * time.Microsecond: "1 ms", 2 * time.Second: "2 s", 2500 * time.Millisecond: "2.5 s", 72 * time.Second: "1m 12s", 3 * time.Hour: "3h",
		49*time.Hour + 59*time.Minute: "2d 1h", 400 * 24 * time.Hour: "1y 35d", -time.Minute: "1m",
	} {
		if got := span(d); got != want {
			t.Errorf("span(%s) is %q, want %q", d, got, want)
		}
	}
}
