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

// recorder records what the clients called and the sink got: both share it.
type recorder struct {
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

func (rec *recorder) address(url string) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.url = url
}

func (rec *recorder) lived(l life) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.lives = append(rec.lives, l)
}

func (rec *recorder) settle() {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.settled = true
}

func (rec *recorder) history(key string) *history {
	h := rec.histories[key]
	if h == nil {
		h = &history{}
		rec.histories[key] = h
	}
	return h
}

// deliver answers a delivery: mostly at once with a success.
func (rec *recorder) deliver(rw http.ResponseWriter, r *http.Request, d *harness.Delivery) {
	v := &visit{Delivery: d, status: http.StatusNoContent}
	var takes time.Duration
	rec.mu.Lock()
	rec.history(d.Key).deliveries = append(rec.history(d.Key).deliveries, v)
	if !rec.settled {
		switch n := rec.mood.IntN(100); {
		case n < 20:
			v.status = http.StatusInternalServerError
		case n < 24:
			v.status = http.StatusServiceUnavailable
		case n < 36:
			v.byAgain, v.again = true, time.Duration(rec.mood.IntN(200))*time.Millisecond
		}
		switch {
		case !strings.Contains(d.Key, "fresh"):
			takes = time.Duration(rec.mood.IntN(300)) * time.Millisecond
		case rec.mood.IntN(10) == 0:
			takes = time.Duration(rec.mood.IntN(100)) * time.Millisecond
		}
	}
	rec.mu.Unlock()
	select {
	case <-time.After(takes):
	case <-r.Context().Done():
	}
	rec.mu.Lock()
	v.left, v.cut = time.Now().Round(0), r.Context().Err() != nil
	rec.mu.Unlock()
	if v.byAgain {
		rw.Header().Set("Reschedule-After", fmt.Sprintf("%dms", v.again.Milliseconds()))
	}
	rw.WriteHeader(v.status)
}

// write is a client with keys of its own, until ctx ends.
func (rec *recorder) write(ctx context.Context, writer int, random *rand.Rand) {
	for n := 0; ctx.Err() == nil; n++ {
		rec.mu.Lock()
		url := rec.url
		rec.mu.Unlock()
		if url == "" {
			select {
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		// Half of the writers are as fast as they can, so that a kill always finds calls half done; the others leave
		// their keys the time to be delivered, and to be changed during that.
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
			rec.do("delete", key, "", 0, func() (*harness.Reply, error) {
				return harness.Do(ctx, http.MethodDelete, base+harness.KeyPath(key), "")
			})
		case what == 2:
			rec.bulk(ctx, base, writer, mark, fresh, random)
		case what < 5:
			rec.do("event", key, mark, 0, func() (*harness.Reply, error) {
				return harness.Do(ctx, http.MethodPost, base, `{}`, "Ce-Specversion", "1.0", "Ce-Id", mark, "Ce-Source", "/crash", "Ce-Type", mark,
					"Ce-Reschedulekey", key, "Ce-Rescheduleafter", fmt.Sprintf("%dms", delay.Milliseconds()))
			})
		default:
			policy := []string{"replace", "replace", "earliest", "latest", "keep"}[random.IntN(5)]
			least := delay
			if policy != "replace" {
				least = 0
			}
			rec.do("put", key, mark, least, func() (*harness.Reply, error) {
				return harness.Do(ctx, http.MethodPut, base+harness.KeyPath(key),
					fmt.Sprintf(`{"delay":"%dms","policy":%q,"event":{"type":%q}}`, delay.Milliseconds(), policy, mark))
			})
		}
	}
}

// do makes one call and notes what became of it.
func (rec *recorder) do(what, key, mark string, delay time.Duration, send func() (*harness.Reply, error)) {
	c := rec.begin(what, key, mark, delay)
	r, err := send()
	if err != nil {
		return
	}
	var v harness.Schedule
	if err := json.Unmarshal(r.Body, &v); err != nil && what == "put" {
		return
	}
	rec.end(c, r.Status, v)
}

func (rec *recorder) begin(what, key, mark string, delay time.Duration) *call {
	c := &call{what: what, mark: mark, delay: delay, sent: time.Now().Round(0)}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.history(key).calls = append(rec.history(key).calls, c)
	return c
}

func (rec *recorder) end(c *call, status int, v harness.Schedule) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	c.ack, c.known, c.status, c.revision, c.dueAt = time.Now().Round(0), true, status, v.Revision, v.DueAt
	c.refused = status >= 400 || v.Result == "kept"
}

// bulk schedules some keys in one call: of the writer's, or such that are never touched again.
func (rec *recorder) bulk(ctx context.Context, base string, writer int, mark string, fresh bool, random *rand.Rand) {
	var items []string
	var calls []*call
	for i := range fewKeys {
		key := fmt.Sprintf("w%d/k%d", writer, i)
		if fresh {
			key = fmt.Sprintf("w%d/fresh.%s.%d", writer, mark, i)
		}
		delay := time.Duration(random.IntN(250)) * time.Millisecond
		c := rec.begin("put", key, fmt.Sprintf("%s.%d", mark, i), delay)
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
		rec.end(c, v.Items[i].Status, v.Items[i])
	}
}
