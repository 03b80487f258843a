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
func (m *Member) answerClock(w http.ResponseWriter) {
	if m.entries.Load() == nil {
		unavailable(w, "this member has not opened its log yet")
		return
	}
	w.Header().Set(diskHeader, diskText(m.view.get().Disk()))
	if f := m.fit(); f != unfit {
		w.Header().Set(fitHeader, string(f))
	}
	_, _ = io.WriteString(w, strconv.FormatInt(m.log.Wall().UnixNano(), 10)) // a member that went away
}

// compareClocks measures the other members' wall clocks until ctx ends, and hands the group
// over when this member should not own it.
func (m *Member) compareClocks(ctx context.Context) {
	var resigning sync.WaitGroup
	defer resigning.Wait()
	for was := false; ; {
		for _, name := range m.cfg.others() {
			if o, says, err := m.offset(ctx, name); err == nil { // a member that is away says nothing
				m.clocks.Record(name, o)
				m.others.record(name, says)
			}
		}
		if off := m.clocks.ExceedsLimit(); off != was {
			was = off
			if off {
				m.cfg.Log.Error("this machine's clock differs too much from the other members': correct it; this member owns the group only if no other can", "limit", replica.OffLimit)
			} else {
				m.cfg.Log.Info("this machine's clock agrees with the other members' again")
			}
		}
		resigning.Go(m.resign)
		wait := clockEvery
		if !m.clocks.Agrees() {
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
func (m *Member) offset(ctx context.Context, name string) (by replica.Offset, says answer, err error) {
	ctx, cancel := context.WithTimeout(ctx, clockTime)
	defer cancel()
	request, err := m.memberRequest(ctx, http.MethodGet, m.cfg.url(name, clockPath))
	if err != nil {
		return by, says, err
	}
	before, began := m.log.Wall().Round(0), time.Now()
	response, err := m.client.Do(request)
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
