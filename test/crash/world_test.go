package crash

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// world is what the clients and the sink share.
type world struct {
	sink *harness.Sink

	mu        sync.Mutex
	url       string // of the adapter that lives, "" when none does
	lives     []life
	histories map[string]*history
	mood      *rand.Rand // of the sink
	settled   bool
	sums      sums
}

// life is an adapter's, from its launch to its death.
type life struct{ launched, ready, killing, dead time.Time }

// history is what is known of a key, in the order of one clock.
type history struct {
	calls      []*call
	deliveries []*visit
}

// call is a change of a key as its only writer made it.
type call struct {
	what      string // put, delete, event
	sent, ack time.Time
	known     bool // the answer came
	refused   bool // and said that nothing changed
	status    int
	revision  uint64        // of a put that was answered
	dueAt     time.Time     // likewise
	delay     time.Duration // of a put that replaces, else 0
	mark      string        // the type of the event that it schedules
}

// visit is a delivery as the sink saw it.
type visit struct {
	*harness.Delivery
	left    time.Time // when it was answered, zero while it is not
	cut     bool      // the adapter went away before the answer
	status  int
	again   time.Duration // Reschedule-After, with a 2xx
	byAgain bool
}

func (w *world) address(url string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.url = url
}

func (w *world) lived(l life) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lives = append(w.lives, l)
}

func (w *world) settle() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled = true
}

func (w *world) history(key string) *history {
	h := w.histories[key]
	if h == nil {
		h = &history{}
		w.histories[key] = h
	}
	return h
}

// deliver answers a delivery: mostly at once with a success.
func (w *world) deliver(rw http.ResponseWriter, r *http.Request, d *harness.Delivery) {
	v := &visit{Delivery: d, status: http.StatusNoContent}
	var takes time.Duration
	w.mu.Lock()
	w.history(d.Key).deliveries = append(w.history(d.Key).deliveries, v)
	if !w.settled {
		switch n := w.mood.IntN(100); {
		case n < 20:
			v.status = http.StatusInternalServerError
		case n < 24:
			v.status = http.StatusServiceUnavailable
		case n < 36:
			v.byAgain, v.again = true, time.Duration(w.mood.IntN(200))*time.Millisecond
		}
		switch {
		case !strings.Contains(d.Key, "fresh"):
			takes = time.Duration(w.mood.IntN(300)) * time.Millisecond
		case w.mood.IntN(10) == 0:
			takes = time.Duration(w.mood.IntN(100)) * time.Millisecond
		}
	}
	w.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-r.Context().Done():
	}
	w.mu.Lock()
	v.left, v.cut = time.Now().Round(0), r.Context().Err() != nil
	w.mu.Unlock()
	if v.byAgain {
		rw.Header().Set("Reschedule-After", fmt.Sprintf("%dms", v.again.Milliseconds()))
	}
	rw.WriteHeader(v.status)
}

// write is a client with keys of its own, until ctx ends.
func (w *world) write(ctx context.Context, writer int, random *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		w.mu.Lock()
		url := w.url
		w.mu.Unlock()
		if url == "" {
			select {
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		// Half of the writers are as fast as they can, so that a kill always finds
		// calls half done; the others leave their keys the time to be delivered,
		// and to be changed during that.
		keys := fewKeys
		if writer%2 == 0 {
			keys = manyKeys
			select {
			case <-time.After(time.Duration(random.IntN(10)) * time.Millisecond):
			case <-ctx.Done():
			}
		}
		mark, fresh := fmt.Sprintf("m.%d.%d", writer, n), random.IntN(2) == 0
		key := fmt.Sprintf("w%d/k%d", writer, random.IntN(keys))
		if fresh { // a key that is never touched again: it must be delivered, whatever happens
			key = fmt.Sprintf("w%d/fresh%d", writer, n)
		}
		delay := time.Duration(random.IntN(250)) * time.Millisecond
		base := url + "/tests/crash"
		switch what := random.IntN(10); {
		case what < 2 && !fresh:
			w.do("delete", key, "", 0, func() (*harness.Reply, error) {
				return harness.Do(ctx, http.MethodDelete, base+harness.KeyPath(key), "")
			})
		case what == 2:
			w.bulk(ctx, base, writer, mark, fresh, random)
		case what < 5:
			w.do("event", key, mark, 0, func() (*harness.Reply, error) {
				return harness.Do(ctx, http.MethodPost, base, `{}`, "Ce-Specversion", "1.0", "Ce-Id", mark, "Ce-Source", "/crash", "Ce-Type", mark,
					"Ce-Reschedulekey", key, "Ce-Rescheduleafter", fmt.Sprintf("%dms", delay.Milliseconds()))
			})
		default:
			policy := []string{"replace", "replace", "earliest", "latest", "keep"}[random.IntN(5)]
			least := delay
			if policy != "replace" {
				least = 0
			}
			w.do("put", key, mark, least, func() (*harness.Reply, error) {
				return harness.Do(ctx, http.MethodPut, base+harness.KeyPath(key),
					fmt.Sprintf(`{"delay":"%dms","policy":%q,"event":{"type":%q}}`, delay.Milliseconds(), policy, mark))
			})
		}
	}
}

// do makes one call and notes what became of it.
func (w *world) do(what, key, mark string, delay time.Duration, send func() (*harness.Reply, error)) {
	c := w.begin(what, key, mark, delay)
	r, err := send()
	if err != nil {
		return
	}
	var v harness.Schedule
	if err := json.Unmarshal(r.Body, &v); err != nil && what == "put" {
		return
	}
	w.end(c, r.Status, v)
}

func (w *world) begin(what, key, mark string, delay time.Duration) *call {
	c := &call{what: what, mark: mark, delay: delay, sent: time.Now().Round(0)}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.history(key).calls = append(w.history(key).calls, c)
	return c
}

func (w *world) end(c *call, status int, v harness.Schedule) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c.ack, c.known, c.status, c.revision, c.dueAt = time.Now().Round(0), true, status, v.Revision, v.DueAt
	c.refused = status >= 400 || v.Result == "kept"
}

// bulk schedules some keys in one call: of the writer's, or such that are never
// touched again.
func (w *world) bulk(ctx context.Context, base string, writer int, mark string, fresh bool, random *rand.Rand) {
	var items []string
	var calls []*call
	for i := range fewKeys {
		key := fmt.Sprintf("w%d/k%d", writer, i)
		if fresh {
			key = fmt.Sprintf("w%d/fresh.%s.%d", writer, mark, i)
		}
		delay := time.Duration(random.IntN(250)) * time.Millisecond
		c := w.begin("put", key, fmt.Sprintf("%s.%d", mark, i), delay)
		calls = append(calls, c)
		items = append(items, fmt.Sprintf(`{"key":%q,"delay":"%dms","event":{"type":%q}}`, key, delay.Milliseconds(), c.mark))
	}
	r, err := harness.Do(ctx, http.MethodPost, base+"/schedules", `{"items":[`+strings.Join(items, ",")+`]}`)
	if err != nil {
		return
	}
	var v harness.Schedule
	if json.Unmarshal(r.Body, &v) != nil || len(v.Items) != len(calls) {
		return
	}
	for i, c := range calls {
		w.end(c, v.Items[i].Status, v.Items[i])
	}
}
