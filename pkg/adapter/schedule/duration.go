package schedule

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/duration"
)

// MaxDuration bounds every duration and how far ahead an instant may be:
// 100 years of 365.25 days.
const MaxDuration = duration.Most

// ParseDuration is [duration.Parse] of a field, which is named in the error.
func ParseDuration(field, s string) (time.Duration, error) {
	d, err := duration.Parse(s)
	return d, ofField(field, err)
}

// ParseISODuration is [duration.ParseISO] of a field, which is named in the error.
func ParseISODuration(field, s string) (time.Duration, error) {
	d, err := duration.ParseISO(s)
	return d, ofField(field, err)
}

func ofField(field string, err error) error {
	if err == nil {
		return nil
	}
	refused := Invalid(field, "%s", err)
	refused.tooLong = errors.Is(err, duration.ErrTooLong)
	return refused
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
