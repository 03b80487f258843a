//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// stream is a source that is called all the time, by callers that repeat what
// was not answered, as the pages tell them to. It remembers what was
// acknowledged.
type stream struct {
	*source
	label   string // of its keys, when there are several in a namespace
	ended   chan struct{}
	writers sync.WaitGroup

	mu       sync.Mutex
	promised map[string]string           // key → the mark that was acknowledged last
	far      map[string]harness.Schedule // keys that stay, as they were acknowledged
	answered []time.Time                 // when calls were acknowledged
	failed   []failedCall                // calls that had to be repeated
	wrong    []string                    // what no caller should be told
}

// failedCall is a call that had to be repeated.
type failedCall struct {
	began, ended time.Time
	answer       string // its status, or that there was none
	reason       string
}

// streamRules are the rules of the operator that the source of a stream has.
var streamRules = []rule{
	{"flaky/", behaviour{Status: 500, Failures: 1}},
	{"slow/", behaviour{Work: "3s"}}, // deliveries that are under way whenever something happens
	{"", behaviour{Work: "100ms"}},
}

const (
	streamWriters = 4
	streamPace    = 100 * time.Millisecond // between the calls of one
	streamAhead   = 10 * time.Second       // how far away the schedules are, at most
)

// stream begins to call.
func (s *source) stream() *stream { return s.streamOf(streamWriters, "") }

// streamOf is a stream of so many callers, with a label for its keys.
func (s *source) streamOf(writers int, label string) *stream {
	f := &stream{source: s, label: label, ended: make(chan struct{}), promised: map[string]string{}, far: map[string]harness.Schedule{}}
	for writer := range writers {
		f.writers.Go(func() { f.write(writer, rand.New(rand.NewPCG(seed, uint64(writer)))) })
	}
	return f
}

// write makes calls of every kind in turn, one after the other.
func (f *stream) write(writer int, random *rand.Rand) {
	pace := time.NewTicker(streamPace)
	defer pace.Stop()
	for n := 0; ; n++ {
		select {
		case <-f.ended:
			return
		case <-pace.C:
		}
		name := fmt.Sprintf("%s%d.%d", f.label, writer, n)
		soon := func() time.Time { return time.Now().Add(time.Duration(random.Int64N(int64(streamAhead)))) }
		switch random.IntN(8) {
		case 0:
			f.bulk(name, soon(), soon(), soon(), soon())
		case 1:
			f.event("event/"+name, name, soon())
		case 2:
			f.put("far/"+name, name, time.Now().Add(time.Hour))
		case 3:
			f.put("flaky/"+name, name, soon())
		case 4:
			f.put("slow/"+name, name, soon())
		case 5: // also while it is delivered
			f.put(fmt.Sprintf("hot/%s%d", f.label, writer), name, time.Now())
		default:
			f.put("once/"+name, name, soon())
		}
	}
}

// put schedules a key with a mark, the type of its event.
func (f *stream) put(key, mark string, at time.Time) {
	r := f.insist("PUT", harness.KeyPath(key), fmt.Sprintf(`{"dueAt":%q,"event":{"type":%q}}`, at.UTC().Format(time.RFC3339Nano), mark))
	if r == nil {
		return
	}
	var is harness.Schedule
	if r.Status > 201 || json.Unmarshal(r.Body, &is) != nil {
		f.unexpected("PUT "+key, r)
		return
	}
	f.acknowledged(map[string]string{key: mark}, is)
}

// spread schedules many at once, at any time from now on until then.
func (f *stream) spread(mark string, many int, within time.Duration) {
	f.t.Helper()
	at := make([]time.Time, many)
	for i := range at {
		at[i] = time.Now().Add(within * time.Duration(i) / time.Duration(many))
	}
	f.bulk(mark, at...)
}

