package blackbox

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var (
	listed   = declare("listed", "")
	counted  = declare("counted", "")
	idle     = declare("idle", "")
	wiped    = declare("wiped", "")
	narrowed = declare("narrowed", "limits: {maxPending: 3}")
)

// pages reads a list to its end.
func (s *source) pages(t *testing.T, query string) (all []harness.Schedule) {
	t.Helper()
	next := ""
	for {
		r := s.call(t, http.MethodGet, "/schedules?"+query+next, "")
		var page harness.Schedule
		if r.Into(t, &page); r.Status != http.StatusOK || page.Items == nil || page.Continue == nil {
			t.Fatalf("%s%s: %d %s", query, next, r.Status, r.Body)
		}
		all = append(all, page.Items...)
		if *page.Continue == "" {
			return all
		}
		next = "&continue=" + url.QueryEscape(*page.Continue)
	}
}

func keysOf(all []harness.Schedule) (keys []string) {
	for _, v := range all {
		keys = append(keys, v.Key)
	}
	return keys
}

// A list pages through all keys in both orders.
func TestList_PagesInBothOrders(t *testing.T) {
	t.Parallel()
	const n = 25
	var byKey []string
	for i := range n {
		key := fmt.Sprintf("list/%02d", i)
		byKey = append(byKey, key)
		listed.put(t, key, fmt.Sprintf(`{"delay":%d}`, 10_000-100*(i%10)-i))
	}
	listed.put(t, "other/€ &=", `{"delay":"1h"}`)
	for _, limit := range []int{1, 7, 24, 25, 26, 1000} {
		if d := cmp.Diff(byKey, keysOf(listed.pages(t, fmt.Sprintf("prefix=list%%2F&limit=%d", limit)))); d != "" {
			t.Errorf("by key, %d a page: %s", limit, d)
		}
		due := listed.pages(t, fmt.Sprintf("order=due&prefix=list%%2F&limit=%d", limit))
		if len(due) != n || !slices.IsSortedFunc(due, func(a, b harness.Schedule) int { return a.DueAt.Compare(b.DueAt) }) {
			t.Errorf("by due time, %d a page: %v", limit, keysOf(due))
		}
	}
	if all := listed.pages(t, "order=key"); len(all) != n+1 || all[n].Key != "other/€ &=" {
		t.Errorf("all: %v", keysOf(all))
	}
	if some := listed.pages(t, "prefix="+url.QueryEscape("other/€ &")); len(some) != 1 {
		t.Errorf("by a prefix with other characters: %v", keysOf(some))
	}
	if none := listed.pages(t, "prefix=absent"); len(none) != 0 {
		t.Errorf("%v", keysOf(none))
	}
	one := listed.pages(t, "prefix=list%2F00")[0]
	if g := listed.get(t, "list/00"); fmt.Sprint(deref(one)) != fmt.Sprint(deref(g)) {
		t.Errorf("an item is what GET shows: %+v, %+v", one, g)
	}
	for _, query := range []string{"limit=0", "limit=1001", "limit=x", "limit=-1", "order=age", "continue=x", "prefx=a", "limit=1&limit=2"} {
		problem(t, listed.call(t, http.MethodGet, "/schedules?"+query, ""), http.StatusBadRequest, "invalid_argument")
	}
}

// A list has a hundred keys a page by default.
func TestList_100KeysAPageByDefault(t *testing.T) {
	t.Parallel()
	var items []string
	for i := range 150 {
		items = append(items, fmt.Sprintf(`{"key":"hundred/%d","delay":"1h"}`, i))
	}
	bulk.call(t, http.MethodPost, "/schedules", `{"items":[`+strings.Join(items, ",")+`]}`)
	var page harness.Schedule
	if bulk.call(t, http.MethodGet, "/schedules?prefix=hundred", "").Into(t, &page); len(page.Items) != 100 || *page.Continue == "" {
		t.Errorf("%d items, continue %q", len(page.Items), *page.Continue)
	}
}

