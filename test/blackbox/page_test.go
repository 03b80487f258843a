package blackbox

import (
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// pageFlags are the flags of an adapter with the page, and one source, which may store a mebibyte.
func pageFlags(t *testing.T, more ...string) []string {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "sources.yaml")
	if err := os.WriteFile(file, []byte(manifests(&source{name: "paged", spec: "limits: {maxBytes: 1Mi}"})), 0o600); err != nil {
		t.Fatal(err)
	}
	return harness.Flags(file, filepath.Join(dir, "data"), more...)
}

// look gets an address of the page as a browser does.
func look(t *testing.T, method, address, form string, headers ...string) *harness.Reply {
	t.Helper()
	if method == "POST" {
		headers = append(headers, "Content-Type", "application/x-www-form-urlencoded")
	}
	reply, err := harness.Do(t.Context(), method, address, form, headers...)
	if err != nil {
		t.Fatal(err)
	}
	return reply
}

// Where the schedule API is open to callers of the machine, so is the page; a web page of
// another origin reaches neither. Without --ui there is no page.
func TestPage_OpenAsTheAPI(t *testing.T) {
	t.Parallel()
	a := harness.Start(t, pageFlags(t, "--ui")...)
	if reply := look(t, "GET", a.Page, ""); reply.Status != http.StatusOK || !strings.Contains(string(reply.Body), namespace+"/</span>paged") {
		t.Errorf("the page: %d %s", reply.Status, reply.Body)
	}
	key := a.Page + "key?" + url.Values{"ns": {namespace}, "name": {"paged"}, "key": {"a/../b"}}.Encode()
	if reply := look(t, "PUT", a.URL+"/"+namespace+"/paged"+harness.KeyPath("a/../b"), `{"delay":"1h"}`); reply.Status != http.StatusCreated {
		t.Fatalf("PUT: %d %s", reply.Status, reply.Body)
	}
	body := string(look(t, "GET", key, "").Body)
	proof := regexp.MustCompile(`name="proof" value="(\w+)"`).FindStringSubmatch(body)
	if proof == nil {
		t.Fatalf("the key has no form:\n%s", body)
	}
	form := url.Values{"proof": {proof[1]}, "ns": {namespace}, "name": {"paged"}, "key": {"a/../b"}, "revision": {"1"}}.Encode()
	for _, headers := range [][]string{{"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}} {
		if reply := look(t, "POST", a.Page+"cancel", form, headers...); reply.Status != http.StatusForbidden {
			t.Errorf("%q: %d", headers, reply.Status)
		}
	}
	if reply := look(t, "POST", a.Page+"cancel", form, "Origin", strings.TrimSuffix(a.Page, "/page/")); reply.Status != http.StatusOK && reply.Status != http.StatusSeeOther {
		t.Errorf("cancel: %d %s", reply.Status, reply.Body)
	}
	if reply := look(t, "GET", a.URL+"/"+namespace+"/paged"+harness.KeyPath("a/../b"), ""); reply.Status != http.StatusNotFound {
		t.Errorf("the key is there after it was cancelled: %d", reply.Status)
	}
	if reply := look(t, "GET", shared.Admin+"/page/", ""); reply.Status != http.StatusNotFound || shared.Page != "" {
		t.Errorf("without --ui: %d, %q", reply.Status, shared.Page)
	}
}

// The page knows what only the metrics show: that a source has used up its bytes.
func TestPage_KnowsAFullQuota(t *testing.T) {
	t.Parallel()
	a := harness.Start(t, pageFlags(t, "--ui")...)
	at := a.URL + "/" + namespace + "/paged"
	view := a.Page + "source?" + url.Values{"ns": {namespace}, "name": {"paged"}}.Encode()
	event := `{"delay":"1h","event":{"data":"` + strings.Repeat("x", 249<<10) + `"}}`
	if body := look(t, "GET", view, "").Body; strings.Contains(string(body), "limits.maxBytes") {
		t.Errorf("an empty source: %s", body)
	}
	for _, key := range []string{"a", "b", "c", "d"} {
		if reply := look(t, "PUT", at+harness.KeyPath(key), event); reply.Status != http.StatusCreated {
			t.Fatalf("%s: %d %s", key, reply.Status, reply.Body)
		}
	}
	if body := look(t, "GET", view, "").Body; !strings.Contains(string(body), "has reached limits.maxBytes") {
		t.Errorf("a full source: %s", body)
	}
}

// With a token file the page needs the printed address, or a token. A token that is removed
// from the file ends what its sessions may do.
func TestPage_NeedsAToken(t *testing.T) {
	t.Parallel()
	tokens := filepath.Join(t.TempDir(), "tokens")
	write := func(lines string) {
		t.Helper()
		if err := os.WriteFile(tokens, []byte(lines), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("mine\nother\n")
	a := harness.Start(t, pageFlags(t, "--ui", "--token-file", tokens)...)
	page, secret, found := strings.Cut(a.Page, "?secret=")
	if !found || len(secret) < 20 {
		t.Fatalf("the address of the page is %q", a.Page)
	}
	view := page + "source?ns=" + namespace + "&name=paged"
	for _, address := range []string{page, view, page + "events?ns=" + namespace + "&name=paged", page + "?secret=x"} {
		if reply := look(t, "GET", address, "", "Authorization", "Bearer mine"); reply.Status != http.StatusUnauthorized && reply.Status != http.StatusForbidden {
			t.Errorf("%s without a session: %d", address, reply.Status)
		}
	}
	session := func(reply *harness.Reply) string {
		t.Helper()
		cookie, _, _ := strings.Cut(reply.Header.Get("Set-Cookie"), ";")
		if reply.Status != http.StatusOK || cookie == "" {
			t.Fatalf("no session: %d %s", reply.Status, reply.Body)
		}
		return cookie
	}
	printed := session(look(t, "GET", a.Page, ""))
	if reply := look(t, "GET", a.Page, ""); reply.Status != http.StatusForbidden {
		t.Errorf("the printed address worked twice: %d", reply.Status)
	}
	if reply := look(t, "POST", page+"login", "token=wrong"); reply.Status != http.StatusUnauthorized {
		t.Errorf("a wrong token: %d", reply.Status)
	}
	mine := session(look(t, "POST", page+"login", "token=mine"))
	for name, cookie := range map[string]string{"the printed address": printed, "a token": mine} {
		if reply := look(t, "GET", view, "", "Cookie", cookie); reply.Status != http.StatusOK {
			t.Errorf("a session of %s: %d %s", name, reply.Status, reply.Body)
		}
	}
	write("other\n")
	if ok, log := a.Reload(t); !ok {
		t.Fatal(log)
	}
	if reply := look(t, "GET", view, "", "Cookie", mine); reply.Status != http.StatusUnauthorized {
		t.Errorf("a session of a token that was removed: %d", reply.Status)
	}
	if reply := look(t, "GET", view, "", "Cookie", printed); reply.Status != http.StatusOK {
		t.Errorf("a session of the printed address: %d", reply.Status)
	}
}

// The page has no TLS, so other machines must not reach it.
func TestPage_LoopbackOnly(t *testing.T) {
	t.Parallel()
	for _, address := range []string{"0.0.0.0:0", "[::]:0", ":0"} {
		log := harness.Refused(t, append(pageFlags(t), "--ui", "--admin-listen", address)...)
		if !strings.Contains(log, "--admin-listen a loopback address") {
			t.Errorf("%s: %s", address, log)
		}
	}
}
