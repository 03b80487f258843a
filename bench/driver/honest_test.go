package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

const ms = time.Millisecond

// Only calls that end within the window are counted, and one failed call fails all.
func TestLoad_OnlyTheWindow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began, failAfter := time.Now(), time.Hour
		var windows []time.Duration
		var callers []op
		for range 4 {
			callers = append(callers, func() (int, error) {
				if time.Sleep(10 * ms); time.Since(began) > failAfter {
					return 0, errors.New("broken")
				}
				return 3, nil
			})
		}
		w := window{505 * ms, time.Second} // no call ends at an edge
		o, err := w.load(t.Context(), callers, func() time.Duration {
			windows = append(windows, time.Since(began))
			return time.Duration(len(windows)) * 1200
		})
		if err != nil || o.rate != 1200 || o.p50 != 10*ms || o.p99 != 10*ms || o.longest != 10*ms || o.server != 1 || len(windows) != 2 || windows[1] != 1505*ms {
			t.Errorf("%+v, %v, windows at %v", o, err, windows)
		}
		failAfter = 2 * time.Second
		if _, err := w.load(t.Context(), callers, ownCPU); err == nil || time.Since(began) > 3*time.Second {
			t.Errorf("%v after %s", err, time.Since(began))
		}
	})
}

// A bar is reached at its share, the median of the ratios of the rounds, and not measured when a side is missing.
func TestBars_RoundByRound(t *testing.T) {
	of := func(rates ...float64) (c *contestant) {
		c = new(contestant)
		for _, v := range rates {
			c.outcomes = append(c.outcomes, outcome{rate: v, late: []time.Duration{time.Duration(v) * ms}})
		}
		return c
	}
	if percentile([]int{1, 2}, 0.5) != 1 || percentile([]int{1, 2}, 0.51) != 2 || percentile([]int{1, 2, 3}, 1) != 3 || percentile([]int{}, 1) != 0 {
		t.Error("a percentile is another value")
	}
	reach := func(r *result, a, b *contestant) { r.reaches("", a, b, 0.6) }
	for i, test := range []struct {
		bars func(r *result, a, b *contestant)
		a, b *contestant
		want string // of each bar
	}{
		{reach, of(120, 60, 66), of(200, 100, 110), "✅"}, // the machine was twice as fast in the first round
		{reach, of(40, 80), of(100, 100), "✅"},
		{reach, of(40, 76), of(100, 100), "❌"},
		{reach, of(59, 59, 90), of(100, 100, 100), "❌"},
		{reach, of(60), of(), "–"},
		{(*result).latenessOf, of(5, 5, 30), of(1, 1, 1), "✅ ✅"},
		{(*result).latenessOf, of(6, 6, 2), of(1, 1, 1), "❌ ✅"},
		{(*result).latenessOf, of(-1, 1), of(1, 1), "✅ ❌"},
		{(*result).latenessOf, of(), of(1), "– –"},
		{func(r *result, _, _ *contestant) {
			r.growthBars([][3]time.Duration{{10, 10, 0}, {1, 1, 1}, {15, 16, 1}})
		}, nil, nil, "✅ ❌ –"},
	} {
		r := new(result)
		test.bars(r, test.a, test.b)
		var got []string
		for _, bar := range r.bars {
			got = append(got, strings.Fields(bar)[1])
		}
		if strings.Join(got, " ") != test.want {
			t.Errorf("%d: %q, want %s", i, r.bars, test.want)
		}
	}
}

// The sink stores the first arrival of each key, and lateness is taken from each one's due
// time. The kernel says what a process and a directory take.
func TestSink_FirstArrivals(t *testing.T) {
	s, began := newSink(t), time.Now()
	s.expect(100, 2)
	for _, index := range []uint32{100, 100, 102, 99, 101} {
		check(t, post(http.DefaultClient, s.addr, keyOf(index), nil, http.Header{"Ce-Reschedulekey": {keyOf(index)}}))
	}
	late := lateBy(s.arrivals(t), func(i int) time.Time { return began.Add(time.Duration(i) * time.Hour) })
	if s.repeats != 1 || late[0] > -59*time.Minute || late[1] < 0 || late[1] > time.Minute {
		t.Errorf("%d repeats, late by %v", s.repeats, late)
	}
	self, _ := os.FindProcess(os.Getpid())
	if u := (&process{cmd: &exec.Cmd{Process: self}}).usage(); u.rss < 1e6 || (u.cpu-ownCPU()).Abs() > time.Second {
		t.Errorf("%+v", u)
	}
	dir := t.TempDir()
	f, err := os.Create(dir + "/file")
	check(t, err)
	f.Write(make([]byte, 100_000))
	f.Sync() // blocks are allocated late
	if n := diskBytes(t, dir); n < 100_000 || n > 200_000 {
		t.Errorf("%d bytes", n)
	}
}

// A bulk call with a refused item is a failed call, and an escaped slash stays.
func TestClient_RefusedItem(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"status":201,"path":%q}{"status":429,"code":"quota_exceeded"}`, r.URL.EscapedPath())
	}))
	defer server.Close()
	c := newClient(server.Listener.Addr().String())
	if _, err := c.bulk("/a%2Fb", nil, 2); err == nil || !strings.Contains(err.Error(), "quota") {
		t.Errorf("err = %v", err)
	}
	if answer, err := c.bulk("/a%2Fb", nil, 1); err != nil || !strings.Contains(string(answer), "/a%2Fb") {
		t.Errorf("%s, %v", answer, err)
	}
}

// Bodies follow the contract, each event has as many bytes of its own, and no two calls share a key.
func TestMaker_Bodies(t *testing.T) {
	m, seen := newMaker(), map[string]bool{}
	for _, binary := range []bool{false, true} {
		var got struct {
			Items []struct {
				Key, Delay string
				Event      struct {
					Data   json.RawMessage
					Binary []byte `json:"data_base64"`
				}
			}
		}
		check(t, json.Unmarshal(m.bulk(7, 3, binary, func(uint32) string { return after(time.Hour) }), &got))
		for i, item := range got.Items {
			data := string(item.Event.Data) + string(item.Event.Binary)
			if index, ok := indexOf(item.Key); seen[data] || len(data) != dataBytes || !ok || index != uint32(7+i) || len(item.Key) != keyBytes || item.Delay != "1h0m0s" {
				t.Errorf("binary %t, item %d: %+v", binary, i, item)
			}
			seen[data] = true
		}
	}
	keys := map[uint32]bool{}
	callersOf(10, 0, func(c *caller) op { keys[c.next()], keys[c.next()] = true, true; return nil })
	for i := range uint32(2 * size.Callers) {
		if !keys[10*i] {
			t.Errorf("no call has the keys of batch %d", i)
		}
	}
}
