package page

import (
	"net/http"
	"strconv"
	"time"
)

// changes are what a form can do, by the last part of its address.
var changes = map[string]func(*handler, *http.Request, *Source) (string, error){
	"run": run, "cancel": cancel, "redrive": redrive, "discard": discard,
}

// run makes a key due now, if it is as the user saw it.
func run(h *handler, r *http.Request, s *Source) (string, error) {
	k, err := validKey(r)
	if err != nil {
		return "", err
	}
	if err := h.call(r.Context(), apiCall{method: http.MethodPost, source: s, path: "/schedules/" + segment(k) + "/run", revision: r.FormValue("revision")}, nil); err != nil {
		return "", err
	}
	return href("key", of(s, "key", k, "done", "run")...), nil
}

// cancel removes a key, if it is as the user saw it.
func cancel(h *handler, r *http.Request, s *Source) (string, error) {
	k, err := validKey(r)
	if err != nil {
		return "", err
	}
	if r.FormValue("revision") == "" {
		return "", refuse(http.StatusBadRequest, "revision: it is missing, so the page cannot know which occurrence to cancel")
	}
	if err := h.call(r.Context(), apiCall{method: http.MethodDelete, source: s, path: "/schedules/" + segment(k), revision: r.FormValue("revision")}, nil); err != nil {
		return "", err
	}
	return href("key", of(s, "key", k, "done", "cancel")...), nil
}

// selected says which dead letters a form is about: all=true, or a prefix.
func selected(r *http.Request) []string {
	if r.FormValue("all") == "true" {
		return []string{"all", "true"}
	}
	return []string{"prefix", r.FormValue("prefix")}
}

// sameLetter refuses when the key's dead letter is not the letter that the user saw: a newer
// letter has taken its place. The API has no condition for it, so a letter that comes between
// this look and the change is not seen.
func (h *handler) sameLetter(r *http.Request, s *Source, k string) error {
	if r.FormValue("at") == "" {
		return refuse(http.StatusBadRequest, "at: it is missing, so the page cannot know which dead letter is meant")
	}
	var l letterRow
	if err := h.get(r.Context(), s, "/deadletters/"+segment(k), &l); err != nil {
		return err
	}
	if stamp(l.At) != r.FormValue("at") {
		return refuse(http.StatusPreconditionFailed, "a newer dead letter has taken its place")
	}
	return nil
}

// stamp is the time of a dead letter, which tells it from others of its key.
func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// redrive delivers dead letters again: of one key, of keys with a prefix, or all.
func redrive(h *handler, r *http.Request, s *Source) (string, error) {
	if k := r.FormValue("key"); k != "" {
		if err := h.sameLetter(r, s, k); err != nil {
			return "", err
		}
		if err := h.call(r.Context(), apiCall{method: http.MethodPost, source: s, path: "/deadletters/" + segment(k) + "/redrive"}, nil); err != nil {
			return "", err
		}
		return href("key", of(s, "key", k, "done", "redrive")...), nil
	}
	var answer struct {
		Redriven int64 `json:"redriven"`
		Skipped  int64 `json:"skipped"`
	}
	err := h.call(r.Context(), apiCall{method: http.MethodPost, source: s, path: "/deadletters/redrive", query: query(selected(r)...)}, &answer)
	return href("source", of(s, "tab", "dead", "done", "redrive", "count", strconv.FormatInt(answer.Redriven, 10), "skipped", strconv.FormatInt(answer.Skipped, 10))...), err
}

// discard removes dead letters: of one key, of keys with a prefix, or all.
func discard(h *handler, r *http.Request, s *Source) (string, error) {
	var answer struct {
		Deleted int64 `json:"deleted"`
	}
	if k := r.FormValue("key"); k != "" {
		if err := h.sameLetter(r, s, k); err != nil {
			return "", err
		}
		if err := h.call(r.Context(), apiCall{method: http.MethodDelete, source: s, path: "/deadletters/" + segment(k)}, nil); err != nil {
			return "", err
		}
		answer.Deleted = 1
	} else if err := h.call(r.Context(), apiCall{method: http.MethodDelete, source: s, path: "/deadletters", query: query(selected(r)...)}, &answer); err != nil {
		return "", err
	}
	return href("source", of(s, "tab", "dead", "done", "discard", "count", strconv.FormatInt(answer.Deleted, 10))...), nil
}

