package driver

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	crand "crypto/rand"

	"github.com/valyala/fasthttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// window is the time of a load that is not counted, and then the time that is.
type window struct{ Warm, Long time.Duration }

// op makes one call and returns how many items it carried.
type op func() (items int, err error)

// load lets each caller call, with one call under way, and counts the calls that end
// within the window. One failed call fails all: a rate with errors in it says nothing.
// The CPU time of the server is read when the window opens and when it closes.
func (w window) load(ctx context.Context, callers []op, serverCPU func() time.Duration) (o outcome, _ error) {
	from := time.Now().Add(w.Warm)
	to := from.Add(w.Long)
	items, took := make([]int, len(callers)), make([][]time.Duration, len(callers))
	group, running := errgroup.WithContext(ctx)
	for i, call := range callers {
		group.Go(func() error {
			for began := time.Now(); began.Before(to) && running.Err() == nil; {
				n, err := call()
				ended := time.Now()
				if err != nil {
					return fmt.Errorf("caller %d: %w", i, err)
				}
				if !ended.Before(from) && ended.Before(to) {
					items[i] += n
					took[i] = append(took[i], ended.Sub(began))
				}
				began = ended
			}
			return nil
		})
	}
	for _, at := range []time.Time{from, to} {
		select {
		case <-time.After(time.Until(at)):
		case <-running.Done(): // a caller failed
		}
		o.client, o.server = ownCPU()-o.client, serverCPU()-o.server
	}
	if err := group.Wait(); err != nil {
		return o, err
	}
	all := 0
	for _, n := range items {
		all += n
	}
	if all == 0 {
		return o, fmt.Errorf("no call ended within %s", w.Long)
	}
	calls := slices.Concat(took...)
	slices.Sort(calls)
	o.rate, o.p50, o.p99, o.longest = float64(all)/w.Long.Seconds(), percentile(calls, 0.5), percentile(calls, 0.99), percentile(calls, 1)
	o.client, o.server = o.client/time.Duration(all), o.server/time.Duration(all)
	return o, nil
}

