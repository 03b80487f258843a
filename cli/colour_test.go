package main

import (
	"io"
	"os"
	"strings"
	"testing"

	"github.com/creack/pty"
)

// Colours are for a real terminal whose user has not refused them. All else is the same without
// them.
func TestColour_TerminalOnly(t *testing.T) {
	t.Parallel()
	ok(t, "key", "set", "ok", "colour", "--in", "1h")
	for name, c := range map[string]struct {
		env      []string
		terminal bool
		want     bool
	}{
		"a terminal":          {[]string{"TERM=xterm", "NO_COLOR="}, true, true},
		"NO_COLOR":            {[]string{"TERM=xterm", "NO_COLOR=1"}, true, false},
		"a terminal without":  {[]string{"TERM=dumb", "NO_COLOR="}, true, false},
		"a pipe":              {[]string{"TERM=xterm", "NO_COLOR="}, false, false},
		"a pipe and NO_COLOR": {[]string{"TERM=xterm", "NO_COLOR=1"}, false, false},
	} {
		for key, colour := range map[string]string{"colour": "\x1b[32m", "none": "\x1b[31m"} { // fine, and a problem
			out, in, err := os.Pipe()
			if c.terminal {
				out, in, err = pty.Open()
			}
			if err != nil {
				t.Fatal(err)
			}
			p := program(t, "kn-source-reschedule", "why", "ok", key, "--server", adapterURL, "--token-file", tokenFile)
			p.Env = append(p.Env, c.env...)
			p.Stdout = in
			_ = p.Run() // its code says whether there is a problem
			_ = in.Close()
			read, _ := io.ReadAll(out) // a terminal without a process ends with an error
			_ = out.Close()
			text := string(read)
			if got := strings.HasPrefix(text, colour) && strings.Contains(text, "\x1b[0m"); got != c.want {
				t.Errorf("%s, %s: colours %t, want %t: %q", name, key, got, c.want, text)
			}
			if !c.want && strings.Contains(text, "\x1b") || !strings.Contains(text, "cause: ") {
				t.Errorf("%s, %s: %q", name, key, text)
			}
		}
	}
}
