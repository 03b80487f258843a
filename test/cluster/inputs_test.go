package cluster

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// go test reuses a result while the files and the variables that tests read are the same.
// It does not see what TestMain reads, so this test looks at the same files again. No pattern is of names in the root:
// go test would hash the times of all that is there, bin and .git among them, and reuse nothing.
func TestInputs_AreSeenByGoTest(t *testing.T) {
	t.Parallel()
	_, _ = harness.Binary(), os.Getenv("KUBEBUILDER_ASSETS")
	for _, pattern := range []string{
		"../../config/*.yaml",
		"../../go.mod", "../../go.sum", // the version of Knative's manifests
		"../../tools/go.*", "../../tools/cluster/go.*",
		"../../config/*/Kustomization", "../../config/components/*/*", "../../tools/olm/*", // the bundle
		"../../charts/reschedule/*.*", "../../charts/reschedule/templates/*", "../../config/*/*.yaml", "../operators/go.*", // the chart
	} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s has %d files: %v", pattern, len(files), err)
		}
		for _, file := range files {
			if _, err := os.ReadFile(file); err != nil {
				t.Error(err)
			}
		}
	}
}
