package driver

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/bench/report"
	"gonum.org/v1/plot/plotter"
	"k8s.io/client-go/util/workqueue"
)

// put: single durable writes.
func put(t *testing.T, dir string, _ *sink, r *result) {
	all := writes(t, dir, r, 1)
	r.rates("PUT/s", writeCPU, all...)
	r.reaches("at least 55 % of bare net/http", all[0], all[1], 0.55)
	r.reaches("1.3 times PostgreSQL", all[0], all[4], 1.3)
}

// bulkPost: many writes a call.
func bulkPost(t *testing.T, dir string, _ *sink, r *result) {
	all := writes(t, dir, r, size.Batch)
	r.rates("items/s", writeCPU, all...)
	r.reaches("1.2 times PostgreSQL", all[0], all[4], 1.2)
	r.reaches("at least 80 % of Redis with its own batching", all[0], all[3], 0.8)
}

const writeCPU = "CPU per item, client / server"

// writes compares the adapter with a bare server, bare Pebble, Redis and PostgreSQL.
func writes(t *testing.T, dir string, r *result, batch int) []*contestant {
	status, answer := answerOf(t, dir, batch)
	redis, noRedis := find("redis-server")
	postgres, noPostgres := find("initdb")
	// served is a contestant that is a server.
	served := func(name, absent string, start func(*testing.T) *process, open func(*testing.T, string, *caller) op) *contestant {
		return &contestant{name: name, absent: absent, round: func(t *testing.T, round int) outcome {
			p := start(t)
			return writeLoad(t, round, batch, p.cpu, func(c *caller) op { return open(t, p.addr, c) })
		}}
	}
	overHTTP := func(_ *testing.T, addr string, c *caller) op { return httpOp(addr, 1, batch, c) }
	all := []*contestant{
		served("adapter", "", func(t *testing.T) *process { return startAdapter(t, dir, noSink, 1).process }, overHTTP),
		served("bare net/http", "", func(t *testing.T) *process {
			addr := freeAddr()
			return start(t, child(t, "server", addr, strconv.Itoa(status), answer), addr, func() bool { return answers("http://"+addr, status) })
		}, overHTTP),
		{name: "bare Pebble", round: func(t *testing.T, round int) outcome {
			return pebbleRound(t, filepath.Join(dir, "pebble"), round, batch)
		}},
		served("Redis", noRedis, func(t *testing.T) *process { return startRedis(t, redis, filepath.Join(dir, "redis")) },
			func(t *testing.T, addr string, c *caller) op { return redisOp(t, addr, batch, c) }),
		served("PostgreSQL", noPostgres, func(t *testing.T) *process { return startPostgres(t, postgres, filepath.Join(dir, "postgres")) },
			func(t *testing.T, addr string, c *caller) op { return postgresOp(t, addr, batch, c) }),
	}
	contest(t, size.Rounds, all...)
	return all
}

// httpOp writes with one PUT a key, or with bulk POSTs, to one source after the other.
func httpOp(addr string, sources, batch int, c *caller) op {
	client, when := newClient(addr), after(writeDelay)
	return func() (int, error) {
		index := c.next()
		if batch == 1 {
			_, err := client.call(http.MethodPut, keyPath(index, sources), c.put(when), http.StatusCreated)
			return 1, err
		}
		_, err := client.bulk(schedulesPath(index/uint32(batch), sources), c.bulk(index, batch, false, func(uint32) string { return when }), batch)
		return batch, err
	}
}

// answerOf returns an answer of the adapter, which a bare server gives too.
func answerOf(t *testing.T, dir string, batch int) (status int, answer string) {
	a := startAdapter(t, filepath.Join(dir, "answer"), noSink, 1)
	defer a.end(t, syscall.SIGINT)
	c, maker, first, when := newClient(a.addr), newMaker(), firstIndex(maxRounds), after(writeDelay)
	status = http.StatusCreated
	text, err := c.call(http.MethodPut, keyPath(first, 1), maker.put(when), status)
	if batch > 1 {
		status = http.StatusOK
		text, err = c.bulk(schedulesPath(0, 1), maker.bulk(first+1, batch, false, func(uint32) string { return when }), batch)
	}
	check(t, err)
	return status, string(text)
}

