package v1alpha1

import (
	"fmt"
	"regexp"

	"knative.dev/pkg/apis"
)

// The forms of a duration, as regular expressions that a CEL rule can match
// too. What they do not tell, the upper limit of 100 years, is checked where
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

func validateDuration(field string, s *string) *apis.FieldError {
	if s == nil || goDuration.MatchString(*s) || isoDuration.MatchString(*s) {
		return nil
	}
	return apis.ErrGeneric(fmt.Sprintf("%.64q is not a duration such as 5m30s or PT5M30S, from 0", *s), field)
}

func validateISODuration(field string, s *string) *apis.FieldError {
	if s == nil || isoDuration.MatchString(*s) {
		return nil
	}
	return apis.ErrGeneric(fmt.Sprintf("%.64q is not an ISO 8601 duration such as PT5M30S (weeks, days, hours, minutes, seconds), from 0", *s), field)
}
