package cluster

import (
	"net/http"
	"sync"
	"testing"
	"time"
)

// change is one of an object, by the clock of its writer: between from and to.
type change struct {
	from, to time.Time
	counts   bool   // else it is one of the status
	state    string // of the object after it; "" = deleted
}

// verdict is about the runs for one object.
type verdict struct {
	lost             bool // no run came after the last change that counts
	needless, status int  // runs without a change that counts since the run before; how many of them had a change of the status
}

// judge compares runs with the changes of an object, both in the order of time. It counts
// the runs since an instant, and a loss when the last change that counts is younger. A
// change that was undone before any run, such as an object that came and went, is not lost.
func judge(changes []change, runs []time.Time, since time.Time) verdict {
	var v verdict
	known, state, next := "", "", 0
	for _, run := range runs {
		seen, status := false, false
		take := func() {
			c := changes[next]
			seen, status = seen || c.counts, status || !c.counts
			if c.counts {
				known = c.state
			}
			next++
		}
		for next < len(changes) && changes[next].to.Before(run) {
			take()
		}
		// The watcher can be faster than the answer to the writer. A run that had another
		// reason may have seen the change or not.
		if next < len(changes) && changes[next].from.Before(run) {
			if c := changes[next]; !seen {
				take()
			} else if c.counts {
				known = c.state
			}
		}
		if !seen && !run.Before(since) {
			v.needless++
			if status {
				v.status++
			}
		}
	}
	recent := false
	for _, c := range changes[next:] {
		if c.counts {
			state, recent = c.state, recent || !c.from.Before(since)
		}
	}
	v.lost = recent && state != known
	return v
}

// The verdict on runs: which were needless, and whether one is missing.
func TestWatchFaults_Judge(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(s float64) time.Time { return start.Add(time.Duration(s * float64(time.Second))) }
	spec := func(s float64, state string) change { return change{at(s), at(s + 0.1), true, state} }
	status := func(s float64) change { return change{at(s), at(s + 0.1), false, ""} }
	for name, c := range map[string]struct {
		changes []change
		runs    []float64
		since   float64
		want    verdict
	}{
		"a run for each change":           {[]change{spec(1, "a"), spec(2, "b")}, []float64{1.2, 2.2}, 0, verdict{}},
		"one run for two changes":         {[]change{spec(1, "a"), spec(2, "b")}, []float64{3}, 0, verdict{}},
		"a run before the writer's reply": {[]change{spec(1, "a")}, []float64{1.05}, 0, verdict{}},
		"and a second one after it":       {[]change{spec(1, "a")}, []float64{1.05, 1.2}, 0, verdict{needless: 1}},
		"twice for one change":            {[]change{spec(1, "a")}, []float64{1.2, 3}, 0, verdict{needless: 1}},
		"for a status":                    {[]change{spec(1, "a"), status(2)}, []float64{1.2, 2.2}, 0, verdict{needless: 1, status: 1}},
		"a status and more":               {[]change{status(1), spec(2, "a")}, []float64{3}, 0, verdict{}},
		"no run":                          {[]change{spec(1, "a")}, nil, 0, verdict{lost: true}},
		"no run after the last":           {[]change{spec(1, "a"), spec(2, "b"), status(3)}, []float64{1.2}, 0, verdict{lost: true}},
		"no run, long ago":                {[]change{spec(1, "a")}, nil, 2, verdict{}},
		"a needless one, long ago":        {[]change{spec(1, "a")}, []float64{1.2, 3}, 4, verdict{}},
		"lost, and found later":           {[]change{spec(1, "a"), status(3)}, []float64{5}, 4, verdict{}},
		"lost, and then runs at once":     {[]change{spec(1, "a"), spec(5, "b"), spec(7, "c")}, []float64{5.05, 7.05}, 4, verdict{}},
		"a deletion":                      {[]change{spec(1, "a"), spec(2, "")}, []float64{1.2}, 0, verdict{lost: true}},
		"it came and went":                {[]change{spec(1, "a"), spec(2, "")}, nil, 0, verdict{}},
		"it went and came":                {[]change{spec(1, "a"), spec(2, ""), spec(3, "b")}, []float64{1.2}, 0, verdict{lost: true}},
	} {
		runs := make([]time.Time, len(c.runs))
		for i, s := range c.runs {
			runs[i] = at(s)
		}
		if got := judge(c.changes, runs, at(c.since)); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// runRecorder is the sink of the sources, and where the resident operator reports. Each
// form has a path of its own.
type runRecorder struct {
	mu   sync.Mutex
	down bool
	runs map[string]map[string][]time.Time // by path and key: the runs that succeeded
	last time.Time                         // of any request
}

func (r *runRecorder) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = now
	if r.down {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	of := r.runs[req.URL.Path]
	if of == nil {
		of = map[string][]time.Time{}
		r.runs[req.URL.Path] = of
	}
	key := req.Header.Get("Ce-Reschedulekey")
	of[key] = append(of[key], now)
	w.WriteHeader(http.StatusNoContent)
}

// fail has each run fail, or no longer.
func (r *runRecorder) fail(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

// since is the time since the last request.
func (r *runRecorder) since() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.last)
}