// connections of the bare client, as many as the adapter's default maxInFlight.
const connections = 100

// lateBy returns by how much each arrival came after its due time, sorted. A negative one is early.
func lateBy(arrived []time.Time, due func(i int) time.Time) (late []time.Duration) {
	for i, at := range arrived {
		late = append(late, at.Sub(due(i)))
	}
	slices.Sort(late)
	return late
}

// burst: many due at one instant.
func burst(t *testing.T, dir string, sink *sink, r *result) {
	earliest, repeats := time.Duration(1<<63-1), 0
	adapter := &contestant{name: "adapter", round: func(t *testing.T, round int) outcome {
		o := startAdapter(t, dir, sink.addr, 1).deliver(t, sink, round, size.Burst, size.Lead, 0)
		earliest, repeats = min(earliest, o.late[0]), repeats+sink.repeats
		return o
	}}
	bare := &contestant{name: "bare net/http client", round: func(t *testing.T, round int) outcome {
		// Keys of its own, so that a late delivery of the adapter is not counted here.
		first := firstIndex(round + maxRounds/2)
		header, err := json.Marshal(sink.header)
		check(t, err)
		sink.expect(first, size.Burst)
		client := child(t, "client", sink.addr, fmt.Sprint(first), fmt.Sprint(size.Burst), string(header))
		client.Stderr = os.Stderr
		o := sink.receive(t, func() time.Duration {
			if client.Process == nil {
				check(t, client.Start())
				return 0
			}
			check(t, client.Wait())
			return client.ProcessState.UserTime() + client.ProcessState.SystemTime()
		})
		return o
	}}
	contest(t, size.Rounds, adapter, bare)
	r.rates("deliveries/s", "CPU per delivery, sender / sink", adapter, bare)
	r.reaches("at least 80 % of a bare net/http client", adapter, bare, 0.8)
	r.nothingEarly(len(adapter.outcomes) > 0, earliest)
	r.note = fmt.Sprintf("Earliest arrival after the due time: %s; deliveries that came twice: %d.", short(earliest), repeats)
}

// deliver measures n deliveries, all scheduled beforehand and due one after the other.
func (a *adapter) deliver(t *testing.T, sink *sink, round, n int, lead, every time.Duration) outcome {
	// 20,000 a second is a fifth of the rate of a store.
	start, first := time.Now().Add(lead+time.Duration(n)*time.Second/20_000).Truncate(time.Millisecond), firstIndex(round)
	due := func(i int) time.Time { return start.Add(time.Duration(i) * every) }
	sink.expect(first, n)
	a.fill(t, first, n, false, func(index uint32) string { return at(due(int(index - first))) })
	if time.Now().After(start) {
		t.Fatal("scheduling took longer than the time until the first is due")
	}
	o := sink.receive(t, a.cpu)
	o.late = lateBy(sink.at, due)
	return o
}

// receive measures the arrivals at the sink, which is all that the driver does meanwhile, and the CPU time of both sides.
func (s *sink) receive(t *testing.T, senderCPU func() time.Duration) outcome {
	sent, received := senderCPU(), ownCPU()
	at, n := s.arrivals(t), time.Duration(len(s.at))
	sent, received = senderCPU()-sent, ownCPU()-received
	took := slices.MaxFunc(at, time.Time.Compare).Sub(slices.MinFunc(at, time.Time.Compare))
	if took <= 0 {
		t.Fatal("all events arrived at once: the burst is too small to measure")
	}
	return outcome{rate: float64(n-1) / took.Seconds(), client: sent / n, server: received / n}
}

