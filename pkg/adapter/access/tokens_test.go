package access

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A token file is read and reloaded; a bad one, and a missing one, changes nothing until it is right again.
func TestTokens_AreReadAndReloaded(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(content string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ReadTokens(file); err == nil {
		t.Error("no file, no error")
	}
	write("# who\r\none\r\n\n  two  \n#three\n")
	tokens, err := ReadTokens(file)
	if err != nil {
		t.Fatal(err)
	}
	admitted := func() (got []string) {
		for _, s := range []string{"one", "two", "three", "#three", "# who", "four"} {
			if _, ok := tokens.admit(http.Header{"Authorization": {"Bearer " + s}}); ok {
				got = append(got, s)
			}
		}
		return got
	}
	if got := fmt.Sprint(admitted()); got != "[one two]" {
		t.Error(got)
	}
	for _, bad := range []string{"", "\n# only\n", "good\nsecret word\n", "sécret\n", strings.Repeat("a\n", maxTokenFile)} {
		write(bad)
		if err := tokens.Reload(file); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%.20q: %v", bad, err)
		}
		if got := fmt.Sprint(admitted()); got != "[one two]" {
			t.Errorf("%.20q took tokens away: %s", bad, got)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := tokens.Reload(file); err == nil || fmt.Sprint(admitted()) != "[one two]" {
		t.Errorf("without the file: %v %v", err, admitted())
	}
	write("four")
	if err := tokens.Reload(file); err != nil || fmt.Sprint(admitted()) != "[four]" {
		t.Error(err, admitted())
	}
}

// Every token of a file can be sent in a header, and is admitted then.
func FuzzTokens(f *testing.F) {
	f.Add([]byte("one\n# two\n\nthree"))
	f.Fuzz(func(t *testing.T, b []byte) {
		tokens, err := parseTokens(b)
		if (err == nil) != (len(tokens) > 0) {
			t.Fatalf("%v %v", tokens, err)
		}
		all := new(Tokens)
		all.set.Store(newTokenSet(tokens))
		for _, s := range tokens {
			if _, ok := all.admit(map[string][]string{"Authorization": {"Bearer " + s.text}}); !ok {
				t.Fatalf("%q is not admitted", s.text)
			}
		}
	})
}
