package page

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// changes are what a form can do, by its action. They return the address of the view that shows it.
var changes = map[string]func(*http.Request, *Source, *sdk.Client) (string, error){
	"run": run, "cancel": cancel, "redrive": redrive, "discard": discard,
}

// change makes a change and leads the browser to the view that shows it.
func (h *handler) change(w http.ResponseWriter, r *http.Request, make func(*http.Request, *Source, *sdk.Client) (string, error)) {
	ctx, end := context.WithTimeout(r.Context(), changeTime)
	defer end()
	r = r.WithContext(ctx)
	r.URL.RawQuery = "" // it must not change what a form says
	s, c, err := h.call(r)
	var next string
	if err == nil {
		next, err = make(r, s, c)
	}
	if err != nil {
		fail(w, err)
		return
	}
	http.Redirect(w, r, next, http.StatusSeeOther)
}

// asSeen reads the key of a form, and the revision that the user saw.
func asSeen(r *http.Request) (key string, at sdk.Condition, err error) {
	if key, err = validKey(r); err != nil {
		return "", at, err
	}
	revision, err := strconv.ParseUint(r.FormValue("revision"), 10, 64)
	if err != nil {
		return "", at, refuse(http.StatusBadRequest, "revision: it is missing, so the page cannot know which occurrence is meant")
	}
	return key, sdk.IfRevision(revision), nil
}

// run makes a key due now, if it is as the user saw it.
func run(r *http.Request, s *Source, c *sdk.Client) (string, error) {
	key, at, err := asSeen(r)
	if err == nil {
		_, err = c.Run(r.Context(), key, at)
	}
	return href("key", s, "key", key, "done", "run"), err
}

// cancel removes a key, if it is as the user saw it.
func cancel(r *http.Request, s *Source, c *sdk.Client) (string, error) {
	key, at, err := asSeen(r)
	if err == nil {
		err = c.Cancel(r.Context(), key, at)
	}
	return href("key", s, "key", key, "done", "cancel"), err
}

// sameLetter refuses when the key's dead letter is not the letter that the user saw: a newer
// letter has taken its place. The API has no condition for it, so a letter that comes between
// this look and the change is not seen.
func sameLetter(r *http.Request, c *sdk.Client, key string) error {
	if r.FormValue("at") == "" {
		return refuse(http.StatusBadRequest, "at: it is missing, so the page cannot know which dead letter is meant")
	}
	l, err := c.DeadLetter(r.Context(), key)
	if err == nil && stamp(l.At) != r.FormValue("at") {
		err = refuse(http.StatusPreconditionFailed, "a newer dead letter has taken its place")
	}
	return err
}

// stamp is the time of a dead letter, which tells it from others of its key.
func stamp(at time.Time) string { return at.UTC().Format(time.RFC3339Nano) }

// redrive delivers dead letters again: of one key, of keys with a prefix, or all.
func redrive(r *http.Request, s *Source, c *sdk.Client) (string, error) {
	if key := r.FormValue("key"); key != "" {
		err := sameLetter(r, c, key)
		if err == nil {
			err = c.Redrive(r.Context(), key, sdk.RedriveOptions{})
		}
		return href("key", s, "key", key, "done", "redrive"), err
	}
	many := func() (int, error) { return c.RedrivePrefix(r.Context(), r.FormValue("prefix"), sdk.RedriveOptions{}) }
	if r.FormValue("all") == "true" {
		many = func() (int, error) { return c.RedriveAll(r.Context(), sdk.RedriveOptions{}) }
	}
	n, err := many()
	return href("source", s, "tab", "dead", "done", "redrive", "count", n), err
}

// discard removes dead letters: of one key, of keys with a prefix, or all.
func discard(r *http.Request, s *Source, c *sdk.Client) (string, error) {
	many := func() (int, error) { return c.DiscardPrefix(r.Context(), r.FormValue("prefix")) }
	if key := r.FormValue("key"); key != "" {
		if err := sameLetter(r, c, key); err != nil {
			return "", err
		}
		many = func() (int, error) { return 1, c.Discard(r.Context(), key) }
	} else if r.FormValue("all") == "true" {
		many = func() (int, error) { return c.DiscardAll(r.Context()) }
	}
	n, err := many()
	return href("source", s, "tab", "dead", "done", "discard", "count", n), err
}

// done says what the change did that led to this view, "" without one.
func done(r *http.Request) string {
	n, err := strconv.Atoi(r.FormValue("count"))
	switch r.FormValue("done") {
	case "run":
		return "The key is due now. It runs as soon as its turn comes."
	case "cancel":
		return "The key is cancelled."
	case "redrive":
		if err != nil {
			return "The event is scheduled again, with a new id."
		}
		return plural(n, "event is", "events are") + " scheduled again, with new ids. A dead letter whose key has something newer stays."
	case "discard":
		return plural(n, "dead letter was", "dead letters were") + " discarded."
	}
	return ""
}

// question is what a user is asked before a change that cannot be taken back, or that is large.
type question struct {
	Key, Text  string
	Button     form
	Keep, Back string // the way out
}

// confirm asks.
func (h *handler) confirm(r *http.Request) (*view, error) {
	s, c, err := h.call(r)
	if err != nil {
		return nil, err
	}
	key, what := r.FormValue("key"), r.FormValue("what")
	v := &view{name: "confirm", Crumbs: above(s), Source: s}
	switch {
	case what == "cancel" && key != "":
		v.Title = "Cancel this key?"
		v.Body = question{key, "What waits is removed and will not be delivered. A delivery under way may finish.",
			newForm(s, "cancel", "Cancel the key", "danger", "", "key", key, "revision", r.FormValue("revision")), "Keep it", href("key", s, "key", key)}
	case what == "discard" && key != "":
		v.Title = "Discard this dead letter?"
		v.Body = question{key, "Its event is removed for good.",
			newForm(s, "discard", "Discard", "danger", "", "key", key, "at", r.FormValue("at")), "Keep it", href("source", s, "tab", "dead")}
	case what == "redrive" || what == "discard":
		return v, confirmMany(r, v, c, what)
	default:
		return nil, refuse(http.StatusBadRequest, "what: it is not one of cancel, discard, redrive")
	}
	return v, nil
}

// confirmMany asks with the count before all dead letters, or all with a prefix, change.
func confirmMany(r *http.Request, v *view, c *sdk.Client, what string) error {
	prefix := r.FormValue("prefix")
	items, next, err := c.DeadLettersPage(r.Context(), sdk.ListOptions{Prefix: prefix, PageSize: keysAhead})
	if err != nil {
		return err
	}
	count := plural(len(items), "dead letter", "dead letters")
	if next != "" {
		count = "more than " + count
	}
	about := "This is about " + count + " of " + v.Source.Namespace + "/" + v.Source.Name
	which := []any{"all", "true"}
	if prefix != "" {
		about, which = about+" whose key begins with "+prefix, []any{"prefix", prefix}
	}
	q := question{Keep: "Leave them", Back: href("source", v.Source, "tab", "dead", "prefix", prefix)}
	if what == "redrive" {
		v.Title, q.Text = "Deliver "+count+" again?", about+". Each becomes a new occurrence of its key, due now, with a new id, unless the key has something newer."
		q.Button = newForm(v.Source, "redrive", "Deliver them again", "primary", "", which...)
	} else {
		v.Title, q.Text = "Discard "+count+"?", about+". Their events are removed for good."
		q.Button = newForm(v.Source, "discard", "Discard them", "danger", "", which...)
	}
	v.Body = q
	return nil
}
