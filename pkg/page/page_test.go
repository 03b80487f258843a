package page

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
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
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/internal/heap"
	"github.com/reschedule-dev/reschedule/pkg/why"
)

var update = flag.Bool("update", false, "write the golden files")

var now = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

// fakeAPI is a schedule API that answers as it is told, and remembers what was asked.
type fakeAPI struct {
	answers map[string]string // by method and path; "" answers the rest
	status  map[string]int

	mu    sync.Mutex
	calls []*http.Request
}

func (f *fakeAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	f.calls = append(f.calls, r)
	f.mu.Unlock()
	name := r.Method + " " + r.URL.Path
	if strings.HasSuffix(name, "/events") {
		w.Header().Set("Content-Type", "text/event-stream")
	}
	f.mu.Lock()
	code := f.status[name]
	f.mu.Unlock()
	if code != 0 {
		w.WriteHeader(code)
	}
	body, ok := f.answers[name]
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		body = `{"status":404,"code":"not_found","detail":"there is no such thing"}`
	}
	if head, rest, _ := strings.Cut(body, "\n\n"); strings.HasPrefix(head, ": following") && rest != "" && r.Header.Get("Last-Event-ID") == "0" {
		body = ": following\nid: e-0\n\n" + rest // what it remembers comes behind this
	}
	_, _ = io.WriteString(w, body)
}