// eachOf does n things, numbered, with so many workers.
func eachOf(ctx context.Context, workers, n int, open func() func(i int) error) error {
	var next atomic.Int64
	group, running := errgroup.WithContext(ctx)
	for range workers {
		do := open()
		group.Go(func() error {
			for i := next.Add(1) - 1; i < int64(n) && running.Err() == nil; i = next.Add(1) - 1 {
				if err := do(int(i)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

// caller is one of many that each write their own keys.
type caller struct {
	*maker
	index, stride uint32 // of the next key, and to the keys of the next call
}

// next returns the index of the first key of the caller's next call.
func (c *caller) next() uint32 {
	c.index += c.stride
	return c.index - c.stride
}

// writeLoad lets callers write new keys of a round, so many a call.
func writeLoad(t *testing.T, round, batch int, serverCPU func() time.Duration, open func(*caller) op) outcome {
	o, err := size.load(t.Context(), callersOf(batch, firstIndex(round), open), serverCPU)
	check(t, err)
	return o
}

// callersOf opens callers that write new keys from the index first on, so many a call.
func callersOf(batch int, first uint32, open func(*caller) op) (callers []op) {
	for i := range size.Callers {
		callers = append(callers, open(&caller{newMaker(), first + uint32(i*batch), uint32(size.Callers * batch)}))
	}
	return callers
}

// dataBytes is how much data each event carries, keyBytes how long each key is.
const dataBytes, keyBytes = 256, len("GitRepo/01234567/site-0123456789")

// keyOf returns the key of an index. Neighbours are far apart in key order, as the keys of
// independent objects are: a store that only ever appends would have an unfair advantage.
func keyOf(index uint32) string {
	return fmt.Sprintf("GitRepo/%08x/site-%010d", index*2654435761, index)
}

// indexOf reads the index back from a key.
func indexOf(key string) (uint32, bool) {
	n, err := strconv.ParseUint(key[strings.LastIndexByte(key, '-')+1:], 10, 32)
	return uint32(n), err == nil
}

// after and at are the time of an occurrence, as a member of a JSON object.
func after(d time.Duration) string { return `"delay":"` + d.String() + `"` }
func at(due time.Time) string      { return `"dueAt":"` + due.UTC().Format(time.RFC3339Nano) + `"` }

// maker makes requests with random data, which nothing can compress. Not safe for concurrent use.
type maker struct {
	random *rand.ChaCha8
	raw    [dataBytes]byte
	body   []byte // the next call overwrites it
}

func newMaker() *maker {
	var seed [32]byte
	crand.Read(seed[:])
	return &maker{random: rand.NewChaCha8(seed)}
}

// data returns random bytes, which the next call overwrites.
func (m *maker) data() []byte {
	m.random.Read(m.raw[:])
	return m.raw[:]
}

// text appends as many bytes of a JSON string of random letters, quotes included, like the data of most senders.
func (m *maker) text(b []byte) []byte {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	b = append(b, '"')
	for _, c := range m.data()[2:] {
		b = append(b, letters[c%64])
	}
	return append(b, '"')
}

// put returns the body of a PUT.
func (m *maker) put(when string) []byte {
	m.body = append(m.event(append(append(m.body[:0], '{'), when...), false), '}')
	return m.body
}

func (m *maker) event(b []byte, binary bool) []byte {
	b = append(b, `,"event":{"type":"dev.example.bench",`...)
	if binary {
		b = append(b, `"datacontenttype":"application/octet-stream","data_base64":"`...)
		return append(base64.StdEncoding.AppendEncode(b, m.data()), `"}`...)
	}
	return append(m.text(append(b, `"data":`...)), '}')
}

// bulk returns the body of a bulk POST of n keys from the index first on.
func (m *maker) bulk(first uint32, n int, binary bool, when func(index uint32) string) []byte {
	m.body = append(m.body[:0], `{"items":[`...)
	for i := first; i < first+uint32(n); i++ {
		m.body = append(append(append(m.body, `{"key":"`...), keyOf(i)...), `",`...)
		m.body = append(m.event(append(m.body, when(i)...), binary), `},`...)
	}
	m.body = append(m.body[:len(m.body)-1], `]}`...)
	return m.body
}

// client is one caller's connection. It is fasthttp: on two cores the client shares the
// machine with the server, so it must be cheaper than the server. Not safe for concurrent use.
type client struct {
	host     fasthttp.HostClient
	request  fasthttp.Request
	response fasthttp.Response
}

// callTimeout bounds one call: a server that hangs ends the run.
const callTimeout = 30 * time.Second

func newClient(addr string) *client {
	return &client{host: fasthttp.HostClient{
		Addr: addr, MaxConns: 1, ReadTimeout: callTimeout, WriteTimeout: callTimeout, NoDefaultUserAgentHeader: true, DisablePathNormalizing: true, // an escaped slash is part of a key
		MaxIdemponentCallAttempts: 1, // a retry would hide a failed call
	}}
}

// call returns the answer of a call, which the next one overwrites.
func (c *client) call(method, path string, body []byte, want int) ([]byte, error) {
	c.request.Header.SetMethod(method)
	c.request.SetRequestURI("http://" + c.host.Addr + path)
	c.request.Header.SetContentType("application/json")
	c.request.SetBodyRaw(body)
	err := c.host.Do(&c.request, &c.response)
	if got := c.response.StatusCode(); err == nil && got != want {
		err = fmt.Errorf("%s answered %d: %.300s", method, got, c.response.Body())
	}
	return c.response.Body(), err
}

func (c *client) bulk(path string, body []byte, n int) ([]byte, error) {
	answer, err := c.call(http.MethodPost, path, body, http.StatusOK)
	// Counting is much cheaper than decoding, and keys and random letters cannot contain this text.
	if err == nil && bytes.Count(answer, []byte(`"status":201`)) != n {
		_, refused, _ := bytes.Cut(answer, []byte(`"code":`))
		err = errors.New("an item was not created: " + string(refused[:min(len(refused), 300)]))
	}
	return answer, err
}

// contestant is one side of a comparison, with its outcomes over all rounds.
type contestant struct {
	name   string
	absent string // why it does not take part, "" when it does
	// round measures once. It starts its processes, which end with its test, so that no
	// other contestant runs meanwhile.
	round    func(t *testing.T, round int) outcome
	outcomes []outcome
}

// outcome is one measurement.
type outcome struct {
	rate              float64 // a second
	p50, p99, longest time.Duration
	client, server    time.Duration   // CPU time of an item, 0 when unknown
	late              []time.Duration // sorted; of lateness
}

// roundKeys is how many keys a round may use; two rounds never share one. maxRounds keeps
// every index within 32 bits.
const roundKeys, maxRounds = 20_000_000, 200

func firstIndex(round int) uint32 { return uint32(round) * roundKeys }

// contest runs the rounds interleaved, A B C A B C, so that a slow phase of the machine
// affects all contestants. A contestant that fails once is excluded.
func contest(t *testing.T, rounds int, contestants ...*contestant) {
	for round := range rounds {
		for _, c := range contestants {
			if c.absent != "" {
				continue
			}
			unix.Sync() // the writes of the contestant before must not slow this one
			ran := false
			done := t.Run(fmt.Sprintf("%s/%d", c.name, round), func(t *testing.T) {
				o := c.round(t, round)
				t.Logf("%s/s, p99 %s", thousands(o.rate), short(o.p99))
				c.outcomes, ran = append(c.outcomes, o), true
			})
			if !done || !ran {
				c.absent, c.outcomes = fmt.Sprintf("failed in round %d, or not wanted", round+1), nil
			}
		}
	}
}

// percentile returns the smallest of the sorted values that at least the share p of them
// does not exceed, zero when there are none.
func percentile[T any](sorted []T, p float64) (value T) {
	if len(sorted) > 0 {
		value = sorted[max(int(math.Ceil(p*float64(len(sorted))))-1, 0)]
	}
	return value
}

// spread is a median with the least and the most.
type spread struct{ median, low, high float64 }

func spreadOf[V any, N ~float64 | ~int64](values []V, of func(V) N) (s spread) {
	var sorted []float64
	for _, v := range values {
		sorted = append(sorted, float64(of(v)))
	}
	slices.Sort(sorted)
	if n := len(sorted); n > 0 {
		s = spread{median: (sorted[(n-1)/2] + sorted[n/2]) / 2, low: sorted[0], high: sorted[n-1]}
	}
	return s
}

func (c *contestant) rate() spread {
	return spreadOf(c.outcomes, func(o outcome) float64 { return o.rate })
}

func (c *contestant) median(of func(outcome) time.Duration) time.Duration {
	return time.Duration(spreadOf(c.outcomes, of).median)
}

// byRound compares two contestants round by round: a slow phase of the machine then
// affects both sides.
func byRound(a, b *contestant, compare func(a, b outcome) float64) (spread, bool) {
	var values []float64
	for i := range min(len(a.outcomes), len(b.outcomes)) {
		values = append(values, compare(a.outcomes[i], b.outcomes[i]))
	}
	return spreadOf(values, func(v float64) float64 { return v }), len(values) > 0
}

func ratio(a, b *contestant) (spread, bool) {
	return byRound(a, b, func(a, b outcome) float64 { return a.rate / b.rate })
}

// reaches is the bar that one contestant has a share of the rate of another.
func (r *result) reaches(wants string, a, b *contestant, share float64) {
	got, ok := ratio(a, b)
	r.bar(wants, fmt.Sprintf("%.0f %% (%.0f–%.0f)", got.median*100, got.low*100, got.high*100), ok, got.median >= share)
}

func (r *result) nothingEarly(measured bool, earliest time.Duration) {
	r.bar("nothing early", "earliest "+short(earliest)+" after", measured, earliest >= 0)
}

// rates makes the table of a contest. The first contestant is the adapter.
func (r *result) rates(unit, cpu string, contestants ...*contestant) {
	r.rows = [][]string{{"", unit, "least–most", "adapter ÷ it", "call p50 / p99", cpu}}
	for i, c := range contestants {
		if len(c.outcomes) == 0 {
			r.rows = append(r.rows, []string{c.name, c.absent, "", "", "", ""})
			continue
		}
		rate, against, calls := c.rate(), "–", "–"
		if times, ok := ratio(contestants[0], c); ok && i > 0 {
			against = fmt.Sprintf("%.2f (%.2f–%.2f)", times.median, times.low, times.high)
		}
		if p50 := c.median(func(o outcome) time.Duration { return o.p50 }); p50 > 0 {
			calls = short(p50) + " / " + short(c.median(func(o outcome) time.Duration { return o.p99 }))
		}
		r.rows = append(r.rows, []string{
			c.name, thousands(rate.median), thousands(rate.low) + "–" + thousands(rate.high), against, calls,
			perItem(c.median(func(o outcome) time.Duration { return o.client })) + " / " + perItem(c.median(func(o outcome) time.Duration { return o.server })),
		})
	}
}

func perItem(d time.Duration) string {
	if d == 0 {
		return "–"
	}
	return fmt.Sprintf("%.1f µs", float64(d)/1e3)
}
