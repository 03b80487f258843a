//go:build e2e

package e2e

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// suitesModule has Knative's own suites.
const suitesModule = "../knative"

var suitesProgram = sync.OnceValues(func() (string, error) {
	return compiled("suites", "-C", suitesModule, "test", "-c", "-tags", "e2e,grpcnotrace", ".")
})

// suites compiles Knative's own suites, and returns how to run tests of them.
func suites(t *testing.T) (run func(tests string)) {
	t.Helper()
	program, err := suitesProgram()
	if err != nil {
		t.Fatal(err)
	}
	return func(tests string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		defer cancel()
		// Steps of a feature wait for each other, so there must be a place for all.
		cmd := exec.CommandContext(ctx, program, "-test.v", "-test.parallel=50", "-test.run="+tests)
		cmd.Dir = suitesModule
		out, err := cmd.CombinedOutput()
		log := filepath.Join(logs, "suites-"+strings.ReplaceAll(tests, "|", "-")+".log")
		if wrote := os.WriteFile(log, out, 0o644); err != nil {
			t.Errorf("%s of %s: %v; all of it is in %s\n%s", tests, suitesModule, errors.Join(err, wrote), log, tail(string(out)))
		}
	}
}

// Knative's suites without their authentication.
func TestKnative_Suites(t *testing.T) {
	beside(t)
	suites(t)("Conventions|Delivery|EventTypes")
}

// Knative's suites of authentication, which they switch on for all.
func knativeAuth(t *testing.T, turn func()) {
	run := suites(t)
	turn()
	run("Auth")
}
