package cloudevent

import (
	"errors"
	"strings"
	"unicode/utf8"
)

const upperHex = "0123456789ABCDEF"

// EncodeHeader percent-encodes an attribute's canonical string as the HTTP
// binding says (section 3.1.3.2): space, double quote, percent and everything
// outside printable ASCII. The SDK does not encode.
func EncodeHeader(s string) string {
	n := escapes(s)
	if n == 0 {
		return s
	}
	b := make([]byte, 0, len(s)+2*n)
	for i := 0; i < len(s); i++ {
		if c := s[i]; mustEscape(c) {
			b = append(b, '%', upperHex[c>>4], upperHex[c&15])
		} else {
			b = append(b, c)
		}
	}
	return string(b)
}

// escapes is how many bytes of the text EncodeHeader escapes.
func escapes(s string) (n int) {
	for i := range len(s) {
		if mustEscape(s[i]) {
			n++
		}
	}
	return n
}

func mustEscape(c byte) bool { return c <= ' ' || c == '"' || c == '%' || c >= 0x7f }

var errNotUTF8 = errors.New("is not UTF-8")

// DecodeHeader is the inverse. It removes double quotes around the whole value, which
// older producers wrote, and decodes percent signs once. A percent sign without two
// hex digits is itself, because many producers do not encode. A result that is not
// UTF-8 is refused.
func DecodeHeader(s string) (string, error) {
	s = unquote(s)
	if strings.IndexByte(s, '%') >= 0 {
		s = percentDecode(s)
	}
	if !utf8.ValidString(s) {
		return "", errNotUTF8
	}
	return s, nil
}

func percentDecode(s string) string {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); i++ {
		if s[i] == '%' && i+2 < len(s) {
			hi, ok1 := hexDigit(s[i+1])
			lo, ok2 := hexDigit(s[i+2])
			if ok1 && ok2 {
				b = append(b, hi<<4|lo)
				i += 2
				continue
			}
		}
		b = append(b, s[i])
	}
	return string(b)
}

func hexDigit(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	}
	return 0, false
}

// unquote undoes an RFC 7230 quoted-string that is the whole value.
func unquote(s string) string {
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return s
	}
	inner := s[1 : len(s)-1]
	if strings.IndexByte(inner, '"') < 0 && strings.IndexByte(inner, '\\') < 0 {
		return inner
	}
	b := make([]byte, 0, len(inner))
	for i := 0; i < len(inner); i++ {
		switch c := inner[i]; {
		case c == '"':
			return s // the quotes are not around one string
		case c == '\\' && i+1 == len(inner):
			return s // it escapes the closing quote
		case c == '\\':
			i++
			b = append(b, inner[i])
		default:
			b = append(b, c)
		}
	}
	return string(b)
}
