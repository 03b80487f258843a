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
	for name, c := range map[string]struct {
		env      []string
		terminal bool
		want     bool
	}{
		"a terminal":         {[]string{"TERM=xterm", "NO_COLOR="}, true, true},
		"NO_COLOR":           {[]string{"TERM=xterm", "NO_COLOR=1"}, true, false},
		"a terminal without": {[]string{"TERM=dumb", "NO_COLOR="}, true, false},
		"a pipe":             {[]string{"TERM=xterm", "NO_COLOR="}, false, false},
	} {
		out, in, err := os.Pipe()
		if c.terminal {
			out, in, err = pty.Open()
		}
		if err != nil {
			t.Fatal(err)
		}
		p := program(t, "kn-source-reschedule", "why", "ok", "none", "--server", adapterURL, "--token-file", tokenFile)
		p.Env = append(p.Env, c.env...)
		p.Stdout = in
		_ = p.Run() // its code says that there is a problem
		_ = in.Close()
		read, _ := io.ReadAll(out) // a terminal without a process ends with an error
		_ = out.Close()
		if text := string(read); strings.Contains(text, "\x1b[31m") != c.want || strings.Contains(text, "\x1b") != c.want || !strings.Contains(text, "cause: ") {
			t.Errorf("%s: %q, want colours: %t", name, text, c.want)
		}
	}
}
