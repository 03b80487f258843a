package schedule

import (
	"errors"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// MaxDuration bounds every duration and how far ahead an instant may be:
// 100 years of 365.25 days.
const MaxDuration = 36525 * 24 * time.Hour

const maxFractionDigits = 18 // 10^18 is the largest power of ten that an int64 holds

// ParseDuration reads a duration in Go style (1h30m, 1.5s) or ISO 8601 (P1DT2H,
// PT0.5S; no years or months). What is finer than a nanosecond is rounded up,
// so that nothing is early. A bare number is an error, "0" too. The field is
// named in the error.
func ParseDuration(field, s string) (time.Duration, error) {
	if strings.HasPrefix(s, "P") {
		return ParseISODuration(field, s)
	}
	var total time.Duration
	for rest := s; rest != ""; {
		n, tail, ok := cutNumber(rest, ".")
		if !ok {
			return 0, notGo(field, s)
		}
		end := strings.IndexAny(tail, "0123456789.")
		if end < 0 {
			end = len(tail)
		}
		unit, ok := goUnit(tail[:end])
		if !ok {
			return 0, notGo(field, s)
		}
		if total, ok = n.addTo(total, unit); !ok {
			return 0, tooLong(field, s)
		}
		rest = tail[end:]
	}
	if s == "" {
		return 0, notGo(field, s)
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

func notGo(field, s string) *Error {
	return negative(field, s, "%.64q is not a duration such as 5m30s or PT5M30S")
}

func notISO(field, s string) *Error {
	return negative(field, s, "%.64q is not an ISO 8601 duration such as PT5M30S (weeks, days, hours, minutes, seconds)")
}

// negative returns the error of a negative number where s is one, else the other error.
func negative(field, s, other string) *Error {
	if strings.HasPrefix(s, "-") {
		other = "%.64q is negative"
	}
	return Invalid(field, other, s)
}

// ParseISODuration reads an ISO 8601 duration of weeks, days, hours, minutes
// and seconds; the last part may have a fraction.
func ParseISODuration(field, s string) (time.Duration, error) {
	rest, ok := strings.CutPrefix(s, "P")
	if !ok {
		return 0, notISO(field, s)
	}
	var total time.Duration
	units, inTime, fraction, parts := "WD", false, false, 0
	for rest != "" {
		if rest[0] == 'T' {
			if inTime || len(rest) == 1 {
				return 0, notISO(field, s)
			}
			units, inTime, rest = "HMS", true, rest[1:]
		}
		n, tail, ok := cutNumber(rest, ".,")
		if !ok || tail == "" || fraction {
			return 0, notISO(field, s)
		}
		i := strings.IndexByte(units, tail[0])
		if i < 0 {
			return 0, notISO(field, s)
		}
		if total, ok = n.addTo(total, isoUnit(tail[0])); !ok {
			return 0, tooLong(field, s)
		}
		units, rest, fraction = units[i+1:], tail[1:], n.fractional
		parts++
	}
	if parts == 0 {
		return 0, notISO(field, s)
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

// addTo adds n units to total, rounded up; false when that is over MaxDuration.
func (n number) addTo(total, unit time.Duration) (time.Duration, bool) {
	hi, whole := bits.Mul64(n.whole, uint64(unit))
	if n.huge || hi != 0 || whole > uint64(MaxDuration) {
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
	return sum, sum <= MaxDuration
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

func tooLong(field, s string) *Error {
	err := Invalid(field, "%.64q is more than 100 years", s)
	err.tooLong = true
	return err
}

// ParseSeconds reads a JSON number of seconds, rounded up to the nanosecond.
// It works on the digits: a float is not exact, and a big.Rat of a number as
// long as a request body takes minutes.
func ParseSeconds(field, s string) (time.Duration, error) {
	unsigned, negative := strings.CutPrefix(s, "-")
	digits, point, ok := cutDecimal(unsigned)
	switch {
	case !ok:
		return 0, Invalid(field, "%.64q is not a number of seconds", s)
	case digits == "":
		return 0, nil
	case negative:
		return 0, Invalid(field, "%.64q is negative", s)
	}
	point += len("000000000") // as nanoseconds
	if point > len("3155760000000000000") {
		return 0, tooLong(field, s)
	}
	var ns uint64 // at most 19 digits fit
	for i := range max(point, 0) {
		ns *= 10
		if i < len(digits) {
			ns += uint64(digits[i] - '0')
		}
	}
	if len(digits) > max(point, 0) { // the last digit is not 0
		ns++
	}
	if ns > uint64(MaxDuration) {
		return 0, tooLong(field, s)
	}
	return time.Duration(ns), nil
}

// cutDecimal takes a number without sign apart: it is 0.digits·10^point, and
// the first and last of the digits are not 0; no digits are zero.
func cutDecimal(s string) (digits string, point int, ok bool) {
	mantissa := s
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		var exponent string
		mantissa, exponent = s[:i], s[i+1:]
		n, err := strconv.ParseInt(exponent, 10, 32)
		if errors.Is(err, strconv.ErrSyntax) {
			return "", 0, false
		}
		point = int(n) // at the end of the range when it is beyond
	}
	whole, fraction, _ := strings.Cut(mantissa, ".")
	digits = whole + fraction
	if digits == "" || strings.Trim(digits, "0123456789") != "" {
		return "", 0, false
	}
	point += len(whole)
	significant := strings.TrimLeft(digits, "0")
	point -= len(digits) - len(significant)
	return strings.TrimRight(significant, "0"), point, true
}

// ParseInstant reads an RFC 3339 instant, rounded up to the nanosecond, at
// most 100 years after now.
func ParseInstant(field, s string, now time.Time) (time.Time, error) {
	t, err := parseRFC3339(field, s)
	if err != nil {
		return time.Time{}, err
	}
	if finerThanNano(s) {
		t = t.Add(1)
	}
	switch {
	case t.After(now.Add(MaxDuration)):
		err := Invalid(field, "%.64q is more than 100 years ahead", s)
		err.tooLong = true
		return time.Time{}, err
	case t.Before(earliest): // what UnixNano cannot hold; long past is long past
		return earliest, nil
	}
	return t.UTC(), nil
}

// ParseTime reads the time attribute of an event: any RFC 3339 instant whose
// form in UTC is one, with its offset. The year 1 is refused at its first
// instant, which stands for no time.
func ParseTime(field, s string) (time.Time, error) {
	t, err := parseRFC3339(field, s)
	if err != nil {
		return time.Time{}, err
	}
	if year := t.UTC().Year(); year < 0 || year > 9999 {
		return time.Time{}, Invalid(field, "%.64q has no RFC 3339 form in UTC", s)
	}
	if t.IsZero() {
		return time.Time{}, Invalid(field, "%.64q stands for no time: leave the attribute out", s)
	}
	return t, nil
}

var earliest = time.Unix(0, 1).UTC()

// parseRFC3339 reads an instant. Its T and Z may be lower-case (RFC 3339, section 5.6), and the leap
// second at the end of a day, 23:59:60Z, is the second after it, as for most clocks.
func parseRFC3339(field, s string) (time.Time, error) {
	const second = len("2026-12-31T23:59:")
	text, leap := strings.ToUpper(s), time.Duration(0)
	if len(text) > second+2 && text[second:second+2] == "60" {
		text, leap = text[:second]+"59"+text[second+2:], time.Second
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	t = t.Add(leap)
	if err != nil || !strictRFC3339(text) || leap > 0 && !t.Truncate(time.Second).Equal(t.Truncate(24*time.Hour)) {
		return time.Time{}, Invalid(field, "%.64q is not an RFC 3339 instant such as 2026-11-21T09:00:00Z", s)
	}
	return t, nil
}

// strictRFC3339 rejects what time.Parse lets through: a comma before the
// fraction, a one-digit hour, an offset out of range.
func strictRFC3339(s string) bool {
	if len(s) < len("2006-01-02T15:04:05Z") || s[13] != ':' || strings.Contains(s, ",") {
		return false
	}
	if s[len(s)-1] == 'Z' {
		return true
	}
	hh, mm := s[len(s)-5:len(s)-3], s[len(s)-2:]
	return hh <= "23" && mm <= "59"
}

// finerThanNano reports whether a valid instant has a nonzero digit after the
// ninth of its fraction, which time.Parse cuts off.
func finerThanNano(s string) bool {
	dot := strings.IndexByte(s, '.')
	if dot < 0 {
		return false
	}
	for i := dot + 1; i < len(s) && isDigit(s[i]); i++ {
		if i > dot+9 && s[i] != '0' {
			return true
		}
	}
	return false
}
