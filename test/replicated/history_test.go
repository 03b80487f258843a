package replicated

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// change is a call of a history, and what its answer said.
type change struct {
	method, key, value string
	unknown            bool   // it may have had an effect, or have one later
	created            bool   // of a PUT
	found              string // of a GET; "": 404
}

// keyModel is one key: each call takes effect at one moment between its begin and
// its end. The state is the value, "" when nothing is scheduled.
var keyModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(change).key
			byKey[key] = append(byKey[key], o)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return "" },
	Step: func(state, input, output any) (bool, any) {
		call, answer := input.(change), output.(change)
		switch call.method {
		case http.MethodPut:
			return answer.unknown || answer.created == (state == ""), call.value
		case http.MethodDelete:
			return true, ""
		}
		return answer.found == state, state
	},
	Equal:             func(a, b any) bool { return a == b },
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v → %+v", input, output) },
}

// history is all calls of a run.
type history struct {
	mu         sync.Mutex
	operations []porcupine.Operation
	dropped    int // calls that said that they changed nothing, and reads that failed
}

// anyURL is the address of a member, sometimes of one that stands still: a call waits there
// until it goes on, and must not be answered from what it knew before.
func (g *group) anyURL() string {
	g.mu.Lock()
	paused := g.avoid
	g.mu.Unlock()
	if paused >= 0 && rand.IntN(30) == 0 {
		return g.members[paused].URL
	}
	return g.url()
}

// call makes a call at a random member and notes what came of it.
func (h *history) call(g *group, client int, c change, begun time.Time) {
	body := ""
	if c.method == http.MethodPut {
		body = fmt.Sprintf(`{"delay":"24h","event":{"type":"t","data":%q}}`, c.value)
	}
	o := porcupine.Operation{ClientId: client, Input: c, Call: time.Since(begun).Nanoseconds()}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	r, err := harness.Do(ctx, c.method, g.anyURL()+source+"/schedules/"+c.key, body)
	cancel()
	o.Return = time.Since(begun).Nanoseconds()
	answer := change{}
	switch {
	case err != nil || r.Status == http.StatusServiceUnavailable:
		certain := err == nil && strings.Contains(string(r.Body), "nothing was changed")
		if certain || c.method == http.MethodGet {
			h.mu.Lock()
			h.dropped++
			h.mu.Unlock()
			return
		}
		answer.unknown, o.Return = true, math.MaxInt64
	case c.method == http.MethodGet && r.Status == http.StatusOK:
		var found struct{ Event struct{ Data string } }
		if err := json.Unmarshal(r.Body, &found); err != nil {
			g.t.Error(err)
		}
		answer.found = found.Event.Data
	case c.method == http.MethodGet && r.Status == http.StatusNotFound, c.method == http.MethodDelete && r.Status < 300:
	case c.method == http.MethodPut && r.Status < 300:
		answer.created = r.Status == http.StatusCreated
	default:
		g.t.Errorf("%s %s: %d %s", c.method, c.key, r.Status, r.Body)
	}
	o.Output = answer
	h.mu.Lock()
	defer h.mu.Unlock()
	h.operations = append(h.operations, o)
}

// Calls at all members, while members are killed, stopped and ended, are as calls of one
// adapter, one after the other: GET sees the last change, PUT knows whether there was one.
func TestGroup_IsLinearisable(t *testing.T) {
	t.Parallel()
	g := start(t)
	stop := g.write() // deliveries show that the group goes on
	judge(g, min(*chaos, 5*time.Minute))
	stop()
	g.settled()
}

// judge disturbs the group while callers make calls, and judges their history.
func judge(g *group, lasting time.Duration) {
	t := g.t
	h, begun := &history{}, time.Now()
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	for client := range 8 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				// A few keys at a time, so that calls meet and a paused member knows old values. Others
				// after some seconds, so that a history is short.
				c := change{key: fmt.Sprintf("h%d-%d", time.Since(begun)/(5*time.Second), rand.IntN(8)), value: fmt.Sprintf("%d-%d", client, n)}
				c.method = []string{http.MethodPut, http.MethodGet, http.MethodGet, http.MethodDelete}[rand.IntN(4)]
				h.call(g, client, c, begun)
			}
		})
	}
	g.disturb(lasting)
	cancel()
	callers.Wait()
	unknown := 0
	for _, o := range h.operations {
		if o.Output.(change).unknown {
			unknown++
		}
	}
	t.Logf("%d calls in order, %d of them with an unknown outcome; %d changed nothing", len(h.operations), unknown, h.dropped)
	if result := porcupine.CheckOperationsTimeout(keyModel, h.operations, time.Minute); result != porcupine.Ok {
		for _, part := range keyModel.Partition(h.operations) {
			if !porcupine.CheckOperations(keyModel, part) {
				for _, o := range part {
					t.Logf("client %d, %d to %d: %s", o.ClientId, o.Call, o.Return, keyModel.DescribeOperation(o.Input, o.Output))
				}
				break
			}
		}
		t.Errorf("the history is %s", result)
	}
}