// A bulk delete needs a prefix or all.
func TestBulkDelete_NeedsAPrefixOrAll(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"a/1", "a/2", "b/1", "b%/1"} {
		wiped.put(t, key, `{"delay":"1h"}`)
	}
	for _, query := range []string{"", "?prefix=", "?all=false", "?all=", "?all=yes", "?prefix=a&all=true", "?Prefix=a"} {
		problem(t, wiped.call(t, http.MethodDelete, "/schedules"+query, ""), http.StatusBadRequest, "invalid_argument")
	}
	deleted := func(query string, n int) {
		t.Helper()
		var v harness.Schedule
		if r := wiped.call(t, http.MethodDelete, "/schedules?"+query, ""); r.Status != http.StatusOK {
			t.Errorf("%s: %d %s", query, r.Status, r.Body)
		} else if r.Into(t, &v); v.Deleted == nil || *v.Deleted != n {
			t.Errorf("%s: %s, want %d", query, r.Body, n)
		}
	}
	deleted("prefix=a%2F", 2)
	deleted("prefix=a%2F", 0)
	deleted("prefix=b%25", 1)
	// Due keys count as well, keys that are only in flight do not.
	answer, release := hold()
	wiped.answer("c/flying", answer)
	wiped.answer("c/due", script(status(500, "Retry-After", "900"), status(503, "Retry-After", "900")))
	wiped.put(t, "c/flying", "")
	wiped.put(t, "c/due", "")
	wiped.next(t, "c/flying")
	wiped.next(t, "c/due")
	eventually(t, "c/due is due again", func() bool { return wiped.get(t, "c/due").State == "due" })
	deleted("prefix=c%2F", 1)
	if _, ok := wiped.look(t, "c/flying"); ok {
		t.Error("a key in flight is there after its deletion")
	}
	release <- status(200, "Reschedule-After", "1h")
	eventually(t, "nothing is in flight", func() bool { return wiped.counts(t).InFlight == 0 })
	deleted("all=true", 1)
	if c := wiped.counts(t); c.Pending != 0 {
		t.Errorf("%+v", c)
	}
}

// The counts are of keys that wait, are due and are in flight.
func TestCounts_WaitingDueAndInFlight(t *testing.T) {
	t.Parallel()
	if r := idle.call(t, http.MethodGet, "", ""); string(r.Body) != `{"pending":0,"due":0,"inFlight":0,"retrying":0,"deadLetters":0,"nextDueAt":null,"oldestDueAt":null,"watched":0}`+"\n" {
		t.Errorf("idle: %s", r.Body)
	}
	far := counted.put(t, "far", `{"delay":"2h"}`)
	near := counted.put(t, "near", `{"delay":"1h"}`)
	answer, release := hold()
	counted.answer("flying", answer)
	counted.answer("retrying", script(status(503, "Retry-After", "900")))
	counted.put(t, "flying", "")
	retrying := counted.put(t, "retrying", "")
	counted.next(t, "flying")
	counted.next(t, "retrying")
	eventually(t, "counts", func() bool {
		c := counted.counts(t)
		return c.Pending == 3 && c.Due == 1 && c.InFlight == 1 &&
			c.NextDueAt != nil && c.NextDueAt.Equal(near.DueAt) && c.OldestDueAt != nil && c.OldestDueAt.Equal(retrying.DueAt)
	})
	for _, order := range []string{"key", "due"} {
		states := map[string]string{}
		for _, v := range counted.pages(t, "limit=1&order="+order) {
			states[v.Key] = v.State
		}
		if d := cmp.Diff(map[string]string{"far": "waiting", "near": "waiting", "flying": "inFlight", "retrying": "due"}, states); d != "" {
			t.Errorf("by %s: %s", order, d)
		}
	}
	// Behind a delivery under way something newer waits: it is both.
	counted.put(t, "flying", `{"delay":"3h"}`)
	if c := counted.counts(t); c.Pending != 4 || c.InFlight != 1 {
		t.Errorf("with one behind: %+v", c)
	}
	counted.cancel(t, "near")
	if c := counted.counts(t); !c.NextDueAt.Equal(far.DueAt) || c.Pending != 3 {
		t.Errorf("after a DELETE: %+v", c)
	}
	release <- status(204)
	eventually(t, "nothing is in flight", func() bool { return counted.counts(t).InFlight == 0 })
	counted.call(t, http.MethodDelete, "/schedules?all=true", "")
	if c := counted.counts(t); c.Pending != 0 || c.Due != 0 || c.NextDueAt != nil || c.OldestDueAt != nil {
		t.Errorf("at the end: %+v", c)
	}
}

