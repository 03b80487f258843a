package expression

import (
	"fmt"
	"testing"
)

// Check remembers its verdicts, so that an expression is compiled once, and remembers at most maxVerdicts.
func TestCheck_CompilesAnExpressionOnce(t *testing.T) {
	// Not in parallel: the verdicts are the process's. What was compiled once is
	// not compiled again, and what is remembered is bounded.
	for _, text := range []string{"event.subject == 'once'", "nope == 'once'"} {
		first := Check("", text)
		if _, err := Compile("", text); (err == nil) != (first == nil) || err != nil && err.Error() != first.Error() {
			t.Errorf("%s: %v, and compiled: %v", text, first, err)
		}
		if n := testing.AllocsPerRun(100, func() { _ = Check("", text) }); n > 10 {
			t.Errorf("%s: %v allocations to say it again", text, n)
		}
	}
	if Check("'a'", "") != nil || Check("", "'a'") == nil || Check("", "") != nil {
		t.Error("the two fields are mixed up")
	}
	for i := range maxVerdicts + 10 {
		if err := Check("", fmt.Sprintf("%d", i)); err == nil {
			t.Fatal("an int is a bool")
		}
		if len(verdicts.of) > maxVerdicts {
			t.Fatalf("%d verdicts are remembered", len(verdicts.of))
		}
	}
}
