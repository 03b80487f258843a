// Package judge compares what a timer acknowledged with what it delivered. It is pure, and knows no timer.
package judge

import (
	"math"
	"slices"
	"time"
)

// Life is what a caller did with one key, and what was acknowledged.
type Life struct {
	Key        string
	At         time.Time // the first time asked for
	Scheduled  bool      // acknowledged
	Again      time.Time // when the second call to schedule began, if it was acknowledged: then a run must begin after it
	Replaced   time.Time // when that call was acknowledged, if it was: from then on only the new time counts
	Due        time.Time // the newest acknowledged time
	Cancelling bool      // a cancel was called for
	Replacing  bool      // the second call to schedule has no answer: with some timers it is a cancel first
	Cancelled  time.Time // when it was acknowledged, if it was
	Slow       bool      // may be scheduled again while it runs: what comes twice is no repeat
}

// Run is one delivery of a key as the sink saw it. It was answered, or its caller went away.
type Run struct {
	Began, Ended time.Time
	Answered     bool
}

// Counts are of keys, but for the repeats.
type Counts struct {
	Scheduled                        int // acknowledged
	Lost, Early, AtOnce, AfterCancel int
	Repeats                          int // deliveries after one that was answered
	MostEarly                        time.Duration
}

// Verdict is what was found.
type Verdict struct {
	Counts
	Late    []time.Duration // of what was delivered at its time or after it, sorted
	Missing []*Life         // what was lost
}

// Of judges each key by its deliveries. A delivery that was cut off is none, but it may be early, at once with another, or
// after a cancel. What became of a cancel or a replacement without an answer is not known, so such a key is not lost.
// Once a key is replaced and a run was answered, a run before the new time is early. Without an answered run it may still
// be the first time's.
func Of(lives []*Life, runs map[string][]*Run) (v Verdict) {
	for _, l := range lives {
		var early, atOnce, afterCancel, answered bool
		var ended, done time.Time // the end of the run before; the beginning of the run that had to come
		for _, r := range slices.SortedFunc(slices.Values(runs[l.Key]), func(a, b *Run) int { return a.Began.Compare(b.Began) }) {
			due := l.At
			if answered && !l.Replaced.IsZero() && r.Began.After(l.Replaced) {
				due = l.Due
			}
			if r.Began.Before(due) {
				early, v.MostEarly = true, max(v.MostEarly, due.Sub(r.Began))
			}
			atOnce = atOnce || r.Began.Before(ended)
			afterCancel = afterCancel || !l.Cancelled.IsZero() && l.Cancelled.Before(l.At) && r.Began.After(l.Cancelled)
			if answered && !l.Slow {
				v.Repeats++
			}
			answered = answered || r.Answered
			if done.IsZero() && r.Answered && !r.Began.Before(l.Again) {
				done = r.Began
			}
			ended = r.Ended
		}
		v.Early += count(early)
		v.AtOnce += count(atOnce)
		v.AfterCancel += count(afterCancel)
		v.Scheduled += count(l.Scheduled)
		switch {
		case !l.Scheduled || l.Cancelling || l.Replacing:
		case done.IsZero():
			v.Lost, v.Missing = v.Lost+1, append(v.Missing, l)
		case !done.Before(l.Due):
			v.Late = append(v.Late, done.Sub(l.Due))
		}
	}
	slices.Sort(v.Late)
	return v
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// Percentile returns the smallest of the sorted values that at least the share p of them does not exceed.
func Percentile(sorted []time.Duration, p float64) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[max(int(math.Ceil(p*float64(len(sorted))))-1, 0)]
}
