//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// ko runs the ko of tools/ko at the root of the checkout, and returns what it
// prints. What it says on the way is for when it fails.
func ko(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"tool", "-modfile=tools/ko/go.mod", "ko"}, args...)...)
	cmd.Dir = "../.."
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("ko %s: %w\n%s", strings.Join(args, " "), err, &said)
	}
	return out.String(), nil
}

// buildImages builds the images of the tests and pushes them.
func buildImages(ctx context.Context) error {
	out, err := ko(ctx, "build", "--base-import-paths", "--sbom=none", "./test/e2e/images/recorder", "./test/e2e/images/function")
	if err != nil {
		return fmt.Errorf("the images of the tests cannot be built and pushed to KO_DOCKER_REPO=%s: %w", os.Getenv("KO_DOCKER_REPO"), err)
	}
	for image := range strings.FieldsSeq(out) {
		switch {
		case strings.Contains(image, "/recorder"):
			images.recorder = image
		case strings.Contains(image, "/function"):
			images.function = image
		}
	}
	if images.recorder == "" || images.function == "" {
		return fmt.Errorf("ko built %q, which are not the images recorder and function", out)
	}
	return nil
}
