package schedule

import (
	"errors"
	"strings"
	"testing"
)

// A key is up to 512 bytes of UTF-8 without control characters.
func TestValidateKey_Bounds(t *testing.T) {
	t.Parallel()
	for _, key := range []string{
		"k", "GitRepo/team-a/site", ".", "..", "/", "//", " ", "a b", "%2F", "ä", "键", "🚀", "\ufffd", "?x=#", `"\`,
		strings.Repeat("k", MaxKeyBytes), strings.Repeat("ä", MaxKeyBytes/2), "\u00a0", "\u200b",
	} {
		if err := ValidateKey(key); err != nil {
			t.Errorf("ValidateKey(%.20q) = %v", key, err)
		}
		if IsDeadLetterKey(key) {
			t.Errorf("%q is taken for a dead letter's key", key)
		}
	}
	for key, detail := range map[string]string{
		"":                                 "is empty",
		strings.Repeat("k", MaxKeyBytes+1): "513 bytes",
		strings.Repeat("ä", 257):           "514 bytes",
		"\x00":                             "control character at byte 0",
		"a\nb":                             "control character at byte 1",
		"a\x7f":                            "control character at byte 1",
		"ä\u0085":                          "control character at byte 2", // C1
		"\x1b[31m":                         "control character at byte 0",
		"a\xff":                            "not UTF-8 at byte 1",
		"\xed\xa0\x80":                     "not UTF-8 at byte 0", // a surrogate
		"\xc0\x80":                         "not UTF-8 at byte 0", // an overlong NUL
	} {
		err := ValidateKey(key)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeInvalid || e.Field != "key" || !strings.Contains(e.Detail, detail) {
			t.Errorf("ValidateKey(%.20q) = %v, want %q", key, err, detail)
		}
	}
}

// The key of a dead letter is never the key of a user.
func TestDeadLetterKey_IsNoUserKey(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, revision := range []uint64{0, 1, 35, 36, 1 << 63, 1<<64 - 1} {
		key := DeadLetterKey(revision)
		if !IsDeadLetterKey(key) || ValidateKey(key) == nil || seen[key] {
			t.Errorf("DeadLetterKey(%d) = %q", revision, key)
		}
		seen[key] = true
	}
	if IsDeadLetterKey("") {
		t.Error("the empty key is taken for a dead letter's")
	}
}

// Only the policies of the contract are known.
func TestParsePolicy_OnlyThoseOfTheContract(t *testing.T) {
	t.Parallel()
	for _, p := range policies {
		if got, err := ParsePolicy("policy", string(p)); got != p || err != nil {
			t.Errorf("ParsePolicy(%q) = %q, %v", p, got, err)
		}
	}
	for _, in := range []string{"", "Replace", "REPLACE", "soonest", "replace "} {
		got, err := ParsePolicy("policy", in)
		refused(t, "ParsePolicy", in, got, err, Error{Field: "policy", Detail: "replace, earliest, latest, keep, fail"})
	}
}

var policies = []Policy{Replace, Earliest, Latest, Keep, Fail}
