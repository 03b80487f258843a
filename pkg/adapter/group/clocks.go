package group

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// clockPath is where members read each other's wall clock, below the port for members.
const clockPath = "/-/clock"

const (
	clockEvery = time.Second
	clockSoon  = 100 * time.Millisecond // until this member may claim
	clockTime  = 500 * time.Millisecond
)

// answerClock says what this member's wall clock shows.
func (h *health) answerClock(w http.ResponseWriter) {
	e := h.stage.engine.Load()
	if e == nil {
		unavailable(w, "this member has not opened its log yet")
		return
	}
	w.Header().Set(diskHeader, diskText(h.view.get().Disk()))
	if f := h.fit(); f != unfit {
		w.Header().Set(fitHeader, string(f))
	}
	_, _ = io.WriteString(w, strconv.FormatInt(e.log.Wall().UnixNano(), 10)) // a member that went away
}

// compareClocks measures the other members' wall clocks until ctx ends, and hands the group
// over when this member should not own it.
func (h *health) compareClocks(ctx context.Context) {
	clocks := h.stage.engine.Load().clocks
	var resigning sync.WaitGroup
	defer resigning.Wait()
	for was := false; ; {
		for _, name := range h.cfg.others() {
			if o, says, err := h.offset(ctx, name); err == nil { // a member that is away says nothing
				clocks.Record(name, o)
				h.others.record(name, says)
			}
		}
		if off := clocks.ExceedsLimit(); off != was {
			was = off
			if off {
				h.cfg.Log.Error("this machine's clock differs too much from the other members': correct it; this member owns the group only if no other can", "limit", replica.OffLimit)
			} else {
				h.cfg.Log.Info("this machine's clock agrees with the other members' again")
			}
		}
		resigning.Go(h.resign)
		wait := clockEvery
		if !clocks.Agrees() {
			wait = clockSoon
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

// offset measures the wall clock of another member: it was read at some moment of the call.
// It also returns what that member says about itself.
func (h *health) offset(ctx context.Context, name string) (by replica.Offset, says answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, clockTime)
	defer cancel()
	request, err := h.peers.request(ctx, http.MethodGet, h.cfg.url(name, clockPath))
	if err != nil {
		return by, says, err
	}
	before, began := h.stage.engine.Load().log.Wall().Round(0), time.Now()
	response, err := h.peers.client.Do(request)
	if err != nil {
		return by, says, err
	}
	defer response.Body.Close()
	half := time.Since(began) / 2
	text, err := io.ReadAll(io.LimitReader(response.Body, 32))
	if err != nil {
		return by, says, err
	}
	if response.StatusCode != http.StatusOK {
		return by, says, fmt.Errorf("group: the member answered %d", response.StatusCode)
	}
	ns, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return by, says, fmt.Errorf("group: its clock: %w", err)
	}
	return replica.Offset{By: time.Unix(0, ns).Sub(before) - half, Error: half}, answerOf(response.Header), nil
}
