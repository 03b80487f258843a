package schedule

import (
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"
)

// The oracles read with regular expressions and exact fractions.

var (
	goPart    = regexp.MustCompile(`([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)`)
	goWhole   = regexp.MustCompile(`^(?:` + goPart.String() + `)+$`)
	isoNumber = `([0-9]+[.,]?[0-9]*|[.,][0-9]+)`
	isoWhole  = regexp.MustCompile(`^P(?:` + isoNumber + `W)?(?:` + isoNumber + `D)?(?:T(?:` + isoNumber + `H)?(?:` + isoNumber + `M)?(?:` + isoNumber + `S)?)?$`)
	goUnits   = map[string]time.Duration{
		"ns": 1, "us": time.Microsecond, "µs": time.Microsecond, "μs": time.Microsecond,
		"ms": time.Millisecond, "s": time.Second, "m": time.Minute, "h": time.Hour,
	}
	isoUnits = []time.Duration{week, day, time.Hour, time.Minute, time.Second}
	jsonText = regexp.MustCompile(`^-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?$`)
	maxExact = big.NewRat(int64(MaxDuration), 1)
)

// exactGo and exactISO return the nanoseconds that s stands for, and of how
// many parts; no parts when it is no duration.
func exactGo(s string) (exact *big.Rat, parts int) {
	exact = new(big.Rat)
	if !goWhole.MatchString(s) {
		return exact, 0
	}
	for _, m := range goPart.FindAllStringSubmatch(s, -1) {
		addExact(exact, m[1], goUnits[m[2]])
		parts++
	}
	return exact, parts
}

func exactISO(s string) (exact *big.Rat, parts int) {
	exact = new(big.Rat)
	m := isoWhole.FindStringSubmatch(s)
	if m == nil || strings.HasSuffix(s, "T") {
		return exact, 0
	}
	fraction := false
	for i, n := range m[1:] {
		if n == "" {
			continue
		}
		if fraction { // only the last part may have one
			return exact, 0
		}
		fraction = strings.ContainsAny(n, ".,")
		addExact(exact, strings.Replace(n, ",", ".", 1), isoUnits[i])
		parts++
	}
	return exact, parts
}

func addExact(sum *big.Rat, n string, unit time.Duration) {
	x, ok := new(big.Rat).SetString(strings.TrimSuffix(n, "."))
	if !ok {
		panic("the oracle cannot read " + n)
	}
	sum.Add(sum, x.Mul(x, big.NewRat(int64(unit), 1)))
}

// ParseDuration agrees with exact arithmetic for any text in the forms of Go and ISO 8601, and never rounds down.
func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{
		"5m30s", "PT5M30S", "1.0000000001s", "0.1ns0.1ns", "P1W2DT3H4M5.6S", "P0,5D", "876600h", "876600h0.1ns", "P36525D", "-5s", "300", "0",
		"", "P", "PT", "P1Y", "18446744073709551616ns", "9223372036854775807ns", "0.0000000000000000000000001h", "1µs1μs",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 1000 { // big.Rat is quadratic
			return
		}
		exact, parts := exactISO(s)
		if !strings.HasPrefix(s, "P") {
			exact, parts = exactGo(s)
		}
		got, err := ParseDuration("delay", s)
		checkExact(t, s, got, err, exact, parts)
		if strings.HasPrefix(s, "P") {
			if iso, isoErr := ParseISODuration("delay", s); iso != got || (isoErr == nil) != (err == nil) {
				t.Errorf("ParseISODuration(%q) = %v, %v, ParseDuration = %v, %v", s, iso, isoErr, got, err)
			}
			return
		}
		if std, stdErr := time.ParseDuration(s); stdErr == nil && err == nil && (got < std || got > std+time.Duration(parts)) {
			t.Errorf("ParseDuration(%q) = %d, the standard library says %d", s, got, std)
		}
	})
}

