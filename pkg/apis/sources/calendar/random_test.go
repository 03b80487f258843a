package calendar

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// list is a field of an expression as text, and the values that it stands for.
type list struct {
	text   string
	values map[int]bool
	any    bool // a wildcard
}

func randomField(r *rand.Rand, least, most int) list {
	f := list{values: map[int]bool{}}
	var parts []string
	for range 1 + r.IntN(2) {
		from, step := least+r.IntN(most-least+1), 1+r.IntN(most/2)
		to := from + r.IntN(most-from+1)
		text := ""
		switch r.IntN(5) {
		case 0:
			text, from, to, step, f.any = "*", least, most, 1, true
		case 1:
			text, to, step = strconv.Itoa(from), from, 1
		case 2:
			text, step = fmt.Sprintf("%d-%d", from, to), 1
		case 3:
			text = fmt.Sprintf("%d-%d/%d", from, to, step)
		case 4:
			text, from, to, f.any = fmt.Sprintf("*/%d", step), least, most, f.any || step == 1
		}
		parts = append(parts, text)
		for v := from; v <= to; v += step {
			f.values[v] = true
		}
	}
	f.text = strings.Join(parts, ",")
	return f
}

// expression is what cron(8) says, in its simplest form.
type expression struct{ minute, hour, dom, month, dow list }

func (e *expression) String() string {
	return strings.Join([]string{e.minute.text, e.hour.text, e.dom.text, e.month.text, e.dow.text}, " ")
}

func (e *expression) matches(t time.Time) bool {
	day := e.dom.values[t.Day()] || e.dow.values[int(t.Weekday())]
	if e.dom.any || e.dow.any {
		day = e.dom.values[t.Day()] && e.dow.values[int(t.Weekday())]
	}
	return day && e.minute.values[t.Minute()] && e.hour.values[t.Hour()] && e.month.values[int(t.Month())]
}

// instants finds the instants of a year by looking at each of its minutes.
func (e *expression) instants(minutes []time.Time) (found []time.Time) {
	fixed, shown := !strings.ContainsAny(e.hour.text, "*/"), map[string]bool{}
	for _, t := range minutes {
		if !e.matches(t) {
			continue
		}
		if !fixed {
			found = append(found, t)
			continue
		}
		if text := t.Format("2006-01-02 15:04"); !shown[text] {
			shown[text] = true
			found = append(found, t)
		}
	}
	return found
}

// Next finds exactly the instants that one finds by looking at the clock in each minute of a year.
func TestNext_AsMinuteByMinute(t *testing.T) {
	t.Parallel()
	seed, err := strconv.ParseUint(cmp.Or(os.Getenv("CALENDAR_SEED"), strconv.FormatInt(time.Now().UnixNano(), 10)), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(seed, 1))
	defer func() {
		if t.Failed() {
			t.Logf("CALENDAR_SEED=%d", seed)
		}
	}()
	for _, zone := range []struct {
		name string
		year int
	}{
		{"Europe/Berlin", 2026 + r.IntN(60)}, {"America/New_York", 2026 + r.IntN(60)}, {"Australia/Lord_Howe", 2026 + r.IntN(60)}, {"Asia/Kolkata", 2026},
		{"Africa/Cairo", 2026}, {"America/Asuncion", 2023}, {"Pacific/Apia", 2011}, {"Africa/Casablanca", 2026}, {"America/Scoresbysund", 2024}, {"Antarctica/Troll", 2027},
	} {
		place, err := time.LoadLocation(zone.name)
		if err != nil {
			t.Fatal(err)
		}
		first := time.Date(zone.year, 1, 1, 0, 0, 0, 0, time.UTC)
		var minutes []time.Time
		for at := first; at.Year() == zone.year; at = at.Add(time.Minute) {
			minutes = append(minutes, at.In(place))
		}
		for range 2 {
			e := &expression{randomField(r, 0, 59), randomField(r, 0, 23), randomField(r, 1, 31), randomField(r, 1, 12), randomField(r, 0, 6)}
			c, err := Parse(e.String(), zone.name)
			if err != nil && strings.Contains(err.Error(), "never comes") {
				if found := e.instants(minutes); len(found) > 0 {
					t.Errorf("%v: it comes at %v", err, found[0])
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			last := first.Add(-1)
			for _, want := range e.instants(minutes) {
				from := last
				if r.IntN(4) == 0 { // also between two
					from = from.Add(time.Duration(r.Int64N(int64(want.Sub(last)))))
				}
				if got := c.Next(from); !got.Equal(want) {
					t.Fatalf("%q in %s: %v after %v, want %v", e, zone.name, got, from, want)
				}
				last = want
			}
			if got := c.Next(last); got.Before(minutes[len(minutes)-1]) {
				t.Errorf("%q in %s: %v after %v, where the year has no other", e, zone.name, got, last)
			}
		}
	}
}

func BenchmarkNext(b *testing.B) {
	for _, c := range [][2]string{{"* * * * *", ""}, {"30 2 * * *", "Europe/Berlin"}, {"0 9 1 1 *", "America/New_York"}, {"0 0 29 2 *", "Australia/Lord_Howe"}} {
		b.Run(c[0]+" "+c[1], func(b *testing.B) {
			calendar, err := Parse(c[0], c[1])
			if err != nil {
				b.Fatal(err)
			}
			after := time.Date(2026, 11, 20, 9, 30, 0, 0, time.UTC)
			for b.Loop() {
				calendar.Next(after)
			}
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for b.Loop() {
		if _, err := Parse("30 2 1-7 * MON", "Europe/Berlin"); err != nil {
			b.Fatal(err)
		}
	}
}