// bareClient posts n events with net/http, as fast as it can.
func bareClient(addr, first, n, header string) error {
	index, _ := strconv.Atoi(first)
	count, _ := strconv.Atoi(n)
	var example http.Header
	if err := json.Unmarshal([]byte(header), &example); err != nil {
		return err
	}
	client := &http.Client{Transport: &http.Transport{MaxIdleConns: connections, MaxIdleConnsPerHost: connections}}
	return eachOf(context.Background(), connections, count, func() func(int) error {
		maker := newMaker()
		return func(i int) error { return post(client, addr, keyOf(uint32(index+i)), maker.text(nil), example) }
	})
}

// post sends an event with the header of another, whose key it replaces.
func post(client *http.Client, addr, key string, data []byte, header http.Header) error {
	request, err := http.NewRequest(http.MethodPost, "http://"+addr+"/", bytes.NewReader(data))
	if err != nil {
		return err
	}
	request.Header = header.Clone()
	request.Header.Set("Ce-Reschedulekey", key)
	request.Header.Del("Content-Length") // net/http sets it
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	io.Copy(io.Discard, answer.Body)
	if answer.StatusCode != http.StatusAccepted {
		return fmt.Errorf("the sink answered %s", answer.Status)
	}
	return nil
}

// lateness: a steady rate beside many that are due far away.
func lateness(t *testing.T, dir string, sink *sink, r *result) {
	filling := startAdapter(t, dir, noSink, 1)
	filling.fill(t, firstIndex(maxRounds-1), size.Pending, false, whenFar())
	filling.end(t, syscall.SIGINT)
	n, every := size.LateRate*int(size.LateFor/time.Second), time.Second/time.Duration(size.LateRate)
	adapter := &contestant{name: "adapter", round: func(t *testing.T, round int) outcome {
		return startAdapter(t, dir, sink.addr, 1).deliver(t, sink, round, n, size.Lead, every)
	}}
	queue := &contestant{name: "client-go's queue", round: func(*testing.T, int) outcome {
		return outcome{rate: float64(size.LateRate), late: queueLateness(n, every)}
	}}
	contest(t, size.LateRounds, adapter, queue)
	r.note = "Percentiles are the median of the rounds, max and earliest are of all of them."
	r.latenessOf(adapter, queue)
}

// overtakeEvery is the time between two keys that come while others wait, takes the time of an answer.
const overtakeEvery, takes = 53 * time.Millisecond, 10 * time.Millisecond

// priority: keys that come one after the other, while many others are due and the sink takes one at a time.
func priority(t *testing.T, dir string, sink *sink, r *result) {
	sink.takes = takes
	r.rows = [][]string{{"the others are", "arrived", "p50", "p99", "max", "earliest"}}
	for i, others := range []string{"low", "normal"} {
		a := &adapter{dir: filepath.Join(dir, others), sink: sink.addr, sources: 1, limits: ", maxInFlight: 1"}
		a.start(t)
		a.fill(t, firstIndex(maxRounds-1-i), size.Pending, false, func(uint32) string { return after(0) + `,"priority":"` + others + `"` })
		start, first := time.Now().Add(size.Lead).Truncate(time.Millisecond), firstIndex(i)
		due := func(i int) time.Time { return start.Add(time.Duration(i) * overtakeEvery) }
		sink.expect(first, size.Overtaking)
		a.fill(t, first, size.Overtaking, false, func(index uint32) string { return at(due(int(index - first))) })
		select { // behind normal ones the keys would come in hours
		case <-sink.all:
		case <-time.After(time.Until(due(size.Overtaking)) + time.Second):
		}
		sink.mu.Lock()
		var late []time.Duration
		for i, at := range sink.at {
			if !at.IsZero() {
				late = append(late, at.Sub(due(i)))
			}
		}
		sink.mu.Unlock()
		a.end(t, syscall.SIGKILL)
		slices.Sort(late)
		row := []string{others, fmt.Sprintf("%d of %d", len(late), size.Overtaking)}
		for _, p := range []float64{0.5, 0.99, 1, 0} {
			if len(late) > 0 {
				row = append(row, short(percentile(late, p)))
			} else {
				row = append(row, "–")
			}
		}
		r.rows = append(r.rows, row)
		if others == "low" {
			p99, all := percentile(late, 0.99), len(late) == size.Overtaking
			r.bar("all of them within 20 ms of their due times, p99", short(p99), true, all && p99 < 20*time.Millisecond)
			r.nothingEarly(all, percentile(late, 0))
		}
	}
	r.note = fmt.Sprintf("%s others are due; the sink takes %s for each, one at a time, and a normal key comes each %s.", thousands(size.Pending), takes, overtakeEvery)
}

