package dispatch_test

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// metric is the values of a metric, by its label beside the source's.
func (c *core) metric(name, label string) (values []string) {
	c.Helper()
	var all metricdata.ResourceMetrics
	must(c, c.meters.Collect(c.Context(), &all))
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					v, _ := p.Attributes.Value(attribute.Key(label))
					values = append(values, fmt.Sprint(v.AsString(), " ", p.Value))
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					v, _ := p.Attributes.Value(attribute.Key(label))
					values = append(values, fmt.Sprintf("%s %.1f", v.AsString(), p.Value))
				}
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					v, _ := p.Attributes.Value(attribute.Key(label))
					values = append(values, fmt.Sprintf("%s %.1f", v.AsString(), p.Value))
				}
			}
		}
	}
	slices.Sort(values)
	return values
}

// The time that due keys wait for a limit is counted while they wait, and for that limit alone.
func TestThrottled_SecondsByLimit(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.always(time.Second, schedule.Outcome{Kind: schedule.Succeeded})
		idle := c.source("idle", nil)
		c.flood(c.source("rate", func(s *schedule.Spec) { s.MaxPerSecond = 5 }), 15)
		c.pass(time.Minute)
		if got := c.metric("reschedule_throttled", "limit"); !slices.Equal(got, []string{"limits.maxPerSecond 2.0"}) {
			t.Errorf("15 keys at 5 a second: %q", got)
		}
		c.flood(c.source("slots", func(s *schedule.Spec) { s.MaxInFlight = 2 }), 6)
		c.pass(1500 * time.Millisecond)
		if got := c.metric("reschedule_throttled", "limit"); !slices.Contains(got, "limits.maxInFlight 1.5") {
			t.Errorf("while they wait: %q", got)
		}
		c.pass(time.Minute)
		if got := c.metric("reschedule_throttled", "limit"); !slices.Equal(got, []string{"limits.maxInFlight 2.0", "limits.maxPerSecond 2.0"}) {
			t.Errorf("6 keys at 2 a time: %q", got)
		}
		c.flood(idle, 1)
		c.pass(time.Minute)
		if got := c.metric("reschedule_throttled", "limit"); len(got) != 2 {
			t.Errorf("a source below its limits: %q", got)
		}
	})
}

// Failed attempts are counted by failure, and dead letters apart from keys.
func TestFailures_ByTypeAndLetters(t *testing.T) {
	bubble(t, 0, func(c *core) {
		outcomes := map[string]schedule.Outcome{
			"busy":    {Kind: schedule.Rejected, Failure: schedule.Failure{Code: 429}},
			"refused": {Kind: schedule.Rejected, Failure: schedule.Failure{Code: 400}},
			"broken":  {Kind: schedule.Rejected, Failure: schedule.Failure{Code: 503}},
			"moved":   {Kind: schedule.Rejected, Failure: schedule.Failure{Code: 301}},
			"away":    {Kind: schedule.Rejected},
			"hangs":   {Kind: schedule.Rejected, TimedOut: true},
			"mumbles": {Kind: schedule.Rejected, Failure: schedule.Failure{Code: 204}},
		}
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			if o, ok := outcomes[a.Key]; ok && a.Entry.DeadLetter == nil {
				return 0, o
			}
			return 0, schedule.Outcome{Kind: schedule.Succeeded}
		}
		s := c.source("s", func(s *schedule.Spec) { s.DeadLetter = &schedule.Target{URL: "http://letters"} })
		for key := range outcomes {
			c.put(s, key, in(0))
		}
		c.put(s, "ok", in(0))
		c.pass(time.Minute)
		for name, want := range map[string][]string{
			"reschedule_delivery_failures": {"429 1", "4xx 1", "5xx 1", "bad_answer 1", "no_answer 1", "other 1", "timeout 1"},
		} {
			if got := c.metric(name, "error.type"); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
		for name, want := range map[string][]string{
			"reschedule_deliveries":             {"dead_lettered 7", "delivered 1"},
			"reschedule_dead_letter_deliveries": {"delivered 7"},
		} {
			if got := c.metric(name, "result"); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	})
}

// Each source has a few lines of the log a second of each kind; the next one says how many were left out.
func TestFailures_LinesOfASourceAreBounded(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.always(0, schedule.Outcome{Kind: schedule.Rejected})
		many, other := c.source("many", nil), c.source("other", nil)
		for i := range 27 {
			c.put(many, fmt.Sprint(i), in(0))
		}
		c.put(other, "k", in(0))
		c.put(many, "late", in(time.Second))
		c.pass(time.Minute)
		for text, most := range map[string]int{"a delivery failed": 5, "an event was dropped": 20} {
			got := map[string]int{}
			for _, line := range regexp.MustCompile(`msg="`+text+`.* source=ns/(\w+).* (linesLeftOut=\d+)`).FindAllStringSubmatch(c.log.String(), -1) {
				got[line[1]+" "+line[2]]++
			}
			want := map[string]int{"many linesLeftOut=0": most, fmt.Sprint("many linesLeftOut=", 27-most): 1, "other linesLeftOut=0": 1}
			if !maps.Equal(got, want) {
				t.Errorf("lines of %q: %v, want %v", text, got, want)
			}
		}
	})
}

// The time at which an event was given up last is known by what became of it. Without one there is no series.
func TestGivenUp_TimeByResult(t *testing.T) {
	bubble(t, 0, func(c *core) {
		c.answer = func(a schedule.Attempt, _ int) (time.Duration, schedule.Outcome) {
			if a.Key == "ok" {
				return 0, schedule.Outcome{Kind: schedule.Succeeded}
			}
			return time.Second, schedule.Outcome{Kind: schedule.Rejected, Failure: schedule.Failure{Code: 400}}
		}
		const name = "reschedule_given_up_timestamp"
		start := time.Now()
		at := func(result string, later time.Duration) string {
			return fmt.Sprintf("%s %d.0", result, start.Add(later).Unix())
		}
		s := c.source("s", nil)
		c.put(s, "ok", in(0))
		c.pass(time.Minute)
		if got := c.metric(name, "result"); len(got) != 0 {
			t.Errorf("nothing was given up: %q", got)
		}
		for n := range 2 { // the later time replaces the earlier one
			c.put(s, "lost", in(0))
			c.pass(time.Minute)
			if got, want := c.metric(name, "result"), []string{at("dropped", time.Duration(n+1)*time.Minute+time.Second)}; !slices.Equal(got, want) {
				t.Errorf("dropped %d times: %q, want %q", n+1, got, want)
			}
		}
		c.put(c.source("letters", func(s *schedule.Spec) { s.DeadLetter = &schedule.Target{URL: "http://letters"} }), "lost", in(0))
		c.pass(time.Minute)
		want := []string{at("dead_lettered", 3*time.Minute+time.Second), at("dropped", 3*time.Minute+2*time.Second), at("dropped", 2*time.Minute+time.Second)}
		slices.Sort(want)
		if got := c.metric(name, "result"); !slices.Equal(got, want) {
			t.Errorf("with a dead letter sink that refuses: %q, want %q", got, want)
		}
	})
}
