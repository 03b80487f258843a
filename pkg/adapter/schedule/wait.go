package schedule

import (
	"errors"
	"strings"
	"time"
)

// ParseWait reads a wait in the answer of a sink: a duration, or a number of seconds, also
// as text and with an exponent. An answer cannot be refused with a 400, so a wait that is too
// long is MaxDuration, and a negative one is 0: the time has come already. The field is
// named in the error.
func ParseWait(field, s string) (time.Duration, error) {
	s = strings.TrimSpace(s)
	d, err := parseWait(field, s)
	if refused, ok := errors.AsType[*Error](err); ok && refused.tooLong {
		return MaxDuration, nil
	}
	if err != nil && isNegative(field, s) {
		return 0, nil
	}
	return d, err
}

func parseWait(field, s string) (time.Duration, error) {
	if isNumber(s) {
		return ParseSeconds(field, s)
	}
	return ParseDuration(field, s)
}

// isNumber reports whether s is a decimal without a sign, perhaps with an exponent.
func isNumber(s string) bool {
	_, _, ok := cutDecimal(s)
	return ok
}

// isNegative reports whether s is a wait after a minus. ISO 8601 in Java has one in each
// part: PT-5M-3S.
func isNegative(field, s string) bool {
	positive, ok := strings.CutPrefix(s, "-")
	if parts := strings.Count(s, "-"); !ok && strings.HasPrefix(s, "PT-") && parts == len(s)-len(strings.NewReplacer("H", "", "M", "", "S", "").Replace(s)) {
		positive, ok = strings.ReplaceAll(s, "-", ""), true
	}
	if !ok {
		return false
	}
	_, err := parseWait(field, positive)
	refused, _ := errors.AsType[*Error](err)
	return err == nil || refused != nil && refused.tooLong
}

// ParseWaitUntil reads an instant in the answer of a sink. One that is more than 100 years
// ahead is the last one that may be stored.
func ParseWaitUntil(field, s string, now time.Time) (time.Time, error) {
	at, err := ParseInstant(field, s, now)
	if refused, ok := errors.AsType[*Error](err); ok && refused.tooLong {
		return now.Add(MaxDuration), nil
	}
	return at, err
}