// bulk schedules as many as there are times.
func (f *stream) bulk(mark string, at ...time.Time) {
	var items []string
	marks := map[string]string{}
	for i, at := range at {
		key := fmt.Sprintf("bulk/%s.%d", mark, i)
		marks[key] = mark
		items = append(items, fmt.Sprintf(`{"key":%q,"dueAt":%q,"event":{"type":%q}}`, key, at.UTC().Format(time.RFC3339Nano), mark))
	}
	r := f.insist("POST", "/schedules", `{"items":[`+strings.Join(items, ",")+`]}`)
	if r == nil {
		return
	}
	var all harness.Schedule
	if r.Status != http.StatusOK || json.Unmarshal(r.Body, &all) != nil {
		f.unexpected("POST of many", r)
		return
	}
	for _, item := range all.Items {
		if item.Status > 201 {
			f.unexpected("POST of many", r)
			return
		}
	}
	f.acknowledged(marks, all)
}

func (f *stream) event(key, mark string, at time.Time) {
	r := f.insist("POST", "", "{}", "Ce-Specversion", "1.0", "Ce-Id", mark, "Ce-Source", "/e2e", "Ce-Type", mark, "Ce-Reschedulekey", key, "Ce-Rescheduleat", at.UTC().Format(time.RFC3339Nano))
	if r == nil {
		return
	}
	if r.Status != http.StatusAccepted {
		f.unexpected("an event for "+key, r)
		return
	}
	f.acknowledged(map[string]string{key: mark}, harness.Schedule{})
}

// insist repeats a call until it is answered with something else than that it
// should be repeated. It gives up, and returns nil, when that takes too long.
func (f *stream) insist(method, path, body string, headers ...string) *harness.Reply {
	var reply *harness.Reply
	err := poll(f.t.Context(), patience, func() error {
		began := time.Now()
		r, err := f.try(method, path, body, headers...)
		if err != nil {
			f.note(failedCall{began, time.Now(), "no answer", fmt.Sprintf("%s %s: %v", method, path, err)})
			return err
		}
		if r.Status == http.StatusServiceUnavailable || r.Status == http.StatusTooManyRequests {
			f.note(failedCall{began, time.Now(), fmt.Sprint(r.Status), fmt.Sprintf("%s %s: %s", method, path, r.Body)})
			return fmt.Errorf("%d %s", r.Status, r.Body)
		}
		reply = r
		return nil
	})
	if err != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.wrong = append(f.wrong, fmt.Sprintf("%s %s was repeated in vain for %s: %v", method, path, patience, err))
	}
	return reply
}

func (f *stream) note(call failedCall) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed = append(f.failed, call)
}

func (f *stream) unexpected(what string, r *harness.Reply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wrong = append(f.wrong, fmt.Sprintf("%s was answered with %d %s", what, r.Status, r.Body))
}

func (f *stream) acknowledged(marks map[string]string, is harness.Schedule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answered = append(f.answered, time.Now())
	for key, mark := range marks {
		if strings.HasPrefix(key, "far/") {
			f.far[key] = is
		} else {
			f.promised[key] = mark
		}
	}
}

// underWay waits until a slow run is under way.
func (f *stream) underWay() {
	f.t.Helper()
	key := fmt.Sprintf("slow/%snow.%d", f.label, time.Now().UnixMilli())
	f.put(key, "now", time.Now())
	eventually(f.t, patience, key+" is under way", func() error {
		if runs, err := f.recordedRuns(key); err != nil || len(runs) == 0 {
			return fmt.Errorf("it was not delivered: %w", err)
		}
		return nil
	})
}