// latenessOf makes the table and the bars of lateness.
func (r *result) latenessOf(adapter, queue *contestant) {
	r.rows = [][]string{{"", "p50", "p99", "p99.9", "max", "earliest"}}
	for _, c := range []*contestant{adapter, queue} {
		all, row := c.late(), []string{c.name}
		for _, p := range []float64{0.5, 0.99, 0.999} {
			row = append(row, short(c.median(func(o outcome) time.Duration { return percentile(o.late, p) })))
		}
		r.rows = append(r.rows, append(row, short(percentile(all, 1)), short(percentile(all, 0))+c.absent))
	}
	above, ok := byRound(adapter, queue, func(a, b outcome) float64 { return float64(percentile(a.late, 0.99) - percentile(b.late, 0.99)) })
	inTime := func(v float64) string { return short(time.Duration(v)) }
	r.bar("p99 under 5 ms above client-go's delaying queue",
		fmt.Sprintf("%s above (%s–%s)", inTime(above.median), inTime(above.low), inTime(above.high)), ok, above.median < float64(5*time.Millisecond))
	r.nothingEarly(len(adapter.outcomes) > 0, percentile(adapter.late(), 0))
}

// late returns the lateness of all rounds together, sorted.
func (c *contestant) late() (all []time.Duration) {
	for _, o := range c.outcomes {
		all = append(all, o.late...)
	}
	slices.Sort(all)
	return all
}

// queueLateness does the same work with the in-memory queue of a resident operator, without
// disk and sink, and returns the lateness of each item.
func queueLateness(n int, every time.Duration) (late []time.Duration) {
	queue := workqueue.NewTypedDelayingQueue[string]()
	defer queue.ShutDown()
	far := farAway(time.Now())
	for i := range size.Pending {
		index := firstIndex(maxRounds-1) + uint32(i)
		queue.AddAfter(keyOf(index), time.Until(far(index)))
	}
	start := time.Now().Add(size.Lead)
	due := func(i int) time.Time { return start.Add(time.Duration(i) * every) }
	for i := range n {
		queue.AddAfter(keyOf(uint32(i)), time.Until(due(i)))
	}
	for range n {
		key, _ := queue.Get()
		now := time.Now()
		i, _ := indexOf(key)
		late = append(late, now.Sub(due(int(i))))
		queue.Done(key)
	}
	slices.Sort(late)
	return late
}

// recordBytes returns the bytes of the data and the keys of so many schedules.
func recordBytes(n int) float64 { return float64(n * (dataBytes + keyBytes)) }

