package schedule

import (
	"errors"
	"strings"
	"testing"
	"time"
)

const (
	day  = 24 * time.Hour
	week = 7 * day
)

// Durations are read in Go and ISO style and rounded up.
func TestParseDuration_GoAndISORoundedUp(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]time.Duration{
		"0s":                               0,
		"5m30s":                            5*time.Minute + 30*time.Second,
		"1.5s":                             1500 * time.Millisecond,
		".5s":                              500 * time.Millisecond,
		"1h1m1s1ms1us1ns":                  time.Hour + time.Minute + time.Second + time.Millisecond + time.Microsecond + 1,
		"1µs":                              time.Microsecond, // U+00B5
		"1μs":                              time.Microsecond, // U+03BC
		"30s1m":                            90 * time.Second,
		"0.1ns":                            1,
		"1.0000000001s":                    time.Second + 1,
		"0.000000000s":                     0,
		"876600h":                          MaxDuration,
		"00000000000001s":                  time.Second,
		"0.5h":                             30 * time.Minute,
		"1.00000000000000000000000000001s": time.Second + 1, // digits beyond what a word holds

		"PT0S":            0,
		"PT5M30S":         5*time.Minute + 30*time.Second,
		"P1W":             week,
		"P1D":             day,
		"P1DT12H":         day + 12*time.Hour,
		"P1W2DT3H4M5S":    week + 2*day + 3*time.Hour + 4*time.Minute + 5*time.Second,
		"PT0.5S":          500 * time.Millisecond,
		"PT0,5S":          500 * time.Millisecond,
		"P0.5D":           12 * time.Hour,
		"PT1.5H":          90 * time.Minute,
		"P0.5W":           week / 2,
		"PT0.0000000001S": 1,
		"PT1.0000000001S": time.Second + 1,
		"P36525D":         MaxDuration,
		"PT876600H":       MaxDuration,
		"PT3155760000S":   MaxDuration,
	} {
		if got, err := ParseDuration("delay", in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v, want %v", in, got, err, want)
		}
		if !strings.HasPrefix(in, "P") {
			continue
		}
		if got, err := ParseISODuration("delay", in); err != nil || got != want {
			t.Errorf("ParseISODuration(%q) = %v, %v, want %v", in, got, err, want)
		}
	}
}

// A value that is no duration is refused, and the error names the field.
func TestParseDuration_RefusalNamesTheField(t *testing.T) {
	t.Parallel()
	for in, wantDetail := range map[string]string{
		"": "is not", " ": "is not", "5": "is not", "0": "is not", "300": "is not", "1.5": "is not",
		"s": "is not", ".s": "is not", "5 s": "is not", " 5s": "is not", "5s ": "is not", "1d": "is not", "1w": "is not",
		"5S": "is not", "1e3s": "is not", "0x5s": "is not", "1_0s": "is not", "+5s": "is not", "1h-5m": "is not",
		"ns": "is not", "5m30": "is not", "1,5s": "is not", "NaNs": "is not", "infs": "is not", "٣s": "is not",
		"\xff": "is not", "5s\x00": "is not", "null": "is not", "tomorrow": "is not",
		"-5s": "is negative", "-1": "is negative", "-PT5S": "is negative", "-": "is negative",
		"876600h1ns": "more than 100 years", "876600.1h": "more than 100 years", "1000000h": "more than 100 years",
		"3155760000.0000000001s":            "more than 100 years",
		"99999999999999999999999999999999h": "more than 100 years",
		"18446744073709551616ns":            "more than 100 years", // 2^64
		"876600h876600h876600h876600h":      "more than 100 years",

		"P": "is not", "PT": "is not", "P1": "is not", "P1DT": "is not", "PT1": "is not", "1D": "is not", "PD": "is not",
		"P1Y": "is not", "P1M": "is not", "P1Y2M": "is not", "P1Y1D": "is not", "PT1D": "is not", "P1H": "is not", "P1S": "is not",
		"PT1S1M": "is not", "P1D1W": "is not", "PT1M1M": "is not", "PTT1S": "is not", "PT1HT1S": "is not", "PT1.5M3S": "is not",
		"P0.5DT1H": "is not", "pt5s": "is not", "PT5s": "is not", "P-1D": "is not", "P+1D": "is not", "PT5S ": "is not", "P1DT5S6": "is not",
		"PT1.2.3S": "is not", "PT.S": "is not", "P1W2": "is not",
		"P36525DT0.0000000001S": "more than 100 years", "P5218W": "more than 100 years",
		"PT99999999999999999999999999S": "more than 100 years",
	} {
		got, err := ParseDuration("maxInterval", in)
		refused(t, "ParseDuration", in, got, err, Error{Field: "maxInterval", Detail: wantDetail})
	}
	for _, in := range []string{"5s", "5m30s", "", "0", "-PT5S", "-5s", "T5S"} {
		got, err := ParseISODuration("delivery.timeout", in)
		refused(t, "ParseISODuration", in, got, err, Error{Field: "delivery.timeout"})
	}
}