// Over maxPending a new key is 429, and replacing is allowed.
func TestMaxPending_NewKeyIs429ReplacingIsNot(t *testing.T) {
	t.Parallel()
	for i := range 3 {
		narrowed.put(t, fmt.Sprint(i), `{"delay":"1h"}`)
	}
	r := narrowed.call(t, http.MethodPut, "/schedules/4", `{"delay":"1h"}`)
	problem(t, r, http.StatusTooManyRequests, "quota_exceeded")
	if r.Header.Get("Retry-After") == "" {
		t.Error("429 without Retry-After")
	}
	r = narrowed.call(t, http.MethodPost, "", `{}`, "Ce-Id", "1", "Ce-Type", "t", "Ce-Source", "/s", "Ce-Specversion", "1.0", "Ce-Rescheduleafter", "1h")
	problem(t, r, http.StatusTooManyRequests, "quota_exceeded")
	narrowed.put(t, "1", `{"delay":"2h"}`)
	var v harness.Schedule
	narrowed.call(t, http.MethodPost, "/schedules", `{"items":[{"key":"2","delay":"1h"},{"key":"5","delay":"1h"}]}`).Into(t, &v)
	if v.Items[0].Status != 200 || v.Items[1].Status != 429 || v.Items[1].Code != "quota_exceeded" {
		t.Errorf("%+v", v.Items)
	}
	narrowed.cancel(t, "0")
	narrowed.put(t, "4", `{"delay":"1h"}`)
}

// An occurrence that expires is dropped within 5 seconds.
func TestExpiry_DropsWithin5Seconds(t *testing.T) {
	t.Parallel()
	if v := plain.put(t, "expire/past", `{"delay":"0s","expiresAt":"2001-01-01T00:00:00Z"}`); v.Result != "created" {
		t.Errorf("%+v", v)
	}
	if _, ok := plain.look(t, "expire/past"); ok {
		t.Error("accepted and dropped, but there")
	}
	start := time.Now()
	expires := start.Add(3 * time.Second) // the first attempt comes before, on a busy machine too
	listed := `{"delay":"1h","expiresAt":"` + expires.UTC().Format(time.RFC3339Nano) + `"}`
	plain.put(t, "expire/waiting", listed)
	// Retries included.
	plain.answer("expire/retrying", func(w http.ResponseWriter, _ *http.Request, _ *harness.Delivery) {
		w.Header().Set("Retry-After", "600")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	plain.put(t, "expire/retrying", `{"expiresAt":"`+expires.UTC().Format(time.RFC3339Nano)+`"}`)
	plain.next(t, "expire/retrying")
	for _, key := range []string{"expire/waiting", "expire/retrying"} {
		plain.gone(t, key)
		if early := time.Until(expires); early > 0 {
			t.Errorf("%s went %s before it expired", key, early)
		}
	}
	if took := time.Since(expires); took > 6*time.Second {
		t.Errorf("it took %s", took)
	}
	plain.passes(t, time.Now().Add(time.Second))
	if n := len(sink.Of("plain", "expire/retrying")) + len(sink.Of("plain", "expire/waiting")); n != 1 {
		t.Errorf("%d deliveries", n)
	}
}
