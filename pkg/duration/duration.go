// Package duration reads durations as the contract has them: in Go style, and in ISO 8601.
//
// It guarantees that a duration is read exactly, and rounded up where it is finer than a
// nanosecond, so that nothing is early. It is neither negative nor above [Most].
//
// It leaves to others: the field that a value is of, and numbers of seconds.
package duration

import (
	"errors"
	"fmt"
	"math/bits"
	"strings"
	"time"
)

// Most is the longest duration: 100 years of 365.25 days.
const Most = 36525 * 24 * time.Hour

// ErrTooLong is the error of a duration above Most, which is valid otherwise.
var ErrTooLong = errors.New("more than 100 years")

const maxFractionDigits = 18 // 10^18 is the largest power of ten that an int64 holds

// Parse reads a duration in Go style (1h30m, 1.5s) or ISO 8601 (P1DT2H, PT0.5S; no years or
// months). A bare number is an error, "0" too.
func Parse(s string) (time.Duration, error) {
	if strings.HasPrefix(s, "P") {
		return ParseISO(s)
	}
	var total time.Duration
	for rest := s; rest != ""; {
		n, tail, ok := cutNumber(rest, ".")
		if !ok {
			return 0, notGo(s)
		}
		end := strings.IndexAny(tail, "0123456789.")
		if end < 0 {
			end = len(tail)
		}
		unit, ok := goUnit(tail[:end])
		if !ok {
			return 0, notGo(s)
		}
		if total, ok = n.addTo(total, unit); !ok {
			return 0, tooLong(s)
		}
		rest = tail[end:]
	}
	if s == "" {
		return 0, notGo(s)
	}
	return total, nil
}

func goUnit(s string) (time.Duration, bool) {
	switch s {
	case "ns":
		return time.Nanosecond, true
	case "us", "µs", "μs":
		return time.Microsecond, true
	case "ms":
		return time.Millisecond, true
	case "s":
		return time.Second, true
	case "m":
		return time.Minute, true
	case "h":
		return time.Hour, true
	}
	return 0, false
}

func notGo(s string) error {
	return negative(s, "%.64q is not a duration such as 5m30s or PT5M30S")
}

func notISO(s string) error {
	return negative(s, "%.64q is not an ISO 8601 duration such as PT5M30S (weeks, days, hours, minutes, seconds)")
}

// negative returns the error of a negative number where s is one, else the other error.
func negative(s, other string) error {
	if strings.HasPrefix(s, "-") {
		other = "%.64q is negative"
	}
	return fmt.Errorf(other, s)
}

func tooLong(s string) error { return fmt.Errorf("%.64q is %w", s, ErrTooLong) }

// ParseISO reads an ISO 8601 duration of weeks, days, hours, minutes
// and seconds; the last part may have a fraction.
func ParseISO(s string) (time.Duration, error) {
	rest, ok := strings.CutPrefix(s, "P")
	if !ok {
		return 0, notISO(s)
	}
	var total time.Duration
	units, inTime, fraction, parts := "WD", false, false, 0
	for rest != "" {
		if rest[0] == 'T' {
			if inTime || len(rest) == 1 {
				return 0, notISO(s)
			}
			units, inTime, rest = "HMS", true, rest[1:]
		}
		n, tail, ok := cutNumber(rest, ".,")
		if !ok || tail == "" || fraction {
			return 0, notISO(s)
		}
		i := strings.IndexByte(units, tail[0])
		if i < 0 {
			return 0, notISO(s)
		}
		if total, ok = n.addTo(total, isoUnit(tail[0])); !ok {
			return 0, tooLong(s)
		}
		units, rest, fraction = units[i+1:], tail[1:], n.fractional
		parts++
	}
	if parts == 0 {
		return 0, notISO(s)
	}
	return total, nil
}

func isoUnit(c byte) time.Duration {
	switch c {
	case 'W':
		return 7 * 24 * time.Hour
	case 'D':
		return 24 * time.Hour
	case 'H':
		return time.Hour
	case 'M':
		return time.Minute
	default:
		return time.Second
	}
}

// number is a decimal: whole + fraction/10^digits.
type number struct {
	whole, fraction uint64
	digits          int
	fractional      bool // has a decimal separator
	sticky          bool // digits that did not fit were not all zero
	huge            bool // whole overflowed
}

// cutNumber takes a decimal without sign or exponent off the front of s.
func cutNumber(s, separators string) (n number, rest string, ok bool) {
	i, seen := 0, false
	for ; i < len(s) && isDigit(s[i]); i++ {
		hi, lo := bits.Mul64(n.whole, 10)
		sum, carry := bits.Add64(lo, uint64(s[i]-'0'), 0)
		n.huge = n.huge || hi != 0 || carry != 0
		n.whole, seen = sum, true
	}
	if i < len(s) && strings.IndexByte(separators, s[i]) >= 0 {
		n.fractional = true
		for i++; i < len(s) && isDigit(s[i]); i++ {
			seen = true
			if n.digits < maxFractionDigits {
				n.fraction = n.fraction*10 + uint64(s[i]-'0')
				n.digits++
			} else {
				n.sticky = n.sticky || s[i] != '0'
			}
		}
	}
	return n, s[i:], seen
}

// addTo adds n units to total, rounded up; false when that is over Most.
func (n number) addTo(total, unit time.Duration) (time.Duration, bool) {
	hi, whole := bits.Mul64(n.whole, uint64(unit))
	if n.huge || hi != 0 || whole > uint64(Most) {
		return 0, false
	}
	pow := uint64(1)
	for range n.digits {
		pow *= 10
	}
	hi, lo := bits.Mul64(n.fraction, uint64(unit))
	part, rem := bits.Div64(hi, lo, pow)
	if rem != 0 || n.sticky {
		part++
	}
	sum := total + time.Duration(whole) + time.Duration(part)
	return sum, sum <= Most
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }
