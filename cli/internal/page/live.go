package page

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"

	"github.com/reschedule-dev/reschedule/sdk"
)

// liveRow is an event in the list; page.js makes the same.
type liveRow struct {
	*sdk.Live
	Badge   badge
	Details string
}

// live shows what happens now. Without JavaScript it is what happened lately.
func (h *handler) live(r *http.Request) (*view, error) {
	s, c, err := h.call(r)
	if err != nil {
		return nil, err
	}
	events, last, _ := c.Remembered(r.Context()) // without them it says that there are none
	var rows []liveRow
	for _, e := range slices.Backward(events[max(0, len(events)-eventsMost):]) {
		row := liveRow{Live: e, Badge: badge{"idle", "scheduled"}}
		switch e.Kind {
		case sdk.KeyStarted:
			row.Badge = badge{"busy", "started"}
			if e.Attempt > 0 {
				row.Details = "after " + plural(e.Attempt, "failure", "failures") + " in a row"
			}
		case sdk.KeyOutcome:
			row.Badge, row.Details = result(e.Result), status(e.Status, "")
		}
		rows = append(rows, row)
	}
	return &view{name: "live", Title: "Live · " + s.Namespace + "/" + s.Name, Crumbs: above(s), Source: s, Body: struct {
		Rows   []liveRow
		Stream string
	}{rows, href("events", s, "last", cmp.Or(last, "0"))}}, nil
}

// events passes the live events of a source on, from where the browser was.
func (h *handler) events(w http.ResponseWriter, r *http.Request) {
	_, c, err := h.call(r)
	if err != nil {
		fail(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	if out.Flush() != nil {
		return
	}
	for e, err := range c.Follow(r.Context(), cmp.Or(r.Header.Get("Last-Event-ID"), r.FormValue("last"))) {
		if err != nil {
			return // the browser connects again, and is told why not
		}
		data, err := json.Marshal(e)
		if err != nil {
			return
		}
		if _, err := fmt.Fprintf(w, "id: %s\nevent: %s\ndata: %s\n\n", e.ID, e.Kind, data); err != nil || out.Flush() != nil {
			return
		}
	}
}
