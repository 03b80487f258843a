//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
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
	const folder = "./test/e2e/images/"
	named := map[string]*string{"recorder": &images.recorder, "function": &images.function, "nodekill": &images.nodekill}
	args := []string{"build", "--base-import-paths", "--sbom=none"}
	for name := range named {
		args = append(args, folder+name)
	}
	out, err := ko(ctx, args...)
	if err != nil {
		return fmt.Errorf("the images of the tests cannot be built and pushed to KO_DOCKER_REPO=%s: %w", os.Getenv("KO_DOCKER_REPO"), err)
	}
	for image := range strings.FieldsSeq(out) {
		repository, _, _ := strings.Cut(image, "@")
		name, _, _ := strings.Cut(path.Base(repository), ":")
		if into := named[name]; into != nil {
			*into = image
		}
	}
	for name, image := range named {
		if *image == "" {
			return fmt.Errorf("ko built %q, and no image %s", out, name)
		}
	}
	return nil
}