// flow waits until so many more calls were acknowledged.
func (f *stream) flow(more int) {
	f.t.Helper()
	acknowledged := func() int {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.answered)
	}
	least := acknowledged() + more
	eventually(f.t, patience, fmt.Sprintf("%d calls are acknowledged", least), func() error {
		if n := acknowledged(); n < least {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
}

// end ends the calls, each of them answered.
func (f *stream) end() {
	close(f.ended)
	f.writers.Wait()
}

// outage is when something was killed and until it was all back.
type outage struct {
	from, to time.Time
	calm     bool // callers and deliveries have nothing to do with what it was
}

// judge waits for what was acknowledged before the end, and holds it against
// what came.
func (f *stream) judge(outages ...outage) {
	f.t.Helper()
	for _, wrong := range f.wrong {
		f.t.Error(wrong)
	}
	eventually(f.t, patience, "nothing is left to be delivered", func() error {
		r, err := f.try("GET", "", "")
		if err != nil {
			return err
		}
		var c harness.Counts
		if err := json.Unmarshal(r.Body, &c); err != nil || r.Status != http.StatusOK {
			return fmt.Errorf("%d %s", r.Status, r.Body)
		}
		if c.Due > 0 || c.InFlight > 0 || c.NextDueAt != nil && time.Until(*c.NextDueAt) < patience {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	var runs []run
	eventually(f.t, patience, "the records", func() error {
		var err error
		runs, err = f.recordedRuns("")
		return err
	})
	runs = slices.DeleteFunc(runs, func(r run) bool { return !strings.Contains(r.Key, "/"+f.label) }) // another stream's
	notEarly(f.namespace, runs...)
	byKey := map[string][]run{}
	for _, r := range runs {
		byKey[r.Key] = append(byKey[r.Key], r)
	}
	var lost []string
	for key, mark := range f.promised {
		if !slices.ContainsFunc(byKey[key], func(r run) bool { return r.Type == mark && r.Status == http.StatusNoContent }) {
			lost = append(lost, fmt.Sprintf("%s: %s was acknowledged, and what came is %v", key, mark, byKey[key]))
		}
	}
	if len(lost) > 0 {
		f.t.Errorf("%d of %d are lost, among them\n%s", len(lost), len(f.promised), strings.Join(lost[:min(5, len(lost))], "\n"))
	}
	cut := 0
	for _, of := range byKey {
		cut += f.oneAtATime(of, outages)
	}
	f.stay()
	f.tell(runs, cut, outages)
}

// oneAtATime holds that no run of a key began during another, except runs
// whose delivery an outage has cut off: the operator works on, and is called
// again. It returns the number of these runs.
func (f *stream) oneAtATime(runs []run, outages []outage) (cut int) {
	f.t.Helper()
	for i := 1; i < len(runs); i++ {
		before, r := runs[i-1], runs[i]
		if !before.End.IsZero() && !r.Start.Before(before.End) {
			continue
		}
		if slices.ContainsFunc(outages, func(o outage) bool {
			return !o.calm && !before.Start.After(o.to) && !r.Start.Before(o.from)
		}) {
			cut++
			continue
		}
		f.t.Errorf("two deliveries at once: %s, and %s", before, r)
	}
	return cut
}

// stay holds that what is far away is there as it was acknowledged.
func (f *stream) stay() {
	f.t.Helper()
	there := f.keys("far/"+f.label, func(path string) (*harness.Reply, error) { return f.try("GET", path, "") })
	f.same(f.far, there)
	if len(there) > len(f.far) {
		f.t.Errorf("%d keys are far away, and %d were acknowledged", len(there), len(f.far))
	}
}

// keys lists the keys with a prefix, by a call of the address of the source.
func (f *stream) keys(prefix string, get func(path string) (*harness.Reply, error)) map[string]harness.Schedule {
	f.t.Helper()
	there := map[string]harness.Schedule{}
	for next := ""; ; {
		r, err := get("/schedules?limit=1000&prefix=" + url.QueryEscape(prefix) + "&continue=" + next)
		if err != nil {
			f.t.Fatal(err)
		}
		var page harness.Schedule
		if r.Status != http.StatusOK || json.Unmarshal(r.Body, &page) != nil || page.Continue == nil {
			f.t.Fatalf("GET: %d %s", r.Status, r.Body)
		}
		for _, is := range page.Items {
			there[is.Key] = is
		}
		if next = *page.Continue; next == "" {
			return there
		}
	}
}

// same holds that keys are there as they were acknowledged.
func (f *stream) same(acknowledged, there map[string]harness.Schedule) {
	f.t.Helper()
	var lost []string
	for key, want := range acknowledged {
		if is, ok := there[key]; !ok || is.Revision != want.Revision || !is.DueAt.Equal(want.DueAt) {
			lost = append(lost, fmt.Sprintf("%s was acknowledged as revision %d for %s, and is %d for %s", key, want.Revision, want.DueAt, is.Revision, is.DueAt))
		}
	}
	if len(lost) > 0 {
		f.t.Errorf("%d of %d that are far away are not there as they were acknowledged, among them\n%s", len(lost), len(acknowledged), strings.Join(lost[:min(5, len(lost))], "\n"))
	}
}

// tell logs what happened.
func (f *stream) tell(runs []run, cut int, outages []outage) {
	f.t.Helper()
	f.t.Logf("%d calls acknowledged, for %d keys and %d that are far away; %d runs, %d of them of deliveries that had been cut off; calls that were repeated: %v",
		len(f.answered), len(f.promised), len(f.far), len(runs), cut, f.repeated())
	var starts []time.Time
	for _, r := range runs {
		starts = append(starts, r.Start)
	}
	for i, o := range outages {
		if !slices.ContainsFunc(runs, func(r run) bool { return r.Start.Before(o.from) && (r.End.IsZero() || r.End.After(o.from)) }) {
			f.t.Error("no delivery was under way when it began: too little happened for this to mean anything")
		}
		f.t.Logf("outage of %s: callers had no answer for %s, the operator no delivery for %s", o.to.Sub(o.from).Round(time.Millisecond),
			longestGap(f.answered, o), longestGap(starts, o))
		if failed := disturbed(f.failed, outages, i); o.calm && len(failed) > 0 {
			f.t.Errorf("%d calls had to be repeated: %s", len(failed), newest(failed))
		}
	}
}

// disturbed are the calls that failed from an outage, or the start before the first, until the
// next one. A call that began before the outage was over counts whenever it failed.
func disturbed(failed []failedCall, outages []outage, i int) []failedCall {
	return slices.DeleteFunc(slices.Clone(failed), func(c failedCall) bool {
		since := i == 0 || c.ended.After(outages[i].from)
		until := i == len(outages)-1 || c.ended.Before(outages[i+1].from) || c.began.Before(outages[i].to)
		return !since || !until
	})
}

// A call is counted for the outage that it has to do with.
func TestStream_CallsThatFailedInCalm(t *testing.T) {
	beside(t)
	start := time.Now()
	at := func(second int) time.Time { return start.Add(time.Duration(second) * time.Second) }
	outages := []outage{{from: at(10), to: at(20)}, {from: at(30), to: at(40)}, {from: at(50), to: at(60)}}
	for _, c := range []struct {
		began, ended int
		of           []bool // for each outage
	}{
		{1, 2, []bool{true, false, false}},
		{9, 11, []bool{true, false, false}},
		{25, 29, []bool{true, false, false}},
		{25, 31, []bool{false, true, false}},
		{15, 31, []bool{true, true, false}},
		{41, 42, []bool{false, true, false}},
		{35, 55, []bool{false, true, true}},
		{61, 99, []bool{false, false, true}},
	} {
		for i, want := range c.of {
			if got := len(disturbed([]failedCall{{began: at(c.began), ended: at(c.ended)}}, outages, i)) == 1; got != want {
				t.Errorf("a call from second %d to %d counts for outage %d: %t", c.began, c.ended, i, got)
			}
		}
	}
}

// why is the newest reasons for which calls were repeated.
func (f *stream) why() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return newest(f.failed)
}

func newest(failed []failedCall) string {
	var reasons []string
	for _, c := range failed[max(0, len(failed)-5):] {
		reasons = append(reasons, c.ended.UTC().Format("15:04:05.000 ")+c.reason)
	}
	return strings.Join(reasons, "\n")
}

// repeated is what calls were answered with so far that had to be repeated.
func (f *stream) repeated() map[string]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	answers := map[string]int{}
	for _, c := range f.failed {
		answers[c.answer]++
	}
	return answers
}

// unanswered is the longest time without an acknowledged call that has to do with an outage.
func (f *stream) unanswered(o outage) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return longestGap(f.answered, o)
}

// longestGap is the longest time between two of the instants that has to do
// with an outage.
func longestGap(instants []time.Time, o outage) time.Duration {
	slices.SortFunc(instants, time.Time.Compare)
	var longest time.Duration
	for i := 1; i < len(instants); i++ {
		if instants[i].After(o.from) && instants[i-1].Before(o.to) {
			longest = max(longest, instants[i].Sub(instants[i-1]))
		}
	}
	return longest.Round(time.Millisecond)
}
