package replicated

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// alterable is the program in the folder member, which is built for the first test that needs it.
func alterable(t *testing.T) string {
	t.Helper()
	program, err := buildMember()
	if err != nil {
		t.Fatal(err)
	}
	return program
}

var buildMember = sync.OnceValues(func() (string, error) {
	if _, err := os.ReadFile("member/main.go"); err != nil { // go test runs again when it has changed
		return "", err
	}
	program := filepath.Join(programs, "member")
	return program, harness.Build(program, "github.com/reschedule-dev/reschedule/test/replicated/member")
})

// patient are members that claim the group after five seconds of silence instead of 0.6, for tests of
// a hand-over. The lease of an owner ends when the disks stand still for half a second, as they do on a
// busy machine: then deliveries are cut off and calls fail, as they must, and nothing is said about a
// hand-over. With five seconds only a hand-over gets another owner before calls fail, after three.
func patient(t *testing.T) func(i int) harness.Process {
	t.Helper()
	program := alterable(t)
	return func(int) harness.Process { return harness.Process{Binary: program, Env: []string{"SILENCE=5s"}} }
}
