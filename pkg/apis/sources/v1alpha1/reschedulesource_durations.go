package v1alpha1

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"knative.dev/pkg/apis"
)

// The forms of a duration, as regular expressions that a CEL rule can match
// too. What they do not check, the upper limit of 100 years, is checked where
// durations are read.
const (
	// GoDurationPattern is Go style, without a sign: 1h30m, 1.5s.
	GoDurationPattern = `^(([0-9]+([.][0-9]*)?|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+$`
	// ISODurationPattern is ISO 8601 of weeks, days, hours, minutes and
	// seconds, where the last part may have a fraction: P1DT2H, PT0.5S.
	ISODurationPattern = `^P(` + decimal + `W` +
		`|([0-9]+W)?` + decimal + `D` +
		`|([0-9]+W)?([0-9]+D)?T(` + decimal + `H` +
		`|([0-9]+H)?` + decimal + `M` +
		`|([0-9]+H)?([0-9]+M)?` + decimal + `S))$`

	decimal = `([0-9]+([.,][0-9]*)?|[.,][0-9]+)`
)

var (
	goDuration  = regexp.MustCompile(GoDurationPattern)
	isoDuration = regexp.MustCompile(ISODurationPattern)
)

func isDuration(s string) bool { return goDuration.MatchString(s) || isoDuration.MatchString(s) }

func validateDuration(field string, s *string) *apis.FieldError {
	switch {
	case s == nil:
		return nil
	case isDuration(*s):
		return validateLength(field, *s, maxDuration)
	}
	return apis.ErrGeneric(fmt.Sprintf("%.64q is not a duration such as 5m30s or PT5M30S, from 0", *s), field)
}

func validateISODuration(field string, s *string) *apis.FieldError {
	switch {
	case s == nil:
		return nil
	case isoDuration.MatchString(*s):
		return validateLength(field, *s, maxDuration)
	}
	return apis.ErrGeneric(fmt.Sprintf("%.64q is not an ISO 8601 duration such as PT5M30S (weeks, days, hours, minutes, seconds), from 0", *s), field)
}

// durationPart is a number and its unit, of either style.
var durationPart = regexp.MustCompile(`([0-9.,]+)([WDHMS]|[a-zµμ]+)`)

var unitSeconds = map[string]float64{
	"W": 604800, "D": 86400, "H": 3600, "M": 60, "S": 1,
	"h": 3600, "m": 60, "s": 1, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9,
}

// maxSeconds is 100 years of 365.25 days.
const maxSeconds = 36525 * 86400

// ParseDuration reads a duration in Go style or ISO 8601, of at most 100 years,
// as the CRD's rules do: exact to the microsecond, which is enough to compare it
// with a ceiling.
func ParseDuration(s string) (time.Duration, error) {
	if !isDuration(s) {
		return 0, fmt.Errorf("%.64q is not a duration such as 5m30s or PT5M30S, from 0", s)
	}
	seconds := 0.0
	for _, part := range durationPart.FindAllStringSubmatch(s, -1) {
		n, err := strconv.ParseFloat(strings.Replace(part[1], ",", ".", 1), 64)
		if err != nil {
			return 0, fmt.Errorf("%.64q is not a duration: %w", s, err)
		}
		seconds += n * unitSeconds[part[2]]
	}
	if seconds > maxSeconds {
		return 0, fmt.Errorf("%.64q is more than 100 years", s)
	}
	return time.Duration(math.Round(seconds * 1e9)), nil
}
