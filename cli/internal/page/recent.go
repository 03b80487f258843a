package page

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

const (
	// eventsMost bounds the events that a view looks at, timesMost the keys whose history
	// it reads for their lateness.
	eventsMost = 1000
	timesMost  = 24
	// replayTime bounds how long the buffered events may take, should no new one come.
	replayTime = 250 * time.Millisecond
	// eventLine bounds a line of the stream: a key of 512 bytes, escaped, and more.
	eventLine = 16 << 10
)

// event is one of the events of a source.
type event struct {
	ID, Kind string    // not in its data
	Key      string    `json:"key"`
	At       time.Time `json:"at"`
	DueAt    time.Time `json:"dueAt"`
	Attempt  uint32    `json:"attempt"`
	Result   string    `json:"result"`
	Status   int       `json:"status"`
}

// recent is what the API remembers of the last hour.
type recent struct {
	events []event // oldest first
	last   string  // the id to follow from
	since  time.Time
	late   []time.Duration // of the last runs, sorted
}

// follow opens the stream of a source behind an event, or "" for the next ones.
func (h *handler) follow(ctx context.Context, s *Source, last string) (*http.Response, error) {
	r, err := h.request(ctx, apiCall{method: http.MethodGet, source: s, path: "/events"})
	if err != nil {
		return nil, err
	}
	if last != "" {
		r.Header.Set("Last-Event-ID", last)
	}
	return h.do(r)
}

// readEvents calls take with each event, and with the ids that come without one, until
// it returns false or the stream ends.
func readEvents(body io.Reader, take func(event) bool) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, eventLine)
	var e event
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			e.ID = value
		case "event":
			e.Kind = value
		case "data":
			_ = json.Unmarshal([]byte(value), &e) // an event of a kind that this page does not know
		case "":
			if lines.Text() == "" {
				if !take(e) {
					return
				}
				e = event{}
			}
		}
	}
}

// remembered reads the events that the API still has, and the id to follow from.
func (h *handler) remembered(ctx context.Context, s *Source) (events []event, last string) {
	resp, err := h.follow(ctx, s, "")
	if err != nil {
		return nil, "" // the view says that nothing is known
	}
	readEvents(resp.Body, func(e event) bool {
		last = e.ID
		return false
	})
	resp.Body.Close()
	replay, stop := context.WithTimeout(ctx, replayTime)
	defer stop()
	resp, err = h.follow(replay, s, "0") // no event has this id: the API begins with the oldest
	if err != nil {
		return nil, last
	}
	defer resp.Body.Close()
	readEvents(resp.Body, func(e event) bool {
		if e.Kind != "" {
			events = append(events, e)
		}
		return e.ID != last && len(events) < eventsMost
	})
	return events, last
}

// started is when the delivery of the key began; zero: the API does not remember it.
func (h *handler) started(ctx context.Context, s *Source, key string) (at time.Time) {
	events, _ := h.remembered(ctx, s)
	for _, e := range events {
		switch {
		case e.Key == key && e.Kind == "started":
			at = e.At
		case e.Key == key && e.Kind == "outcome":
			at = time.Time{}
		}
	}
	return at
}

// recent reads the events that the API still has. It has some from the first look on,
// while the looks are not further apart than some minutes.
func (h *handler) recent(ctx context.Context, s *Source) recent {
	var found recent
	found.events, found.last = h.remembered(ctx, s)
	if len(found.events) > 0 {
		found.since = found.events[0].At
	}
	found.late = h.lateness(ctx, s, found.events)
	return found
}

// lateness asks how late the last runs of different keys were.
func (h *handler) lateness(ctx context.Context, s *Source, events []event) []time.Duration {
	var keys []string
	for _, e := range slices.Backward(events) {
		if e.Kind == "outcome" && !slices.Contains(keys, e.Key) {
			keys = append(keys, e.Key)
		}
		if len(keys) == timesMost {
			break
		}
	}
	late := make([]time.Duration, len(keys))
	Each(len(keys), func(i int) {
		late[i] = -1
		var past history
		if h.get(ctx, s, "/schedules/"+segment(keys[i])+"/history", &past) != nil {
			return
		}
		for _, o := range past.Items {
			if o.Attempt <= 1 { // later attempts are late because the sink failed
				if d, err := time.ParseDuration(o.Lateness); err == nil {
					late[i] = d
				}
				return
			}
		}
	})
	late = slices.DeleteFunc(late, func(d time.Duration) bool { return d < 0 })
	slices.Sort(late)
	return late
}

