package load

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Only calls that end within the window are counted.
func TestRun_OnlyTheWindow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var windows []time.Duration
		// Each call takes 10 ms, off by one so that none ends at an edge of the window.
		open := func(int) (Op, func(), error) {
			time.Sleep(time.Microsecond)
			return func() (int, error) {
				time.Sleep(10 * time.Millisecond)
				return 3, nil
			}, func() {}, nil
		}
		got, err := Load{Callers: 4, Warm: 505 * time.Millisecond, For: time.Second}.Run(t.Context(), open, func() {
			windows = append(windows, time.Since(began).Round(time.Millisecond))
		})
		if err != nil {
			t.Fatal(err)
		}
		want := Tally{Items: 1200, Calls: 400, Elapsed: time.Second, P50: 10 * time.Millisecond, P99: 10 * time.Millisecond, Longest: 10 * time.Millisecond}
		if got != want || got.Rate() != 1200 {
			t.Errorf("%+v, %v a second, want %+v", got, got.Rate(), want)
		}
		if len(windows) != 2 || windows[0] != 505*time.Millisecond || windows[1] != 1505*time.Millisecond {
			t.Errorf("windows at %v", windows)
		}
	})
}

// One failed call ends the run and closes all callers.
func TestRun_ErrorEndsIt(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		shut := 0
		open := func(caller int) (Op, func(), error) {
			return func() (int, error) {
				time.Sleep(time.Millisecond)
				if caller == 2 {
					return 0, broken
				}
				return 1, nil
			}, func() { shut++ }, nil
		}
		began := time.Now()
		_, err := Load{Callers: 4, For: time.Hour}.Run(t.Context(), open, func() {})
		if !errors.Is(err, broken) {
			t.Errorf("err = %v", err)
		}
		if time.Since(began) > time.Second || shut != 4 {
			t.Errorf("ended after %s with %d of 4 shut", time.Since(began), shut)
		}
	})
}

// A percentile is one of the values.
func TestPercentile_Values(t *testing.T) {
	t.Parallel()
	hundred := make([]int, 100)
	for i := range hundred {
		hundred[i] = i + 1
	}
	for _, test := range []struct {
		values []int
		p      float64
		want   int
	}{
		{nil, 0.5, 0}, {[]int{7}, 0, 7}, {[]int{7}, 1, 7}, {[]int{1, 2}, 0.5, 1}, {[]int{1, 2}, 0.51, 2},
		{hundred, 0.99, 99}, {hundred, 0.991, 100}, {hundred, 1, 100}, {hundred, 0.5, 50},
	} {
		if got := Percentile(test.values, test.p); got != test.want {
			t.Errorf("Percentile of %d values at %v = %d, want %d", len(test.values), test.p, got, test.want)
		}
	}
}

// The client sends method, body and path as they are: an escaped slash stays.
func TestClient_EscapedSlash(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, "%s %s %s", r.Method, r.URL.EscapedPath(), body)
	}))
	defer server.Close()
	client := NewClient(server.Listener.Addr().String())
	defer client.Close()
	for range 2 {
		status, answer, err := client.Call(http.MethodPut, "/a%2Fb", []byte("hello"))
		if status != http.StatusCreated || string(answer) != "PUT /a%2Fb hello" || err != nil {
			t.Errorf("%d %q, %v", status, answer, err)
		}
	}
}

// An index can be read back from its key, escaped or not.
func TestIndex_OfKey(t *testing.T) {
	t.Parallel()
	for _, index := range []uint32{0, 1, 4_000_000_000, 1<<32 - 1} {
		key := Key(index)
		for _, sent := range []string{key, strings.ReplaceAll(key, "/", "%2F")} {
			if got, ok := Index(sent); !ok || got != index || len(key) != KeyBytes {
				t.Errorf("Index(%q) = %d, %t", sent, got, ok)
			}
		}
	}
	for _, bad := range []string{"", "x", "7", "x-", "x-y", "x-99999999999"} {
		if _, ok := Index(bad); ok {
			t.Errorf("Index(%q) is ok", bad)
		}
	}
}

// Bodies follow the contract, and each event has as many bytes of its own.
func TestMaker_Bodies(t *testing.T) {
	t.Parallel()
	due := time.Date(2026, 11, 21, 9, 0, 0, 5e6, time.UTC)
	type item struct {
		Key   string
		Delay string
		DueAt time.Time
		Event struct {
			Type   string
			Data   string
			Binary []byte `json:"data_base64"`
		}
	}
	for _, binary := range []bool{false, true} {
		m := NewMaker(1)
		m.Binary = binary
		var one item
		var many struct{ Items []item }
		if err := errors.Join(
			json.Unmarshal(m.AppendPut(nil, In(time.Hour)), &one),
			json.Unmarshal(m.AppendBulk(nil, 7, 3, func(i uint32) When { return At(due.Add(time.Duration(i))) }), &many),
		); err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for i, item := range append(many.Items, one) {
			size := len(item.Event.Binary)
			if !binary {
				size = len(item.Event.Data) + 2 // a JSON string's quotes are part of the data
			}
			seen[item.Event.Data+string(item.Event.Binary)] = true
			if size != PayloadBytes || item.Event.Type == "" {
				t.Errorf("event of %d bytes: %+v", size, item)
			}
			if i < 3 && (item.Key != Key(uint32(7+i)) || !item.DueAt.Equal(due.Add(time.Duration(7+i)))) {
				t.Errorf("item %d: %+v", i, item)
			}
		}
		if one.Delay != "1h0m0s" || len(seen) != 4 {
			t.Errorf("PUT: %+v; %d different events of 4", one, len(seen))
		}
	}
}
