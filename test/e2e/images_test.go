//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
)

// built are the images of the tests: the folder of a module in the checkout, the
// folder of a command in it, and where the image goes.
var built = []struct {
	module, command string
	image           *string
}{
	{".", "test/e2e/images/recorder", &images.recorder},
	{".", "test/e2e/images/function", &images.function},
	{".", "test/e2e/images/nodekill", &images.nodekill},
	{"test/operators", "obedient", &images.operator},
	{"test/operators", "chaospod", &images.chaospod},
	{"test/operators", "cainjector", &images.cainjector},
	{"test/operators/helm", ".", &images.helm},
}

// ko runs the ko of tools/ko in a module of the checkout, and returns what it
// prints. What it says on the way is for when it fails.
func ko(ctx context.Context, module string, args ...string) (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"tool", "-modfile=" + filepath.Join(root, "tools/ko/go.mod"), "ko"}, args...)...)
	cmd.Dir = filepath.Join(root, module)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("ko %s in %s: %w\n%s", strings.Join(args, " "), module, err, &said)
	}
	return out.String(), nil
}

// Programs of this machine that several tests run, built once.
var (
	commandLine = sync.OnceValues(func() (string, error) { return program("../../cli", ".", "kn-source-reschedule") })
	crane       = sync.OnceValues(func() (string, error) {
		return program("../../tools/ko", "github.com/google/go-containerregistry/cmd/crane", "crane")
	})
)

// program builds a command of a module, and returns its path.
func program(module, command, name string) (string, error) {
	path := filepath.Join(scratch, name)
	cmd := exec.Command("go", "-C", module, "build", "-o", path, command)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return path, nil
}

// buildImages builds the images of the tests and pushes them.
func buildImages(ctx context.Context) error {
	commands, named := map[string][]string{}, map[string]*string{}
	for _, b := range built {
		commands[b.module] = append(commands[b.module], "./"+b.command)
		named[path.Base(path.Join(b.module, b.command))] = b.image
	}
	for module, commands := range commands {
		out, err := ko(ctx, module, append([]string{"build", "--base-import-paths", "--sbom=none"}, commands...)...)
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
	}
	for name, image := range named {
		if *image == "" {
			return fmt.Errorf("ko built no image %s", name)
		}
	}
	return nil
}