// liveView shows what happens now. Without JavaScript it is what happened lately.
func (h *handler) liveView(r *http.Request) (*view, error) {
	s, err := h.source(r)
	if err != nil {
		return nil, err
	}
	found := h.recent(r.Context(), s)
	now := h.Now()
	var rows []markup
	for _, e := range slices.Backward(found.events) {
		if len(rows) == 200 {
			break
		}
		rows = append(rows, eventLineOf(s, &e, now))
	}
	body := write(`<div class="title"><div><h1>Live events</h1><p class="sub">%s/%s</p></div><div class="actions"><button class="primary" id="pause" type="button" hidden aria-pressed="false">Pause</button><noscript><a class="button" href="%s">Load again</a></noscript></div></div>
%s<p class="hint" id="stream-state" role="status" data-stream="%s">Events that the adapter still remembers, newest first.</p>
<table class="rows"><caption class="unseen">Events</caption><thead><tr><th scope="col">At</th><th scope="col">What</th><th scope="col">Key</th><th scope="col">Details</th></tr></thead><tbody id="stream">%s%s</tbody></table>`,
		s.Namespace, s.Name, href("live", of(s)...), banner(s), href("events", of(s, "last", cmp.Or(found.last, "0"))...), join(rows),
		when(len(rows) == 0, `<tr id="stream-empty"><td class="empty" colspan="4">Nothing has happened since the first look. The adapter keeps events while this page is used.</td></tr>`))
	return &view{title: "Live · " + s.Namespace + "/" + s.Name, crumbs: []crumb{sourceCrumb(s)}, body: body}, nil
}

// eventLineOf is an event in the list; page.js makes the same.
func eventLineOf(s *Source, e *event, now time.Time) markup {
	what, details := markup(""), markup("")
	switch e.Kind {
	case "scheduled":
		what, details = badge("idle", "scheduled"), write("due %s", instant(e.DueAt, now))
	case "started":
		what = badge("busy", "started")
		if e.Attempt > 0 {
			details = write("after %s in a row", plural(int64(e.Attempt), "failure", "failures"))
		}
	case "outcome":
		what, details = result(e.Result), status(e.Status, "")
	}
	return write(`<tr><td data-label="At"><time datetime="%s">%s</time></td><td data-label="What">%s</td><th scope="row"><a class="keyname" href="%s">%s</a></th><td data-label="Details">%s</td></tr>`,
		e.At.UTC().Format(time.RFC3339Nano), e.At.UTC().Format("15:04:05.000"), what, href("key", of(s, "key", e.Key)...), text(e.Key), details)
}

const (
	// eventWriteTime is how long a browser may take to read what was sent.
	eventWriteTime = 10 * time.Second
	// recheckTime is how long a stream may outlive the right to it: the API asks for the
	// token only at its beginning.
	recheckTime = 10 * time.Second
)

// watchRight ends a stream when its caller may not look at the source any more.
func (h *handler) watchRight(r *http.Request, s *Source, end context.CancelFunc) {
	tick := time.NewTicker(cmp.Or(h.recheck, recheckTime))
	defer tick.Stop()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(r.Context(), viewTime)
		_, err := h.source(r.WithContext(ctx))
		if err == nil {
			err = h.get(ctx, s, "", nil)
		}
		cancel()
		// The browser connects again, and is told why not.
		if err != nil && !isStatus(err, http.StatusBadGateway) && !isStatus(err, http.StatusServiceUnavailable) {
			end()
			return
		}
	}
}

// serveEvents passes the stream of a source on.
func (h *handler) serveEvents(w http.ResponseWriter, r *http.Request) {
	s, err := h.source(r)
	if err != nil {
		fail(w, err)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	go h.watchRight(r.WithContext(ctx), s, cancel)
	resp, err := h.follow(ctx, s, cmp.Or(r.Header.Get("Last-Event-ID"), r.FormValue("last")))
	if err != nil {
		fail(w, err)
		return
	}
	defer resp.Body.Close()
	out := http.NewResponseController(w)
	_ = out.SetReadDeadline(time.Time{}) // the request's context ends with the browser
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	buf := make([]byte, eventLine)
	for {
		_ = out.SetWriteDeadline(time.Now().Add(eventWriteTime)) // HTTP always can
		if out.Flush() != nil {
			return
		}
		n, err := resp.Body.Read(buf)
		_ = out.SetWriteDeadline(time.Now().Add(eventWriteTime))
		if _, failed := w.Write(buf[:n]); err != nil || failed != nil {
			return
		}
	}
}
