package hostile

import (
	"os"
	"testing"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// TestMain is two programs: the tests, and with an environment variable that only they set the attackers, so that what
// the attackers take of the processor can be held down.
func TestMain(m *testing.M) {
	if os.Getenv(asAttackers) != "" {
		os.Exit(attack(os.Stdin, os.Stdout))
	}
	os.Exit(harness.Main(m, func(string) (func() error, error) { return func() error { return nil }, nil }))
}

// must ends the test with an error of its own steps.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
