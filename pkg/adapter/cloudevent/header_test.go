package cloudevent

import (
	"testing"
	"unicode/utf8"
)

// Header values are encoded as the binding says.
func TestEncodeHeader_AsTheBindingSays(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":              "",
		"plain/~!'()*":  "plain/~!'()*",
		"a b":           "a%20b",
		`say "hi"`:      "say%20%22hi%22",
		"100%":          "100%25",
		"Euro € 😀":      "Euro%20%E2%82%AC%20%F0%9F%98%80", // the binding's own example
		"tab\t\x00\x7f": "tab%09%00%7F",
	} {
		if got := EncodeHeader(in); got != want {
			t.Errorf("encode %q: %q, want %q", in, got, want)
		}
		if got, err := DecodeHeader(want); err != nil || got != in {
			t.Errorf("decode %q: %q, %v", want, got, err)
		}
	}
}

// Header values are decoded leniently.
func TestDecodeHeader_IsLenient(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"a b":                   "a b",
		"é":                     "é",
		"%c3%a9":                "é",
		"%41":                   "A",
		"100%":                  "100%",
		"%zz%4":                 "%zz%4",
		`"quoted value"`:        "quoted value",
		`"with \"quote\" \\ x"`: `with "quote" \ x`,
		`"%22"`:                 `"`,
		`"`:                     `"`,
		`"a" and "b"`:           `"a" and "b"`,
		`"open\"`:               `"open\"`,
	} {
		if got, err := DecodeHeader(in); err != nil || got != want {
			t.Errorf("%q: %q %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"%C0%A0", "%FF", "\xff"} {
		if got, err := DecodeHeader(in); err == nil {
			t.Errorf("%q: %q, want an error", in, got)
		}
	}
}

// Any UTF-8 text is the same after EncodeHeader and DecodeHeader, and encoded it is visible ASCII without quotes.
func FuzzHeader(f *testing.F) {
	for _, s := range []string{"", "é %25", `"a\"b"`, "%", "%C3", "\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if out, err := DecodeHeader(s); err == nil && !utf8.ValidString(out) {
			t.Fatalf("%q became %q", s, out)
		}
		encoded := EncodeHeader(s)
		for i := range len(encoded) {
			if c := encoded[i]; c <= ' ' || c == '"' || c >= 0x7f {
				t.Fatalf("%q: byte %q in %q", s, c, encoded)
			}
		}
		if out, err := DecodeHeader(encoded); utf8.ValidString(s) && (err != nil || out != s) {
			t.Fatalf("%q came back as %q, %v", s, out, err)
		}
	})
}