// memory: the cost of many far-away schedules.
func memory(t *testing.T, dir string, sink *sink, r *result) {
	// Before each kill more is written, so that the log has records that are not in the tables yet.
	more := min(100_000, max(size.Pending/10, 1))
	none := startAdapter(t, filepath.Join(dir, "empty"), sink.addr, 1)
	noneReady, empty := none.starts(t, func(int) {}), none.rest(t, 6)
	none.end(t, syscall.SIGINT)

	full := startAdapter(t, filepath.Join(dir, "full"), sink.addr, 1)
	rate := full.fill(t, 0, size.Pending, true, whenFar())
	loading, loaded := full.usage().rss, full.rest(t, 6)
	ready := full.starts(t, func(i int) { full.fill(t, firstIndex(i+1), more, true, whenFar()) })
	restarted, kept, wanted := full.rest(t, 6), full.pending(t), size.Pending+size.Kills*more
	delivered := full.firstDelivery(t, sink)
	later := time.Duration(ready.high - noneReady.median) // than the same start with none

	starts := func(s spread) string {
		return short(time.Duration(s.median)) + " (" + short(time.Duration(s.high)) + ")"
	}
	r.rows = [][]string{
		{"", "none", "with " + thousands(size.Pending), "more"},
		{"RSS right after filling", "", megabytes(loading), ""},
		{"RSS, settled after filling", megabytes(empty.rss), megabytes(loaded.rss), megabytes(loaded.rss - empty.rss)},
		{"RSS, settled after restarts", megabytes(empty.rss), megabytes(restarted.rss), megabytes(restarted.rss - empty.rss)},
		{"disk, settled after filling", megabytes(empty.disk), megabytes(loaded.disk), fmt.Sprintf("%.0f B a schedule", float64(loaded.disk-empty.disk)/float64(size.Pending))},
		{"start after kill -9 until /readyz is 200, median (worst)", starts(noneReady), starts(ready), short(later)},
		{"filling", "", thousands(rate) + " items/s", ""},
		{"delivery of one due at once, after the last start", "", short(delivered), ""},
	}
	with, most, times := " with "+count(size.Pending, "pending"), max(loaded.rss, restarted.rss), float64(loaded.disk)/recordBytes(size.Pending)
	r.bar("memory under 80 MiB"+with, megabytes(most), true, most < 80<<20)
	r.bar("disk under 1.5 times the bytes of the records"+with, fmt.Sprintf("%.2f times", times), true, times < 1.5)
	r.bar("ready within 2 s of the same start with none, after kill -9"+with, short(later)+" later", true, later < 2*time.Second)
	r.bar("nothing acknowledged is lost"+with, thousands(kept)+" of "+thousands(wanted)+" there", true, kept == wanted)
	r.bar("deliveries go on after it"+with, "after "+short(delivered), true, delivered < time.Second)
}

// firstDelivery measures a schedule that is due at once, from the call to its arrival.
func (a *adapter) firstDelivery(t *testing.T, sink *sink) time.Duration {
	index := firstIndex(maxRounds - 1)
	sink.expect(index, 1)
	began := time.Now()
	_, err := newClient(a.addr).call(http.MethodPut, keyPath(index, 1), newMaker().put(after(0)), http.StatusCreated)
	check(t, err)
	return sink.arrivals(t)[0].Sub(began)
}

// calendars: keys that come once a day, at all minutes and in many zones.
func calendars(t *testing.T, dir string, sink *sink, r *result) {
	a, zones := startAdapter(t, dir, sink.addr, 1), zonesOf(t, 400)
	empty := a.rest(t, 6)
	rate := a.fill(t, 0, size.Pending, false, func(index uint32) string {
		minute := index * 2654435761 >> 8
		return fmt.Sprintf(`"cron":"%d %d * * *","timeZone":"%s"`, minute%60, minute/60%24, zones[int(minute/1440)%len(zones)])
	})
	loaded := a.rest(t, 6)
	sink.expect(0, size.Pending)
	before, began := a.usage(), time.Now()
	wait(size.ByCalendar)
	cpu, hours := a.usage().cpu-before.cpu, time.Since(began).Hours()
	sink.mu.Lock()
	came, twice := sink.seen, sink.repeats
	sink.mu.Unlock()
	ready := a.starts(t, func(int) {})
	kept := 0
	for end := time.Now().Add(10 * time.Second); kept != size.Pending && time.Now().Before(end); wait(10 * time.Millisecond) {
		kept = a.pending(t) // without the ones in delivery
	}
	r.rows = [][]string{
		{"", "with " + thousands(size.Pending) + " calendars"},
		{"disk", fmt.Sprintf("%s, %.0f B each", megabytes(loaded.disk-empty.disk), float64(loaded.disk-empty.disk)/float64(size.Pending))},
		{"RSS, more than for none", megabytes(loaded.rss - empty.rss)},
		{"CPU an hour", fmt.Sprintf("%.0f s, for %s deliveries", cpu.Seconds()/hours, thousands(float64(came)/hours))},
		{"start after kill -9 until /readyz is 200, median (worst)", short(time.Duration(ready.median)) + " (" + short(time.Duration(ready.high)) + ")"},
		{"filling", thousands(rate) + " items/s"},
	}
	r.bar("no calendar is lost in a kill -9", thousands(kept)+" of "+thousands(size.Pending)+" there", true, kept == size.Pending)
	r.bar("none comes twice", thousands(twice), true, twice == 0)
}

