// Package calendar says when a cron expression in a time zone comes next.
//
// It guarantees what cron(8) does when clocks change: a local time that does not exist on a day is skipped on
// that day, and one that exists twice comes at the first of the two. A calendar whose hour field is a wildcard or
// a step follows real time instead: it comes at each real minute whose wall clock matches. What [Parse] takes
// comes again and again, for ever. The rules of time zones are part of the program; where the machine has
// some, these take precedence.
//
// How it works: github.com/robfig/cron parses the expression into sets of bits, so that the grammar is Knative's
// PingSource's. [Calendar.Next] walks the spans of time in which the zone's offset from UTC stays the same: within
// one, the wall clock advances as the instants do.
//
// It leaves out jitter, and what happens at an instant that was missed.
package calendar

import (
	"fmt"
	"math/bits"
	"regexp"
	"strings"
	"sync"
	"time"
	_ "time/tzdata" // an image may have no zones of its own

	"github.com/robfig/cron/v3"
)

// The fields that an [Error] may name.
const (
	FieldCron     = "cron"
	FieldTimeZone = "timeZone"
)

// Bounds of the texts, in bytes.
const (
	MaxCron     = 256
	MaxTimeZone = 64
)

// Error says which of the two texts is wrong, and why.
type Error struct{ Field, Detail string }

func (e *Error) Error() string { return e.Field + ": " + e.Detail }

func invalid(field, format string, args ...any) error {
	return &Error{Field: field, Detail: fmt.Sprintf(format, args...)}
}

// Calendar is a parsed expression in a zone. It is immutable.
type Calendar struct {
	minute, hour, dom, month, dow uint64 // bit n is the value n; star is set with a wildcard
	realTime                      bool   // the hour field is a wildcard or a step
	zone                          *time.Location
}

// star is the bit of a field that has a wildcard.
const star = 1 << 63

// Parse reads an expression of five fields, or a descriptor such as @hourly, and the name of a zone; "" is UTC. Its
// error is an [*Error].
func Parse(expression, zone string) (*Calendar, error) {
	if expression == "" {
		if zone != "" {
			return nil, invalid(FieldTimeZone, "is given without a cron expression")
		}
		return nil, invalid(FieldCron, "is empty")
	}
	if len(expression) > MaxCron {
		return nil, invalid(FieldCron, "has %d bytes, more than %d", len(expression), MaxCron)
	}
	if strings.ContainsFunc(expression, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, invalid(FieldCron, "has a control character, or one that is not ASCII")
	}
	switch plain := strings.TrimSpace(expression); {
	case strings.HasPrefix(plain, "TZ=") || strings.HasPrefix(plain, "CRON_TZ="):
		return nil, invalid(FieldCron, "%.64q names a zone: use timeZone", expression)
	case strings.HasPrefix(plain, "@every"):
		return nil, invalid(FieldCron, "%.64q is an interval, which no calendar has: use maxInterval", expression)
	case strings.HasPrefix(plain, "@reboot"):
		return nil, invalid(FieldCron, "%.64q is no instant of a calendar", expression)
	}
	parsed, err := cron.ParseStandard(expression)
	if err != nil {
		return nil, invalid(FieldCron, "%.64q is not a cron expression of five fields: %.200v", expression, err)
	}
	s, ok := parsed.(*cron.SpecSchedule)
	if !ok { // @every, which is refused above
		return nil, invalid(FieldCron, "%.64q has no instants", expression)
	}
	c := &Calendar{minute: s.Minute, hour: s.Hour, dom: s.Dom, month: s.Month, dow: s.Dow, realTime: s.Hour&star != 0}
	if fields := strings.Fields(expression); len(fields) == 5 {
		c.realTime = strings.ContainsAny(fields[1], "*?/")
	}
	if !c.comes() {
		return nil, invalid(FieldCron, "%.64q never comes", expression)
	}
	if c.zone, err = load(zone); err != nil {
		return nil, err
	}
	return c, nil
}

// comes reports whether the expression has an instant in some year: a field may be without values, such as ",", and
// a month without its day.
func (c *Calendar) comes() bool {
	if c.minute&^star == 0 || c.hour&^star == 0 || c.month&^star == 0 {
		return false
	}
	switch {
	case c.dom&star != 0: // all days of a month
		return c.dow != 0
	case c.dow&star == 0 && c.dow != 0: // one of the two is enough
		return true
	}
	for month := time.January; month <= time.December; month++ {
		days := time.Date(2000, month+1, 0, 0, 0, 0, 0, time.UTC).Day() // of a leap year
		if c.month&(1<<month) != 0 && bits.TrailingZeros64(c.dom) <= days {
			return true
		}
	}
	return false
}

// A zone's name has no part such as ".." or "", so that there are only so many names of zones.
var zoneName = regexp.MustCompile(`^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$`)

// ofMachine are names that mean something on some machines only, or not the same on all.
var ofMachine = regexp.MustCompile(`^(Local|localtime|posixrules|Factory|posix/.*|right/.*)$`)

// zones are the zones that were loaded, by name.
var zones sync.Map

// load returns the zone of that name.
func load(name string) (*time.Location, error) {
	if name == "" {
		return time.UTC, nil
	}
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	if len(name) > MaxTimeZone || !zoneName.MatchString(name) || ofMachine.MatchString(name) {
		return nil, invalid(FieldTimeZone, "%.64q is not the name of a time zone such as Europe/Berlin", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, invalid(FieldTimeZone, "%.64q is not the name of a time zone that is known, such as Europe/Berlin", name)
	}
	zones.Store(name, zone)
	return zone, nil
}
