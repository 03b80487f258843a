package replicated

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// callers schedule keys, and know what was acknowledged.
type callers struct {
	t       testing.TB
	at      func() string // the member that takes the next call
	headers []string      // of each call
	large   int           // the most bytes of a body, above the usual ones

	mu      sync.Mutex           // guards the rest
	acked   map[string]time.Time // key → due time
	longest time.Duration        // call while strict
	strict  bool                 // no call may fail, but for refused ones, which judge judges
	refused []refused
	full    bool // calls may be answered 507
}

var keys struct {
	sync.Mutex
	n int
}

func (c *callers) key() string {
	keys.Lock()
	defer keys.Unlock()
	keys.n++
	return fmt.Sprintf("k%06d", keys.n)
}

// put schedules the key, and repeats the call until it succeeds.
func (c *callers) put(key string, delay time.Duration) time.Duration {
	begun := time.Now()
	for time.Since(begun) < harness.Patience {
		sent := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		r, err := harness.Do(ctx, http.MethodPut, c.at()+source+"/schedules/"+key, fmt.Sprintf(`{"delay":%q}`, delay)+strings.Repeat(" ", rand.IntN(c.large+1)), c.headers...)
		cancel()
		c.mu.Lock()
		if c.strict {
			c.longest = max(c.longest, time.Since(sent))
		}
		ok := err == nil && r.Status < 300
		if ok {
			c.acked[key] = sent.Add(delay)
		} else if c.strict && err == nil && r.Status == http.StatusServiceUnavailable {
			c.refused = append(c.refused, refused{interval{sent, time.Now()}, string(r.Body)})
		} else if c.strict {
			c.t.Errorf("a call failed: %v %v", r, err)
		}
		c.mu.Unlock()
		if ok {
			return time.Since(begun)
		}
		if err == nil && r.Status != http.StatusServiceUnavailable && !(c.full && r.Status == http.StatusInsufficientStorage) {
			c.t.Errorf("PUT %s: %d %s", key, r.Status, r.Body)
			return 0
		}
	}
	c.t.Errorf("PUT %s had no success", key)
	return 0
}

// write lets callers write until the function that it returns is called.
func (c *callers) write() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	for range 4 {
		callers.Go(func() {
			for ctx.Err() == nil {
				c.put(c.key(), time.Duration(200+rand.IntN(1500))*time.Millisecond)
			}
		})
	}
	return func() {
		cancel()
		callers.Wait()
	}
}

// beStrict says whether calls may fail from now on.
func (c *callers) beStrict(is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.strict = is
}

// mayBeFull lets calls be answered 507.
func (c *callers) mayBeFull() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.full = true
}

// acknowledged notes a key that was acknowledged in another way.
func (c *callers) acknowledged(key string, due time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.acked[key] = due
}

// forget expects no delivery of the keys any more; none: of all keys.
func (c *callers) forget(keys ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, key := range keys {
		delete(c.acked, key)
	}
	if len(keys) == 0 {
		clear(c.acked)
	}
}

// expected are the acknowledged keys that come due soon, and how many all are.
func (c *callers) expected() (soon []string, total int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, due := range c.acked {
		if time.Until(due) < 10*time.Minute {
			soon = append(soon, key)
		}
	}
	return soon, len(c.acked)
}

// judge ends the watch, and fails the test for each refused call that no stall explains.
func (c *callers) judge(disk *stalls) {
	c.t.Helper()
	disk.stop()
	c.t.Logf("the disk stood still for %s at most", disk.longest().Round(time.Millisecond))
	for _, r := range c.refused {
		if disk.explain(r.call) {
			c.t.Log("a call was refused while the disk stood still: ", r.what)
		} else {
			c.t.Error("a call failed: ", r.what)
		}
	}
}
