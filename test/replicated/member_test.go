package replicated

import (
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

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

// patient lets members hand the shard over, and no member claim it otherwise: its owner may be
// silent for so long. With the usual 0.6 s a disk that stands still for half a second, as all disks
// of a busy machine do, ends the owner's lease. That cuts deliveries off and fails calls, as it must.
const patience = 5 * time.Second

func patient(t *testing.T) func(i int) harness.Process {
	t.Helper()
	program := alterable(t)
	return func(int) harness.Process {
		return harness.Process{Binary: program, Env: []string{"SILENCE=" + patience.String()}}
	}
}
