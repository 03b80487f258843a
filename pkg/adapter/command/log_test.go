package command

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strings"
	"testing"
)

// The log in a cluster has no character that a terminal obeys, and programs read what was logged. It had
// control characters beyond ASCII, and marks that reorder text, as a sink answered them.
func TestLog_HasNoControlCharacters(t *testing.T) {
	t.Parallel()
	const text = "a \x1b[2J \u009b2J \x7f \u202egnp \U000e0041 \u200b 語 é\n"
	var b bytes.Buffer
	slog.New(slog.NewJSONHandler(escaped{&b}, nil)).Warn("a delivery failed", "text", text)
	line := b.String()
	if strings.ContainsAny(strings.TrimSuffix(line, "\n"), "\x1b\u009b\x7f\u202e\U000e0041\u200b\n") || !strings.Contains(line, "語 é") {
		t.Errorf("the line is %q", line)
	}
	var read map[string]any
	if err := json.Unmarshal([]byte(line), &read); err != nil || read["text"] != text {
		t.Errorf("the line is read as %q, %v", read, err)
	}
}
