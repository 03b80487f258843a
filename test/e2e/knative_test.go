//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// suitesModule has Knative's own suites.
const suitesModule = "../knative"

// authSuites is the test of the suites that want authentication.
const authSuites = "^TestKnative_Auth$"

var suitesProgram = sync.OnceValues(func() (string, error) {
	return compiled("suites", "-C", suitesModule, "test", "-c", "-tags", "e2e,grpcnotrace", ".")
})

// suites compiles Knative's own suites, and returns how to run them, with a flag that says which.
func suites(t *testing.T) (run func(name, which string)) {
	t.Helper()
	program, err := suitesProgram()
	if err != nil {
		t.Fatal(err)
	}
	return func(name, which string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
		defer cancel()
		// Steps of a feature wait for each other, so there must be a place for all.
		cmd := exec.CommandContext(ctx, program, "-test.v", "-test.parallel=50", which)
		cmd.Dir = suitesModule
		out, err := cmd.CombinedOutput()
		if !bytes.Contains(out, []byte("--- PASS: TestKnative_")) {
			err = errors.Join(err, errors.New("no test has passed"))
		}
		log := filepath.Join(logs, name+".log")
		if wrote := os.WriteFile(log, out, 0o644); err != nil {
			t.Errorf("%s %s: %v; all of it is in %s\n%s", suitesModule, which, errors.Join(err, wrote), log, tail(string(out)))
		}
	}
}

// Knative's suites without their authentication.
func TestKnative_Suites(t *testing.T) {
	beside(t)
	suites(t)("suites", "-test.skip="+authSuites)
}

// Knative's suites of authentication, which they switch on for all.
func knativeAuth(t *testing.T, turn func()) {
	run := suites(t)
	turn()
	run("suites-auth", "-test.run="+authSuites)
}
