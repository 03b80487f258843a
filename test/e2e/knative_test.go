//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// authSuites is the test of the suites that want authentication.
const authSuites = "^TestKnative_Auth$"

// suitesProgram is the program of the suites, with its flags.
var suitesProgram = sync.OnceValues(func() ([]string, error) {
	const eventshub = "knative.dev/reconciler-test/cmd/eventshub"
	program, err := compiled("suites", "-C", suitesModule, "test", "-c", "-tags", "e2e,grpcnotrace", ".")
	if err != nil {
		return nil, err
	}
	image, err := ko(context.Background(), "test/knative", "build", "-B", "--sbom=none", eventshub)
	if err != nil {
		return nil, err
	}
	images := filepath.Join(filepath.Dir(program), "eventshub.yaml")
	// Steps of a feature wait for each other, so there must be a place for all.
	return []string{program, "-test.v", "-test.parallel=50", "-poll.interval=500ms", "-images.producer.file=" + images},
		os.WriteFile(images, fmt.Appendf(nil, "%s: %s\n", eventshub, strings.TrimSpace(image)), 0o600)
})

// suites builds Knative's own suites and their image, and returns how to run them, with a flag that says which.
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
		cmd := exec.CommandContext(ctx, program[0], append(program[1:], which)...)
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
