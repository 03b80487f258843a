package knative

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// maxToken bounds a token; a service account's has 1 to 2 KB.
	maxToken = 16 << 10
	// leeway is how far the clocks of the adapter and the API server may be
	// apart; the API server itself allows as much.
	leeway = time.Minute
	// lastSecond bounds an expiry so that it can be calculated with: year 36812.
	lastSecond = 1 << 40
)

// claims are what a token says of itself.
type claims struct {
	Issuer    string    `json:"iss"`
	Subject   string    `json:"sub"`
	Audiences audiences `json:"aud"`
	Expiry    *float64  `json:"exp"`

	key    string    // the name of the key that it says it is signed with
	expiry time.Time // zero when there is none
}

// audiences are a string or a list of strings (RFC 7519, 4.1.3).
type audiences []string

// UnmarshalJSON implements [json.Unmarshaler].
func (a *audiences) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte{'"'}) {
		*a = make(audiences, 1)
		return json.Unmarshal(b, &(*a)[0])
	}
	return json.Unmarshal(b, (*[]string)(a))
}

// look reads what a token says of itself and refuses one that cannot be right.
// It verifies nothing, so it never admits anybody: it spares the API server
// what is hopeless, and tells the caller what is wrong, which the API server
// does not.
func look(token, want string, now time.Time) (claims, error) {
	c, ok := readClaims(token)
	if !ok {
		return c, unauthenticated(want, "the bearer token is no JSON Web Token")
	}
	if !slices.Contains(c.Audiences, want) {
		wrong := "the bearer token names no audience"
		if n := len(c.Audiences); n > 0 {
			wrong = fmt.Sprintf("the bearer token is for the audience %.200q", c.Audiences[0])
			if n > 1 {
				wrong += fmt.Sprintf(" and %d more", n-1)
			}
		}
		return c, unauthenticated(want, wrong)
	}
	if c.Expiry == nil {
		return c, nil
	}
	c.expiry = time.Unix(int64(max(0, min(*c.Expiry, lastSecond))), 0).UTC()
	if !now.Before(c.expiry.Add(leeway)) {
		return c, unauthenticated(want, fmt.Sprintf("the bearer token expired at %s, and it is %s here",
			c.expiry.Format(time.RFC3339), now.UTC().Format(time.RFC3339)))
	}
	return c, nil
}

// readClaims is false for what is no JWT in its compact form.
func readClaims(token string) (claims, bool) {
	var c claims
	if len(token) > maxToken {
		return c, false
	}
	header, rest, _ := strings.Cut(token, ".")
	payload, signature, _ := strings.Cut(rest, ".")
	if header == "" || payload == "" || signature == "" || strings.Contains(signature, ".") {
		return c, false
	}
	var h struct {
		Algorithm string `json:"alg"`
		Key       string `json:"kid"`
	}
	if !decodeSegment(header, &h) || h.Algorithm == "" {
		return c, false
	}
	c.key = h.Key
	return c, decodeSegment(payload, &c)
}

func decodeSegment(segment string, v any) bool {
	b, err := base64.RawURLEncoding.DecodeString(segment)
	return err == nil && bytes.HasPrefix(b, []byte{'{'}) && json.Unmarshal(b, v) == nil
}
