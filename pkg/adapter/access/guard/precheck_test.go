package guard

import (
	"encoding/base64"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

func segment(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

// What the claims of a token are refused for.
func TestPrecheck_ReadsClaims(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	const want = "a/b/c/d"
	head, good := segment(`{"alg":"none"}`), `{"aud":"a/b/c/d"`
	for token, says := range map[string]string{
		"":                                      "no JSON Web Token",
		"..":                                    "no JSON Web Token",
		"a.b.c":                                 "no JSON Web Token",
		head + "." + segment(good+"}"):          "no JSON Web Token",
		head + "." + segment(good+"}") + ".":    "no JSON Web Token",
		head + "." + segment(good+"}") + ".s.t": "no JSON Web Token",
		segment(`{}`) + "." + segment(good+"}") + ".s":                                "no JSON Web Token",
		segment(`{"alg":1}`) + "." + segment(good+"}") + ".s":                         "no JSON Web Token",
		head + "." + segment(good+"}") + "=.s":                                        "no JSON Web Token",
		head + "." + segment("null") + ".s":                                           "no JSON Web Token",
		head + "." + segment(`["a/b/c/d"]`) + ".s":                                    "no JSON Web Token",
		head + "." + segment(`{"aud":1}`) + ".s":                                      "no JSON Web Token",
		head + "." + segment(`{"aud":["a/b/c/d",1]}`) + ".s":                          "no JSON Web Token",
		head + "." + segment(good+`,"exp":"soon"}`) + ".s":                            "no JSON Web Token",
		head + "." + segment(good+`}`+strings.Repeat(" ", kube.MaxTokenBytes)) + ".s": "no JSON Web Token",
		head + "." + segment(`{}`) + ".s":                                             "names no audience",
		head + "." + segment(`{"aud":[]}`) + ".s":                                     "names no audience",
		head + "." + segment(`{"aud":null}`) + ".s":                                   "names no audience",
		head + "." + segment(`{"aud":"a/b/c/dd"}`) + ".s":                             `for the audience "a/b/c/dd";`,
		head + "." + segment(`{"aud":["A/b/c/d","x"]}`) + ".s":                        `for the audience "A/b/c/d" and 1 more;`,
		head + "." + segment(good+`}`) + ".s":                                         "",
		head + "." + segment(`{"aud":["x","a/b/c/d"]}`) + ".s":                        "",
		head + "." + segment(good+`,"exp":null}`) + ".s":                              "",
		head + "." + segment(good+`,"exp":1000000}`) + ".s":                           "",
		head + "." + segment(good+`,"exp":999940.9}`) + ".s":                          "expired at 1970-01-12T13:45:40Z, and it is 1970-01-12T13:46:40Z here",
		head + "." + segment(good+`,"exp":999941}`) + ".s":                            "",
		head + "." + segment(good+`,"exp":-1e300}`) + ".s":                            "expired",
		head + "." + segment(good+`,"exp":1e300}`) + ".s":                             "",
		head + "." + segment(good+`,"exp":1000000,"nbf":9e9,"x":[{}]}`) + ".s":        "",
	} {
		_, _, err := precheck(token, want, now)
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%.100s: %v, want %q", token, err, says)
		}
	}
}

// A token that passes is well-formed and not expired. A refusal is CodeUnauthenticated and quotes no long token.
func FuzzPrecheck(f *testing.F) {
	f.Add("")
	f.Add("a.b.c")
	f.Add(newToken(insider))
	f.Add(newToken(insider, claim("aud", "x"), claim("exp", 1)))
	f.Add(newToken(insider, claim("exp", math.MaxFloat64)))
	f.Add(segment(`{"alg":"x"}`) + "." + segment(`{"aud":[`+strings.Repeat("[", 500)) + ".s")
	f.Fuzz(func(t *testing.T, token string) {
		want, now := audience(ns, name), time.Now()
		_, expiry, err := precheck(token, want, now)
		if err == nil {
			parts := strings.Split(token, ".")
			if len(parts) != 3 {
				t.Fatalf("%q passes", token)
			}
			payload, decodeErr := base64.RawURLEncoding.DecodeString(parts[1])
			if decodeErr != nil || len(token) > kube.MaxTokenBytes {
				t.Fatalf("%q passes: %v, %s", token, decodeErr, payload)
			}
			if !expiry.IsZero() && !expiry.After(now.Add(-leeway)) {
				t.Fatalf("%q passes and expired at %s", token, expiry)
			}
			return
		}
		var e *schedule.Error
		if !errors.As(err, &e) || e.Code != schedule.CodeUnauthenticated || len(e.Detail) > 2000 {
			t.Fatalf("%q: %v", token, err)
		}
		if len(token) > 200 && strings.Contains(e.Detail, token) {
			t.Fatal("the detail quotes the token")
		}
	})
}
