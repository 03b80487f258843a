package judge

import (
	"testing"
	"time"
)

// Each thing that a timer may do wrong is counted, and nothing that it may do right.
func TestOf_EachFault(t *testing.T) {
	at := func(ms int) time.Time { return time.UnixMilli(1_000_000 + int64(ms)) }
	answered := func(from, to int) *Run { return &Run{at(from), at(to), true} }
	cut := func(from, to int) *Run { return &Run{at(from), at(to), false} }
	once := Life{At: at(100), Due: at(100), Scheduled: true}
	again := Life{At: at(100), Due: at(300), Scheduled: true, Again: at(250), Replaced: at(255), Slow: true}
	cancelled := Life{At: at(100), Due: at(100), Scheduled: true, Cancelling: true, Cancelled: at(50)}
	tooLate, unanswered, replacing, refused := cancelled, cancelled, once, Life{At: at(100)}
	replacing.Replacing = true
	tooLate.Cancelled, unanswered.Cancelled = at(150), time.Time{}
	for _, test := range []struct {
		name string
		life Life
		runs []*Run
		want Counts
	}{
		{"in time", once, []*Run{answered(100, 120)}, Counts{Scheduled: 1}},
		{"never", once, nil, Counts{Scheduled: 1, Lost: 1}},
		{"cut off and not repeated", once, []*Run{cut(100, 110)}, Counts{Scheduled: 1, Lost: 1}},
		{"cut off and repeated", once, []*Run{answered(900, 920), cut(100, 110)}, Counts{Scheduled: 1}},
		{"early", once, []*Run{answered(98, 120)}, Counts{Scheduled: 1, Early: 1, MostEarly: 2 * time.Millisecond}},
		{"answered and repeated", once, []*Run{answered(100, 120), answered(130, 150), answered(160, 170)}, Counts{Scheduled: 1, Repeats: 2}},
		{"twice at once", once, []*Run{cut(100, 120), answered(119, 150)}, Counts{Scheduled: 1, AtOnce: 1}},
		{"again", again, []*Run{answered(100, 290), answered(300, 320)}, Counts{Scheduled: 1}},
		{"again, and the second is lost", again, []*Run{answered(100, 290)}, Counts{Scheduled: 1, Lost: 1}},
		{"again, and early", again, []*Run{answered(100, 250), answered(260, 280)}, Counts{Scheduled: 1, Early: 1, MostEarly: 40 * time.Millisecond}},
		{"again, and at once", again, []*Run{answered(100, 400), answered(300, 320)}, Counts{Scheduled: 1, AtOnce: 1}},
		{"cancelled", cancelled, nil, Counts{Scheduled: 1}},
		{"after a cancel", cancelled, []*Run{cut(100, 101)}, Counts{Scheduled: 1, AfterCancel: 1}},
		{"early, before a cancel", cancelled, []*Run{answered(40, 45)}, Counts{Scheduled: 1, Early: 1, MostEarly: 60 * time.Millisecond}},
		{"a cancel after its time", tooLate, []*Run{answered(160, 170)}, Counts{Scheduled: 1}},
		{"a cancel without an answer", unanswered, nil, Counts{Scheduled: 1}},
		{"a replacement without an answer", replacing, []*Run{cut(100, 110)}, Counts{Scheduled: 1}},
		{"not acknowledged", refused, nil, Counts{}},
	} {
		test.life.Key = "key"
		got := Of([]*Life{&test.life}, map[string][]*Run{"key": test.runs, "other": {answered(0, 1000)}})
		if len(got.Late) != got.Scheduled-got.Lost-count(test.life.Cancelling || test.life.Replacing || got.Early > 0) {
			t.Errorf("%s: late by %v", test.name, got.Late)
		}
		if got.Counts != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, got.Counts, test.want)
		}
	}
}

// Lateness is from the newest acknowledged time to the run that had to come. A run before that time has none, and is not
// early if it could be the first time's.
func TestOf_Lateness(t *testing.T) {
	from := time.UnixMilli(1_000_000)
	run := func(ms int) *Run {
		began := from.Add(time.Duration(ms) * time.Millisecond)
		return &Run{began, began.Add(time.Millisecond), true}
	}
	again := func(key string) *Life {
		return &Life{Key: key, At: from, Due: run(40).Began, Again: run(20).Began, Replaced: run(25).Began, Scheduled: true, Slow: true}
	}
	cut := run(10)
	cut.Answered = false
	v := Of([]*Life{{Key: "a", At: from, Due: from, Scheduled: true}, again("b"), again("unacknowledged"), again("unanswered")}, map[string][]*Run{
		"a": {run(30), run(90)}, "b": {run(10), run(50)}, "unacknowledged": {run(10), run(22)}, "unanswered": {cut, run(30)},
	})
	if v.Early+v.Lost != 0 || len(v.Late) != 2 || v.Late[0] != 10*time.Millisecond || v.Late[1] != 30*time.Millisecond || Percentile(v.Late, 0.5) != v.Late[0] || Percentile(v.Late, 0.51) != v.Late[1] || Percentile(nil, 1) != 0 {
		t.Errorf("%+v", v)
	}
}
