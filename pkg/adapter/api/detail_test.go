package api

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The start of an answer's body is shown as text of at most 1024 bytes, whatever it holds.
func TestDetail_IsTextAndBounded(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		data, want string
	}{
		{"", ""},
		{"no", "no"},
		{strings.Repeat("x", schedule.MaxFailureData), strings.Repeat("x", schedule.MaxFailureData)},
		{strings.Repeat("€", 400)[:schedule.MaxFailureData], strings.Repeat("€", 341)}, // cut in a character
		{"a\xff\xfeb", "a\uFFFDb"},
		{strings.Repeat("a\xff", schedule.MaxFailureData/2), strings.Repeat("a\uFFFD", schedule.MaxFailureData/4)},
	} {
		if got := detail([]byte(c.data)); got != c.want || len(got) > schedule.MaxFailureData || !utf8.ValidString(got) {
			t.Errorf("%.20q...: %d bytes, %.20q...", c.data, len(got), got)
		}
	}
}
