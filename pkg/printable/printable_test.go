package printable

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"

	"sigs.k8s.io/yaml"
)

// texts have control characters of ASCII and beyond, marks that reorder text, and one beyond the first plane.
var texts = []string{
	"", "key", "键 🚀 ä", "a\tb\nc\rd", "\x1b[2J", "\u0085\u009b2J", "\u00a0\u2028\u2029\u3000", "\u202e\u2066x",
	"\U000e0041", "\U0010ffff", "\ufffd", "\x7f", "a\xffb",
}

// Line returns one line that is safe to print: white space is a space, and characters that a terminal obeys or hides
// are U+FFFD.
func TestLine_CanBePrinted(t *testing.T) {
	for text, want := range map[string]string{
		"a\tb\nc\r\u00a0d": "a b c  d",
		"键 🚀 ä":            "键 🚀 ä",
		"\x1b[2J \u009b2J": "\ufffd[2J \ufffd2J",
		"\u202e\U000e0041": "\ufffd\ufffd",
		"a\xffb":           "a\ufffdb",
	} {
		if got := Line(text); got != want {
			t.Errorf("%q is the line %q, want %q", text, got, want)
		}
	}
}

// JSON and YAML escape hidden characters in the syntax of their format, so that programs read the same values.
func TestEscapes_OfEachForm(t *testing.T) {
	text := []byte("\"ä\u009b\u202e\U000e0041\"")
	for _, c := range []struct {
		name string
		got  []byte
		want string
	}{
		{"JSON", JSON(text, Hidden), `"ä\u009b\u202e\udb40\udc41"`},
		{"JSON, control characters only", JSON(text, IsTerminalControl), "\"ä\\u009b\u202e\U000e0041\""},
		{"YAML", YAML(text), `"ä\u009b\u202e\U000e0041"`},
	} {
		if string(c.got) != c.want {
			t.Errorf("%s is %q, want %q", c.name, c.got, c.want)
		}
	}
}

// Any text: a line can be printed, and programs read the same values from the escaped forms.
func FuzzPrintable(f *testing.F) {
	for _, text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if line := Line(text); strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("the line is %q", line)
		}
		valid := strings.ToValidUTF8(text, "\ufffd")
		plain, err := json.Marshal(valid)
		if err != nil {
			t.Fatal(err)
		}
		var read string
		escaped := JSON(plain, Hidden)
		if err := json.Unmarshal(escaped, &read); err != nil || read != valid || strings.ContainsFunc(string(escaped), Hidden) {
			t.Errorf("JSON is %q, read as %q: %v", escaped, read, err)
		}
		escaped = YAML(plain) // JSON is YAML too
		if err := yaml.Unmarshal(escaped, &read); err != nil || read != valid || strings.ContainsFunc(string(escaped), Hidden) {
			t.Errorf("YAML is %q, read as %q: %v", escaped, read, err)
		}
	})
}