// zonesOf returns the names of so many time zones.
func zonesOf(t *testing.T, n int) (zones []string) {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	check(t, err)
	all, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip"))
	check(t, err)
	defer all.Close()
	for _, f := range all.File {
		if strings.Contains(f.Name, "/") && !strings.HasSuffix(f.Name, "/") && len(zones) < n {
			zones = append(zones, f.Name)
		}
	}
	return zones
}

// idle: the cost of an adapter with nothing due.
func idle(t *testing.T, dir string, _ *sink, r *result) {
	a := startAdapter(t, dir, noSink, 1)
	wait(size.Idle / 6) // the work after a start is not idleness
	before := a.usage()
	wait(size.Idle)
	after := a.usage()
	rss, cpu := after.rss, after.cpu-before.cpu
	share := float64(cpu) / float64(size.Idle)
	r.rows = [][]string{{"", "adapter"}, {"RSS", megabytes(rss)}, {fmt.Sprintf("CPU time over %s", size.Idle), fmt.Sprintf("%s (%.2f %% of a core)", short(cpu), share*100)}}
	r.bar("under 40 MB RSS", megabytes(rss), true, rss < 40e6)
	r.bar("no CPU when nothing is due (at most 0.1 % of a core)", fmt.Sprintf("%.2f %%", share*100), true, share <= 0.001)
}

// churnDelay is how far ahead each key is scheduled, again and again: long enough that none
// comes due at the rates of a closed loop.
const churnDelay = 5 * time.Minute

// churn: the same keys are scheduled anew, in turn, as fast as the adapter takes them. This
// is a day of operators that reschedule each key every few minutes, in ten minutes.
func churn(t *testing.T, dir string, _ *sink, r *result) {
	a, when := startAdapter(t, dir, noSink, 1), after(churnDelay)
	a.fill(t, 0, size.Pending, false, func(uint32) string { return when })
	before, from := diskBytes(t, a.dir), written(t, a.dir)
	callers := callersOf(1, 0, func(c *caller) op {
		client := newClient(a.addr)
		return func() (int, error) {
			_, err := client.call(http.MethodPut, keyPath(c.next()%uint32(size.Pending), 1), c.put(when), http.StatusOK)
			return 1, err
		}
	})
	var windows []outcome
	most, points := before, plotter.XYs{}
	for began := time.Now(); time.Since(began) < size.Churn; {
		o, err := window{0, size.ChurnWindow}.load(t.Context(), callers, a.cpu)
		check(t, err)
		windows, most = append(windows, o), max(most, diskBytes(t, a.dir))
		points = append(points, plotter.XY{X: float64(len(windows)) * size.ChurnWindow.Seconds(), Y: float64(o.p99) / 1e6})
	}
	to, kept := written(t, a.dir), a.pending(t)
	settled := a.rest(t, 6)

	all := &contestant{outcomes: windows}
	rate, puts := all.rate(), 0.0
	for _, o := range windows {
		puts += o.rate * size.ChurnWindow.Seconds()
	}
	perPut := float64(to-from) / puts
	p99, longest := spreadOf(windows, func(o outcome) time.Duration { return o.p99 }), time.Duration(spreadOf(windows, func(o outcome) time.Duration { return o.longest }).high)
	times := func(disk int64) string { return fmt.Sprintf("%.2f times", float64(disk)/recordBytes(size.Pending)) }
	r.rows = [][]string{
		{"", "adapter"},
		{"PUT/s, median of the windows (least–most)", fmt.Sprintf("%s (%s–%s)", thousands(rate.median), thousands(rate.low), thousands(rate.high))},
		{"PUTs", thousands(puts)},
		{"p99, median of the windows (worst)", short(time.Duration(p99.median)) + " (" + short(time.Duration(p99.high)) + ")"},
		{"longest call", short(longest)},
		{"bytes written to the device a PUT", fmt.Sprintf("%.0f, %.1f times the data and the key", perPut, perPut/recordBytes(1))},
		{"disk, before the churn", megabytes(before)},
		{"disk, most during it", megabytes(most) + ", " + times(most) + " the bytes of the records"},
		{"disk, settled after it", megabytes(settled.disk) + ", " + times(settled.disk)},
		{"RSS, settled after it", megabytes(settled.rss)},
	}
	r.bar("at most ten times the data and the key are written", fmt.Sprintf("%.1f times", perPut/recordBytes(1)), perPut > 0, perPut <= 10*recordBytes(1))
	r.bar("no call takes longer than 100 ms", short(longest), true, longest <= 100*time.Millisecond)
	r.bar("disk under twice the bytes of the records, settled", times(settled.disk), true, float64(settled.disk) < 2*recordBytes(size.Pending))
	r.bar("every key is still pending", thousands(kept)+" of "+thousands(size.Pending), true, kept == size.Pending)
	r.chart = &report.Chart{Title: "Churn: p99 of a PUT over time", X: "seconds", Y: "ms", Lines: []any{"p99 of a PUT", points}}
}