// done says what the change did that led to this view.
func done(r *http.Request) markup {
	n, _ := strconv.ParseInt(r.FormValue("count"), 10, 64)
	var m markup
	switch r.FormValue("done") {
	case "run":
		m = "The key is due now. It runs as soon as its turn comes."
	case "cancel":
		m = "The key is cancelled."
	case "redrive":
		m = "The event is scheduled again, with a new id."
		if n > 0 {
			m = write("%s scheduled again, with new ids.", plural(n, "event is", "events are"))
		}
		if skipped, _ := strconv.ParseInt(r.FormValue("skipped"), 10, 64); skipped > 0 {
			m = write("%s scheduled again; %s because the key has something newer.", plural(n, "event is", "events are"), plural(skipped, "dead letter stays", "dead letters stay"))
		}
	case "discard":
		m = write("%s discarded.", plural(n, "dead letter was", "dead letters were"))
	default:
		return ""
	}
	return write(`<p class="flash" role="status">%s</p>`, m)
}

// confirmView asks before a change that cannot be taken back, or that is large.
func (h *handler) confirmView(r *http.Request) (*view, error) {
	s, err := h.source(r)
	if err != nil {
		return nil, err
	}
	k, what := r.FormValue("key"), r.FormValue("what")
	back := href("key", of(s, "key", k)...)
	var head, body, button markup
	switch {
	case what == "cancel" && k != "":
		head, body = "Cancel this key?", "What waits is removed and will not be delivered. A delivery under way may finish."
		button = h.form(s, "cancel", "Cancel the key", "", "danger", "key", k, "revision", r.FormValue("revision"))
	case what == "discard" && k != "":
		head, body = "Discard this dead letter?", "Its event is removed for good."
		button = h.form(s, "discard", "Discard", "", "danger", "key", k, "at", r.FormValue("at"))
		back = href("source", of(s, "tab", "dead")...)
	case what == "redrive" || what == "discard":
		return h.confirmMany(r, s, what)
	default:
		return nil, refuse(http.StatusBadRequest, "what: it is not one of cancel, discard, redrive")
	}
	return &view{title: string(head), crumbs: []crumb{sourceCrumb(s)}, body: write(
		`<section class="notice"><h1>%s</h1><p class="keyname">%s</p><p>%s</p><div class="actions">%s<a class="button" href="%s">Keep it</a></div></section>`,
		head, text(k), body, button, back)}, nil
}

// confirmMany asks with the count before all dead letters, or all with a prefix, change.
func (h *handler) confirmMany(r *http.Request, s *Source, what string) (*view, error) {
	prefix := r.FormValue("prefix")
	items, next, err := list[letterRow](r.Context(), h, s, "/deadletters", query("prefix", prefix, "limit", strconv.Itoa(maxListItems)))
	if err != nil {
		return nil, err
	}
	count := plural(int64(len(items)), "dead letter", "dead letters")
	if next != "" {
		count = "more than " + count
	}
	which, fields := markup(""), []string{"all", "true"}
	if prefix != "" {
		which, fields = write(" whose key begins with %s", text(prefix)), []string{"prefix", prefix}
	}
	head, body, button := write("Discard %s?", count), markup("Their events are removed for good."), h.form(s, "discard", "Discard them", "", "danger", fields...)
	if what == "redrive" {
		head, body, button = write("Deliver %s again?", count), "Each becomes a new occurrence of its key, due now, with a new id, unless the key has something newer.", h.form(s, "redrive", "Deliver them again", "", "primary", fields...)
	}
	return &view{title: string(what), crumbs: []crumb{sourceCrumb(s)}, body: write(
		`<section class="notice"><h1>%s</h1><p>This is about %s of %s%s. %s</p><div class="actions">%s<a class="button" href="%s">Leave them</a></div></section>`,
		head, count, s.Namespace+"/"+s.Name, which, body, button, href("source", of(s, "tab", "dead", "prefix", prefix)...))}, nil
}