// refuse makes the API answer with an error from now on.
func (f *fakeAPI) refuse(call string, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = map[string]int{call: status}
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

// serve returns a page in front of an API.
func serve(t *testing.T, api http.Handler, sources ...Source) http.Handler {
	t.Helper()
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	if len(sources) == 0 {
		sources = []Source{ops}
	}
	return Handler(Backend{
		Base: server.URL, Now: func() time.Time { return now },
		Sources: func(ctx context.Context) ([]Source, error) { return sources, nil },
	})
}

// do makes a request as a browser on the page does.
func do(h http.Handler, method, target, form string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(method, target, strings.NewReader(form))
	r.Host = "127.0.0.1:9090"
	if form != "" {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for i := 0; i < len(headers); i += 2 {
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

func views(key string) []string {
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
		got = regexp.MustCompile(`name="proof" value="\w+"`).ReplaceAllString(got, `name="proof" value="PROOF"`)
		if name != "sources" && !strings.Contains(got, "503") && !strings.Contains(got, "400 Bad Request") {
			t.Errorf("%s does not say what failed", name)
		}
		got = regexp.MustCompile(`(class="sentence">).*?</p>|(<dl class="facts"><div><dt>source<).*?</dl>`).ReplaceAllString(got, "${1}${2}WHY") // has tests of its own
		got = regexp.MustCompile(`(</(?:tr|div|section|li|form|p|details)>)`).ReplaceAllString(got, "$1\n")
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
		if diff := cmp.Diff(string(want), got); diff != "" {
			t.Errorf("%s (go test ./pkg/page -update writes it):\n%s", name, diff)
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
	server := httptest.NewServer(&fakeAPI{})
	t.Cleanup(server.Close)
	page := Handler(Backend{
		Base: server.URL, Sources: func(context.Context) ([]Source, error) { return nil, nil },
		Members: func(context.Context) why.Group { return group },
	})
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
	group = nil
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
	for _, target := range views("key") {
		for _, tag := range tags.FindAllString(do(serve(t, trouble("key", "text")), "GET", target, "").Body.String(), -1) {
			known[tag] = true
		}
	}
	known[`<span`] = true
	for _, key := range hostile {
		api := trouble(key, key)
		page := serve(t, api)
		for _, target := range views(key) {
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
		u, err := url.Parse("http://127.0.0.1/" + strings.ReplaceAll(link[1], "&amp;", "&"))
		if err != nil || u.Path != "/key" || u.Query().Get("key") != key {
			t.Errorf("%q: the link %q leads to %q of %q, %v", key, link[1], u.Query().Get("key"), u.Path, err)
		}
		if w := do(page, "POST", "/run", form(page, "key", key, "revision", "7")); w.Code != http.StatusSeeOther {
			t.Errorf("%q: run: status %d: %s", key, w.Code, w.Body)
		}
		if got := api.last(t, "POST"); got.URL.Path != "/ops/repos/schedules/"+key+"/run" || got.Header.Get("If-Match") != `"7"` {
			t.Errorf("%q: run called %q with %q", key, got.URL.Path, got.Header.Get("If-Match"))
		} else if strings.Contains(got.RequestURI, "/./") || strings.Contains(got.RequestURI, "/../") {
			t.Errorf("%q: run called %q, which proxies resolve", key, got.RequestURI)
		}
	}
}

// form is the form of a button on the page.
func form(page http.Handler, pairs ...string) string {
	body := do(page, "GET", "/confirm?what=cancel&ns=ops&name=repos&key=k&revision=1", "").Body.String()
	q := url.Values{"ns": {"ops"}, "name": {"repos"}, "proof": {regexp.MustCompile(`name="proof" value="(\w+)"`).FindStringSubmatch(body)[1]}}
	for i := 0; i < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return q.Encode()
}

// The numbers of an event are shown as they came: through a float they would change.
func TestKey_NumbersStay(t *testing.T) {
	body := do(serve(t, trouble("k", "x")), "GET", "/key?ns=ops&name=repos&key=k", "").Body.String()
	if !strings.Contains(body, "184467440737095516150.10") {
		t.Errorf("the number is not as it came:\n%s", body)
	}
}

// Each answer has the policy and no cache, also a refusal, a redirect and a file.
func TestAnswers_HaveThePolicy(t *testing.T) {
	page := Loopback(Guard{Secret: "s", Token: func(context.Context, string) bool { return false }}, serve(t, trouble("k", "x")))
	open := Loopback(Guard{}, serve(t, trouble("k", "x")))
	for _, w := range []*httptest.ResponseRecorder{
		do(open, "GET", "/", ""), do(open, "GET", "/none", ""), do(open, "GET", "/style.css", ""), do(open, "GET", "/page.js", ""), do(open, "PUT", "/", ""), do(open, "POST", "/run", "a=b"),
		do(open, "POST", "/run", form(open, "key", "k")), do(open, "GET", "/events?ns=ops&name=repos", ""), do(page, "GET", "/", ""), do(page, "POST", "/login", "token=x"), do(page, "GET", "/?secret=s", ""),
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

// A form of another page changes nothing, whatever it knows.
func TestChanges_RefuseOtherPages(t *testing.T) {
	api := trouble("k", "x")
	page := Loopback(Guard{}, serve(t, api))
	good := form(page, "key", "k", "revision", "1")
	for name, try := range map[string]func() *httptest.ResponseRecorder{
		"without the proof": func() *httptest.ResponseRecorder {
			return do(page, "POST", "/cancel", "ns=ops&name=repos&key=k&revision=1")
		},
		"with another proof": func() *httptest.ResponseRecorder {
			return do(page, "POST", "/cancel", "proof=x&ns=ops&name=repos&key=k&revision=1")
		},
		"with the proof in a link": func() *httptest.ResponseRecorder { return do(page, "POST", "/cancel?"+good, "a=b") },
		"from another origin": func() *httptest.ResponseRecorder {
			return do(page, "POST", "/cancel", good, "Origin", "http://evil.example")
		},
		"from another port": func() *httptest.ResponseRecorder {
			return do(page, "POST", "/cancel", good, "Origin", "http://127.0.0.1:8000")
		},
		"from no origin": func() *httptest.ResponseRecorder { return do(page, "POST", "/cancel", good, "Origin", "null") },
		"from another site": func() *httptest.ResponseRecorder {
			return do(page, "POST", "/cancel", good, "Sec-Fetch-Site", "cross-site")
		},
		"from the same site": func() *httptest.ResponseRecorder {
			return do(page, "POST", "/cancel", good, "Sec-Fetch-Site", "same-site")
		},
		"by GET": func() *httptest.ResponseRecorder { return do(page, "GET", "/cancel?"+good, "") },
		"too large": func() *httptest.ResponseRecorder {
			return do(page, "POST", "/cancel", good+"&x="+strings.Repeat("x", formBytes))
		},
	} {
		if w := try(); w.Code < 400 {
			t.Errorf("%s: status %d", name, w.Code)
		}
	}
	for _, c := range api.calls {
		if c.Method != http.MethodGet {
			t.Errorf("the API had %s %s", c.Method, c.URL)
		}
	}
	if w := do(page, "POST", "/cancel", good, "Origin", "http://127.0.0.1:9090", "Sec-Fetch-Site", "same-origin"); w.Code != http.StatusSeeOther {
		t.Errorf("the page's own form: status %d", w.Code)
	}
}

// Each change calls what it says, and leads to the view that shows it.
func TestChanges_CallTheAPI(t *testing.T) {
	api := trouble("k", "x")
	page := serve(t, api)
	for _, c := range []struct{ action, fields, call, to string }{
		{"run", "key=k&revision=5", "POST /ops/repos/schedules/k/run", "key?done=run&key=k&name=repos&ns=ops"},
		{"cancel", "key=k&revision=5", "DELETE /ops/repos/schedules/k", "key?done=cancel&key=k&name=repos&ns=ops"},
		{"redrive", "key=k&at=2026-11-22T02:00:00Z", "POST /ops/repos/deadletters/k/redrive", "key?done=redrive&key=k&name=repos&ns=ops"},
		{"redrive", "prefix=a/", "POST /ops/repos/deadletters/redrive?prefix=a%2F", "source?count=2&done=redrive&name=repos&ns=ops&skipped=0&tab=dead"},
		{"discard", "all=true", "DELETE /ops/repos/deadletters?all=true", "source?count=2&done=discard&name=repos&ns=ops&tab=dead"},
		{"discard", "key=k&at=2026-11-22T02:00:00Z", "DELETE /ops/repos/deadletters/k", "source?count=1&done=discard&name=repos&ns=ops&tab=dead"},
	} {
		w := do(page, "POST", "/"+c.action, form(page)+"&"+c.fields)
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
		if w := do(page, "POST", action, form(page, "key", "k", "at", "2026-11-22T01:59:59Z")); w.Code != http.StatusPreconditionFailed {
			t.Errorf("%s of a letter that a newer one has replaced: status %d", action, w.Code)
		}
		if w := do(page, "POST", action, form(page, "key", "k")); w.Code != http.StatusBadRequest {
			t.Errorf("%s of any letter of a key: status %d", action, w.Code)
		}
	}
	for _, call := range api.calls[before:] {
		if call.Method != http.MethodGet {
			t.Errorf("a refused form called %s %s", call.Method, call.URL)
		}
	}
	do(page, "POST", "/discard?all=true", form(page, "prefix", "a/"))
	if got := api.last(t, "DELETE").URL.RequestURI(); got != "/ops/repos/deadletters?prefix=a%2F" {
		t.Errorf("the query of a form changed the call: %s", got)
	}
	api.status = map[string]int{"POST /ops/repos/schedules/k/run": http.StatusPreconditionFailed}
	if w := do(page, "POST", "/run", form(page, "key", "k", "revision", "4")); w.Code != http.StatusPreconditionFailed || !strings.Contains(w.Body.String(), "The key has changed") {
		t.Errorf("an old revision: status %d: %s", w.Code, w.Body)
	}
	if w := do(page, "POST", "/cancel", form(page, "key", "k")); w.Code != http.StatusBadRequest {
		t.Errorf("cancel without a revision: status %d", w.Code)
	}
}

// A view asks for a page of keys, and holds a bounded number of bytes, whatever there is.
func TestViews_BoundedMemory(t *testing.T) {
	large := strings.Repeat("x", 200<<10)
	api := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		limit := r.URL.Query().Get("limit")
		switch {
		case strings.HasSuffix(r.URL.Path, "/schedules") || strings.HasSuffix(r.URL.Path, "/deadletters"):
			n := 0
			if _, err := fmt.Sscan(limit, &n); err != nil || n < 1 || n > maxListItems {
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
	for _, target := range views("k")[:5] {
		do(page, "GET", target, "") // connections, buffers
		var w *httptest.ResponseRecorder
		grown := heap.Allocated(func() { w = do(page, "GET", target, "") })
		if w.Code != http.StatusOK || grown > 24<<20 || w.Body.Len() > 256<<10 {
			t.Errorf("%s: status %d, %d bytes, allocated %d bytes in all", target, w.Code, w.Body.Len(), grown)
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

// The stream of events comes as the API sends it, from where the browser was.
func TestEvents_PassedOn(t *testing.T) {
	api := trouble("k", "x")
	w := do(serve(t, api), "GET", "/events?ns=ops&name=repos&last=e-1", "")
	if w.Header().Get("Content-Type") != "text/event-stream" || w.Body.String() != api.answers["GET /ops/repos/events"] || !w.Flushed {
		t.Errorf("%v %q", w.Header(), w.Body)
	}
	if got := api.last(t, "GET").Header.Get("Last-Event-ID"); got != "e-1" {
		t.Errorf("it follows from %q", got)
	}
	do(serve(t, api), "GET", "/events?ns=ops&name=repos&last=e-1", "", "Last-Event-ID", "e-2")
	if got := api.last(t, "GET").Header.Get("Last-Event-ID"); got != "e-2" {
		t.Errorf("again it follows from %q", got)
	}
}

// A stream ends soon after its caller has lost the right to it.
func TestEvents_EndWithTheRight(t *testing.T) {
	for name, revoke := range map[string]func(api *fakeAPI, gone *atomic.Bool){
		"the token":  func(api *fakeAPI, _ *atomic.Bool) { api.refuse("GET /ops/repos", http.StatusUnauthorized) },
		"the right":  func(api *fakeAPI, _ *atomic.Bool) { api.refuse("GET /ops/repos", http.StatusForbidden) },
		"the source": func(_ *fakeAPI, gone *atomic.Bool) { gone.Store(true) },
	} {
		t.Run(name, func(t *testing.T) {
			api, gone := trouble("k", "x"), &atomic.Bool{}
			endless := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				api.ServeHTTP(w, r)
				if strings.HasSuffix(r.URL.Path, "/events") {
					_ = http.NewResponseController(w).Flush()
					revoke(api, gone)
					<-r.Context().Done()
				}
			})
			server := httptest.NewServer(endless)
			defer server.Close()
			page := Handler(Backend{Base: server.URL, recheck: 20 * time.Millisecond, Sources: func(context.Context) ([]Source, error) {
				if gone.Load() {
					return nil, nil
				}
				return []Source{ops}, nil
			}})
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				do(page, "GET", "/events?ns=ops&name=repos", "")
			}()
			select {
			case <-ended:
			case <-time.After(30 * time.Second):
				t.Fatal("the stream goes on")
			}
		})
	}
}

// A value stands in quotes wherever it is part of an attribute: html.EscapeString is
// enough there, and between tags, and nowhere else.
func TestMarkup_ValuesStandInQuotes(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range regexp.MustCompile(`<[a-z]+[^<>"]*=%s|<%s|</%s|<(?:script|style)[^>]*>%s|\son\w+="|style="|constant\([a-z]`).FindAllString(string(source), -1) {
			if !strings.HasSuffix(file, "_test.go") {
				t.Errorf("%s has %q", file, bad)
			}
		}
	}
	if got := write(`<p title="%s">%s%s</p>`, `"><b>`, "<i>", markup("<b></b>")); got != `<p title="&#34;&gt;&lt;b&gt;">&lt;i&gt;<b></b></p>` {
		t.Errorf("got %s", got)
	}
}

// A key that waited for its turn is not the fault of a slow sink: the page asks when its
// delivery began.
func TestKey_BeganLate(t *testing.T) {
	for began, want := range map[string]string{
		`,"at":"2026-11-22T02:59:50Z"`: "the delivery began 10s ago, and the sink has not answered yet",
		`,"at":"2026-11-22T02:59:20Z"`: "the delivery began 40s ago, and delivery.timeout is 1m0s",
		"":                             "its delivery began late, at most 1m0s ago",
	} {
		api := trouble("k", "x")
		api.answers["GET /ops/repos/schedules/k"] = `{"key":"k","revision":1,"state":"inFlight","inFlight":true,"dueAt":"2026-11-22T02:00:00Z"}`
		delete(api.answers, "GET /ops/repos/deadletters/k")
		api.answers["GET /ops/repos/events"] = ": following\nid: e-1\n\n"
		if began != "" {
			api.answers["GET /ops/repos/events"] += "id: e-1\nevent: started\ndata: {\"key\":\"k\"" + began + ",\"attempt\":0}\n\n"
		}
		if w := do(serve(t, api), "GET", "/key?ns=ops&name=repos&key=k", ""); !strings.Contains(w.Body.String(), want) {
			t.Errorf("no %q in %s", want, w.Body)
		}
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