// growth: what a call and a delivery cost with more pending, and with more sources.
func growth(t *testing.T, dir string, sink *sink, r *result) {
	due := size.Burst / 5
	r.rows = [][]string{{"sources", "pending", "PUT/s", "bulk items/s", "deliveries/s", "CPU per PUT", "CPU per bulk item", "CPU per delivery"}}
	var costs [][3]time.Duration // CPU time of the adapter for a PUT, a bulk item and a delivery
	for _, sources := range size.Sources {
		a := startAdapter(t, filepath.Join(dir, fmt.Sprint(sources)), sink.addr, sources)
		write := func(round, batch int) outcome {
			return writeLoad(t, round, batch, a.cpu, func(c *caller) op { return httpOp(a.addr, sources, batch, c) })
		}
		for i, filled := 0, 0; i < len(size.Pendings); i++ {
			a.fill(t, uint32(filled), size.Pendings[i]-filled, true, whenFar())
			filled = size.Pendings[i]
			a.rest(t, 1)
			put, bulk := write(3*i+1, 1), write(3*i+2, size.Batch)
			a.rest(t, 1)
			delivery := a.deliver(t, sink, 3*i+3, due, size.Lead+time.Duration(sources)*time.Millisecond, 0)
			cost := [3]time.Duration{put.server, bulk.server, delivery.client}
			row := []string{
				thousands(sources), thousands(filled), thousands(put.rate), thousands(bulk.rate), thousands(delivery.rate), perItem(cost[0]), perItem(cost[1]), perItem(cost[2]),
			}
			t.Log(row)
			r.rows, costs = append(r.rows, row), append(costs, cost)
		}
		a.end(t, syscall.SIGINT)
	}
	r.growthBars(costs)
}

// growthBars compare the largest, which is the last, with the smallest.
func (r *result) growthBars(costs [][3]time.Duration) {
	with := fmt.Sprintf(" with %s sources and %s pending", thousands(size.Sources[len(size.Sources)-1]), thousands(size.Pending))
	for i, what := range []string{"PUT", "bulk item", "delivery"} {
		from, to := costs[0][i], costs[len(costs)-1][i]
		times := float64(to) / float64(max(from, 1))
		r.bar("a "+what+" costs at most 1.5 times as much"+with, fmt.Sprintf("%.2f times", times), from > 0, times <= 1.5)
	}
}
