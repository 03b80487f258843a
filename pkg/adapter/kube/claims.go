package kube

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strings"
)

// MaxTokenBytes bounds a token; a service account's token has 1 to 2 KB.
const MaxTokenBytes = 16 << 10

// Claims are what a token says about itself, unverified.
type Claims struct {
	Issuer    string    `json:"iss"`
	Subject   string    `json:"sub"`
	Audiences Audiences `json:"aud"`
	Expiry    *float64  `json:"exp"`

	// KeyID is the name of the signing key, from the token's header.
	KeyID string `json:"-"`
}

// Audiences are a string or a list of strings (RFC 7519, 4.1.3).
type Audiences []string

// UnmarshalJSON implements [json.Unmarshaler].
func (a *Audiences) UnmarshalJSON(b []byte) error {
	if bytes.HasPrefix(b, []byte{'"'}) {
		*a = make(Audiences, 1)
		return json.Unmarshal(b, &(*a)[0])
	}
	return json.Unmarshal(b, (*[]string)(a))
}

// ReadClaims reads a JSON Web Token in its compact form. It returns false for
// anything else.
func ReadClaims(token string) (Claims, bool) {
	var c Claims
	if len(token) > MaxTokenBytes {
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
	c.KeyID = h.Key
	return c, decodeSegment(payload, &c)
}

func decodeSegment(segment string, v any) bool {
	b, err := base64.RawURLEncoding.DecodeString(segment)
	return err == nil && bytes.HasPrefix(b, []byte{'{'}) && json.Unmarshal(b, v) == nil
}
