package api

import (
	"net/http"
	"strconv"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	// maxFollowers is how many callers may follow events at one time. A source, or a
	// peer, has a quarter of them, a namespace the half.
	maxFollowers = 64
	// heartbeat is how often a caller who follows receives something.
	heartbeat = 15 * time.Second
	// eventsTime ends a stream, so that a caller must be admitted anew. Last-Event-ID
	// goes on from there.
	eventsTime = 30 * time.Minute
	// eventWriteTime is how long a caller may take to read what was written.
	eventWriteTime = 10 * time.Second
	// eventsAtOnce is how many events are written at a time.
	eventsAtOnce = 32
)

var typeEvents = []string{"text/event-stream"}

// EndEvents ends all streams of events, which would hold up the end of a server.
func (h *Handler) EndEvents() { h.end.Do(func() { close(h.ending) }) }

// followEvents is GET {address}/events.
func followEvents(c *call) error {
	if err := c.noQuery(); err != nil {
		return err
	}
	settings := c.src.Spec()
	of, from := c.following.Claim(settings.Namespace, settings.Name), c.followers.Claim(Peer(c.r), Peer(c.r))
	defer of.Release()
	defer from.Release()
	if !of.TryGrow(1) || !from.TryGrow(1) {
		return schedule.Refuse(schedule.CodeUnavailable, "too many callers follow the events of %s, or events of any source from %s", settings.Path(), Peer(c.r))
	}
	after, resume := lastEvent(c.r.Header)
	f, whole, err := c.src.Follow(after, resume)
	if err != nil {
		return err
	}
	defer f.Close()
	h := c.w.Header()
	h["Content-Type"], h["Cache-Control"], h["X-Accel-Buffering"] = typeEvents, noStore, []string{"no"}
	c.writeHeader(http.StatusOK)
	// With the first bytes the caller follows from here on.
	first := ": following\nid: " + eventID(f.Last()) + "\n\n"
	if resume && !whole {
		first = ": some events since the last one are not known any more\n\n"
	}
	writeEvents(c, f, []byte(first))
	return nil
}

// lastEvent reads Last-Event-ID: the number of the event, 0 if it is no number. No event has 0.
func lastEvent(h http.Header) (after uint64, given bool) {
	id := h.Get("Last-Event-Id")
	n, err := strconv.ParseUint(id, 36, 64)
	if err != nil {
		n = 0
	}
	return n, id != ""
}

func eventID(n uint64) string { return strconv.FormatUint(n, 36) }

// writeEvents writes events until the caller goes, or is too slow, or the stream ends.
func writeEvents(c *call, f *recent.Follower, b []byte) {
	out := http.NewResponseController(c.w)
	_ = out.SetReadDeadline(time.Time{}) // the request's context ends with the caller
	end, beat := time.NewTimer(eventsTime), time.NewTicker(heartbeat)
	defer end.Stop()
	defer beat.Stop()
	events := make([]recent.Event, 0, eventsAtOnce)
	for {
		if len(b) > 0 {
			_ = out.SetWriteDeadline(time.Now().Add(eventWriteTime)) // HTTP always can
			if _, err := c.w.Write(b); err != nil || out.Flush() != nil {
				return
			}
			b = b[:0]
		}
		found, more, slow, ended := f.Next(events[:0], eventsAtOnce)
		if slow || ended {
			return
		}
		for i := range found {
			b = appendLive(b, &found[i])
		}
		select {
		case <-c.ending:
			return
		case <-end.C:
			return
		default:
		}
		if len(b) > 0 {
			continue
		}
		select {
		case <-more:
		case <-beat.C:
			b = append(b, ": heartbeat\n\n"...)
		case <-c.r.Context().Done():
			return
		case <-c.ending:
			return
		case <-end.C:
			return
		}
	}
}

// appendLive writes an event of a stream.
func appendLive(b []byte, e *recent.Event) []byte {
	b = append(b, "id: "...)
	b = append(b, eventID(e.Seq)...)
	b = append(b, "\nevent: "...)
	b = append(b, e.Kind...)
	b = append(b, "\ndata: {\"key\":"...)
	b = appendString(b, e.Key)
	b = append(b, `,"at":`...)
	b = appendTime(b, e.At)
	switch e.Kind {
	case recent.Scheduled:
		b = append(b, `,"revision":`...)
		b = strconv.AppendUint(b, e.Revision, 10)
		b = append(b, `,"dueAt":`...)
		b = appendTime(b, e.DueAt)
	case recent.Started, recent.Ended:
		b = append(b, `,"attempt":`...)
		b = strconv.AppendUint(b, uint64(e.Attempt), 10)
	}
	if e.Kind == recent.Ended {
		b = appendMember(b, "result", e.Result)
		b = append(b, `,"status":`...)
		b = strconv.AppendInt(b, int64(e.Status), 10)
	}
	return append(b, "}\n\n"...)
}