// Seconds are exact and rounded up.
func TestParseSeconds_ExactAndRoundedUp(t *testing.T) {
	t.Parallel()
	zeros := strings.Repeat("0", 2000)
	for in, want := range map[string]time.Duration{
		"0": 0, "-0": 0, "0.0": 0, "0e99999999999": 0, "-0.000e5": 0, "0." + zeros: 0,
		"1": time.Second, "300": 5 * time.Minute, "1.5": 1500 * time.Millisecond, "1e3": 1000 * time.Second, "1E+3": 1000 * time.Second,
		"15e-1": 1500 * time.Millisecond, "0.1": 100 * time.Millisecond, "0.3": 300 * time.Millisecond,
		"0.1234567891": 123456790, "1e-9": 1, "1e-10": 1, "1e-400": 1, "1e-99999999999999999999": 1, "9e-9": 9, "0.0000000091": 10,
		"1.0000000000000000000000001": time.Second + 1,
		"9007199254740993e-9":         9007199254740993, // 2^53+1, which a float64 does not hold
		"3155760000":                  MaxDuration,
		"3155760000.000":              MaxDuration,
		"31557600e2":                  MaxDuration,
		"1" + zeros + "e-2000":        time.Second, // strconv.ParseFloat reads this as 1e-1201
		"0." + zeros + "1e2001":       time.Second,
		"3155759999.9999999991":       MaxDuration,
		"3155759999.999999999":        MaxDuration - 1,
		"0." + zeros + "1":            1,
		"1." + zeros + "1":            time.Second + 1,
		"0.00000000100":               1,
	} {
		if got, err := ParseSeconds("delay", in); err != nil || got != want {
			t.Errorf("ParseSeconds(%.40q) = %v, %v, want %v", in, got, err, want)
		}
	}
	for in, wantDetail := range map[string]string{
		"": "is not", "-": "is not", ".": "is not", "e5": "is not", "1e": "is not", "1e5.5": "is not", "5s": "is not", "NaN": "is not",
		"Inf": "is not", "infinity": "is not", "0x10": "is not", "0x1p-2": "is not", "1_0": "is not", "1/2": "is not", " 1": "is not", "1 ": "is not",
		"--1": "is not", "+1": "is not", "1.2.3": "is not", "1e1e1": "is not", "٣": "is not", `"5"`: "is not", "1e_1": "is not",
		"-1": "is negative", "-1e-400": "is negative", "-0.0000001": "is negative",
		"3155760000.0000000001": "more than 100 years", "3155760001": "more than 100 years", "1e10": "more than 100 years",
		"1e400": "more than 100 years", "1e99999999999999999999": "more than 100 years", "18446744074": "more than 100 years",
	} {
		got, err := ParseSeconds("delay", in)
		refused(t, "ParseSeconds", in, got, err, Error{Field: "delay", Detail: wantDetail})
	}
}

// A number may be as long as a request body is.
func TestParseSeconds_TakesLinearTime(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	got, err := ParseSeconds("delay", "1."+strings.Repeat("7", 16<<20))
	if want := 1777777778 * time.Nanosecond; err != nil || got != want {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	// Some 30 ms; a quadratic reader takes minutes.
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}

// refused checks that a parser's answer is the zero value and an
// invalid_argument about the field, whose detail contains the wanted one.
func refused[T comparable](t *testing.T, parser, in string, got T, err error, want Error) {
	t.Helper()
	var zero T
	var e *Error
	switch {
	case !errors.As(err, &e):
		t.Errorf("%s(%.40q) = %v, %v, want an *Error", parser, in, got, err)
	case got != zero:
		t.Errorf("%s(%.40q) = %v beside %v, want the zero value", parser, in, got, err)
	case e.Code != CodeInvalid || e.Field != want.Field || !strings.HasPrefix(e.Detail, want.Field+": ") || !strings.Contains(e.Detail, want.Detail):
		t.Errorf("%s(%.40q): code %s, field %q, detail %q, want %s about %q that says %q", parser, in, e.Code, e.Field, e.Detail, CodeInvalid, want.Field, want.Detail)
	case len(e.Detail) > 500:
		t.Errorf("%s(%.40q): a detail of %d bytes", parser, in, len(e.Detail))
	}
}