// ParseSeconds agrees with exact arithmetic for any JSON number, and no text gives more than MaxDuration.
func FuzzParseSeconds(f *testing.F) {
	for _, s := range []string{
		"0", "-0", "1", "300", "1.5", "1e3", "1e-9", "1e-10", "0.1", "3155760000", "3155760000.0000000001", "-1", "1e999", "NaN", "0x10", "1_0",
		"9007199254740993e-9", "10000000000000000000000000000000e-31",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 1000 {
			return
		}
		got, err := ParseSeconds("delay", s)
		if got < 0 || got > MaxDuration {
			t.Errorf("ParseSeconds(%q) = %v", s, got)
		}
		if !jsonText.MatchString(s) {
			return // more is read than JSON numbers, but no more is promised
		}
		exact, ok := new(big.Rat).SetString(s)
		if !ok {
			t.Fatalf("the oracle cannot read %q", s)
		}
		parts := 1
		if exact.Sign() < 0 {
			parts = 0
		}
		checkExact(t, s, got, err, exact.Mul(exact, big.NewRat(int64(time.Second), 1)), parts)
	})
}

// checkExact wants exactly the durations of at least one part and at most 100 years to be read, never as less than they
// are, and as less than a nanosecond more for each part.
func checkExact(t *testing.T, s string, got time.Duration, err error, exact *big.Rat, parts int) {
	t.Helper()
	diff := new(big.Rat).Sub(big.NewRat(int64(got), 1), exact)
	rounding := big.NewRat(int64(parts), 1)
	switch {
	case parts == 0 && err == nil:
		t.Errorf("%q is read as %v", s, got)
	case parts == 0:
	case err != nil && new(big.Rat).Add(exact, rounding).Cmp(maxExact) <= 0:
		t.Errorf("%q is refused: %v", s, err)
	case err == nil && (diff.Sign() < 0 || diff.Cmp(rounding) >= 0):
		t.Errorf("%q is read as %d ns, it is %s ns", s, got, exact.FloatString(3))
	case err == nil && got > MaxDuration:
		t.Errorf("%q is read as %v, over 100 years", s, got)
	}
}

// ParseInstant accepts only RFC 3339, rounds up to a nanosecond, and returns no time over 100 years ahead.
func FuzzParseInstant(f *testing.F) {
	for _, s := range []string{
		"2026-11-21T09:00:00Z", "2026-11-21T09:00:00.0000000001Z", "2026-11-21T09:00:00.999999999999+23:59", "2126-11-22T09:00:00Z",
		"0000-01-01T00:00:00Z", "9999-12-31T23:59:59.9999999999-23:59", "2026-11-21T9:00:00Z", "2026-11-21T09:00:00,1Z", "2026-11-21t09:00:00z", "", "T", "Z",
	} {
		f.Add(s)
	}
	shape := regexp.MustCompile(`^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$`)
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseInstant("dueAt", s, t0)
		if err != nil {
			if !got.IsZero() {
				t.Errorf("ParseInstant(%q) = %v beside %v", s, got, err)
			}
			return
		}
		s = strings.ToUpper(s)
		m := shape.FindStringSubmatch(s)
		if m == nil {
			t.Fatalf("ParseInstant(%q) = %v", s, got)
		}
		whole, err := time.Parse(time.RFC3339, strings.Replace(s, m[1], "", 1))
		if err != nil {
			t.Fatalf("ParseInstant(%q) = %v: %v", s, got, err)
		}
		if whole.Before(earliest) {
			if !got.Equal(earliest) && !got.After(earliest) {
				t.Errorf("ParseInstant(%q) = %v", s, got)
			}
			return
		}
		exact := new(big.Rat)
		if m[1] != "" && len(s) < 1000 {
			addExact(exact, "0"+m[1], time.Second)
		} else if m[1] != "" {
			return
		}
		diff := new(big.Rat).Sub(big.NewRat(int64(got.Sub(whole)), 1), exact)
		if diff.Sign() < 0 || diff.Cmp(big.NewRat(1, 1)) >= 0 {
			t.Errorf("ParseInstant(%q) = %v", s, got)
		}
		if got.After(t0.Add(MaxDuration)) {
			t.Errorf("ParseInstant(%q) = %v, over 100 years ahead", s, got)
		}
	})
}

// A key is valid when it is 1 to 512 bytes of UTF-8 without control characters.
func FuzzValidateKey(f *testing.F) {
	for _, s := range []string{"", "k", "a/b", "ä", "\x00", "\xff", "\u0085", "\ufffd", strings.Repeat("k", 513)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		want := s != "" && len(s) <= 512 && utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
		if err := ValidateKey(s); (err == nil) != want {
			t.Errorf("ValidateKey(%q) = %v", s, err)
		}
	})
}
