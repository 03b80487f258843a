package sdk

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"net/http"
	"time"
)

// The bounds of following: an event has a key of 512 bytes, and a source writes something
// every 15 s.
const (
	maxEvent = 64 << 10
	silence  = time.Minute
)

// LiveKind is the kind of a live event.
type LiveKind string

// The kinds.
const (
	KeyScheduled LiveKind = "scheduled" // with Revision and DueAt
	KeyStarted   LiveKind = "started"   // a delivery, with Attempt
	KeyOutcome   LiveKind = "outcome"   // its end, with Attempt, Result and Status
)

// Live is something that happens to a key.
type Live struct {
	ID       string    `json:"id"` // [Client.Follow] goes on behind it
	Kind     LiveKind  `json:"kind"`
	Key      string    `json:"key"`
	At       time.Time `json:"at"`
	Revision uint64    `json:"revision,omitempty"`
	DueAt    time.Time `json:"dueAt,omitzero"`
	Attempt  int       `json:"attempt"`
	Result   string    `json:"result,omitempty"`
	Status   int       `json:"status,omitempty"`
	// Missed: events before this one are not in memory any more.
	Missed bool `json:"missed,omitempty"`
}

// Follow iterates over what happens at the source, from now on, or behind the event with
// the id after. It connects again when the connection is lost or the source ends it, and
// goes on where it was, as far as the source remembers. It ends with the context, or after
// the first error that another try would have again.
func (c *Client) Follow(ctx context.Context, after string) iter.Seq2[*Live, error] {
	return func(yield func(*Live, error) bool) {
		missed := false
		for failures := 0; ; failures++ {
			stop := false
			err := c.follow(ctx, &after, func(e *Live) bool {
				failures = 0
				if e.Key == "" {
					missed = missed || e.Missed
					return true
				}
				e.Missed, missed = missed, false
				stop = !yield(e, nil)
				return !stop
			})
			if stop || ctx.Err() != nil {
				return
			}
			verdict, wait := judge(err)
			if err != nil && verdict == final {
				yield(nil, fmt.Errorf("sdk: following: %w", err))
				return
			}
			if !pause(ctx, backoff(failures, wait)) {
				return
			}
		}
	}
}

// replayTime bounds a replay: a source does not say when it has repeated all.
const replayTime = 300 * time.Millisecond

// Remembered returns the live events that the source still has, oldest first, and the id behind
// which [Client.Follow] goes on. A source has some while callers follow it, and some minutes longer.
func (c *Client) Remembered(ctx context.Context) (events []*Live, last string, err error) {
	if err := c.follow(ctx, &last, func(*Live) bool { return false }); err != nil { // the first lines say where it is
		return nil, "", fmt.Errorf("sdk: following: %w", err)
	}
	replay, end := context.WithTimeout(ctx, replayTime)
	defer end()
	at := "0" // no event has this id: the source begins with the oldest
	err = c.follow(replay, &at, func(e *Live) bool {
		if e.Key == "" {
			return true
		}
		events = append(events, new(*e))
		return at != last
	})
	if err != nil && replay.Err() == nil {
		return nil, "", fmt.Errorf("sdk: following: %w", err)
	}
	return events, last, ctx.Err()
}

// follow reads one stream. It hands over each event, and what stands in its place without a key:
// an id alone, or that events are missing. nil means that the source ended it.
func (c *Client) follow(ctx context.Context, after *string, event func(*Live) bool) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	token, err := c.token()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.address+"/events", nil)
	if err != nil {
		return err
	}
	req.Header.Set("User-Agent", "reschedule-sdk-go")
	req.Header.Set("Accept", "text/event-stream")
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	if *after != "" {
		req.Header.Set("Last-Event-ID", *after)
	}
	endless := *c.http
	endless.Timeout = 0
	resp, err := endless.Do(req)
	if err != nil {
		return lostAnswer(ctx, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // the status counts
		return refusal(resp, body)
	}
	if media(resp.Header) != "text/event-stream" {
		return fmt.Errorf("%w: it is no stream of events", ErrForeign)
	}
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxEvent)
	var e Live
	for lines.Scan() {
		quiet.Reset(silence)
		line := lines.Bytes()
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch {
		case len(line) == 0: // an event that breaks off before is repeated
			*after = cmp.Or(e.ID, *after)
			if (e.Key != "" || e.ID != "") && !event(&e) {
				return nil
			}
			e = Live{}
		case line[0] == ':':
			if bytes.Contains(line, []byte("not known any more")) && !event(&Live{Missed: true}) {
				return nil
			}
		case string(name) == "id":
			e.ID = string(value)
		case string(name) == "event":
			e.Kind = LiveKind(value)
		case string(name) == "data":
			if err := json.Unmarshal(value, &e); err != nil {
				return fmt.Errorf("%w: %w", ErrForeign, err)
			}
		}
	}
	return nil // however it ended, the next connection goes on
}
