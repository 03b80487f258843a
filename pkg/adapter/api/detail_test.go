package api

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// The start of an answer's body is shown as text of at most 1024 bytes, whatever it holds.
func TestDetail_IsTextAndBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		data, want string
	}{
		{"", ""},
		{"no", "no"},
		{strings.Repeat("x", maxDetail), strings.Repeat("x", maxDetail)},
		{strings.Repeat("€", 400)[:maxDetail], strings.Repeat("€", 341)}, // cut in a character
		{"a\xff\xfeb", "a\uFFFDb"},
		{strings.Repeat("a\xff", maxDetail/2), strings.Repeat("a\uFFFD", maxDetail/4)},
	} {
		if got := detail([]byte(c.data)); got != c.want || len(got) > maxDetail || !utf8.ValidString(got) {
			t.Errorf("%.20q...: %d bytes, %.20q...", c.data, len(got), got)
		}
	}
}
