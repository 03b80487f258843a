//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
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
	{"test/operators", "helm", &images.helm},
	{"test/operators", "resident", &images.resident},
}

// ko runs the ko of tools/ko in a module of the checkout, and returns what it
// prints. What it says on the way is for when it fails.
func ko(ctx context.Context, module string, args ...string) (string, error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"run", "-modfile=" + filepath.Join(root, "tools/ko/go.mod"), "github.com/google/ko"}, args...)...)
	cmd.Dir = filepath.Join(root, module)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("ko %s in %s: %w\n%s", strings.Join(args, " "), module, err, &said)
	}
	return out.String(), nil
}

// Programs of this machine that several tests run. They are built once, and stay: go build leaves
// alone what is up to date.
var (
	commandLine = sync.OnceValues(func() (string, error) {
		return compiled("kn-source-reschedule", "-C", "../../cli", "build", ".")
	})
	adapterReplicated = sync.OnceValues(func() (string, error) {
		return compiled("adapter-replicated", "-C", "../..", "build", "-buildvcs=false", "./cmd/adapter-replicated")
	})
	crane = sync.OnceValues(func() (string, error) {
		return compiled("crane", "-C", "../../tools/ko", "build", "github.com/google/go-containerregistry/cmd/crane")
	})
)

// compiled has the go command write a program of a name, and returns its path.
func compiled(name string, args ...string) (string, error) {
	path, err := filepath.Abs(filepath.Join("../../bin/e2e-programs", name))
	if err != nil {
		return "", err
	}
	last := len(args) - 1 // what is compiled
	cmd := exec.Command("go", slices.Concat(args[:last], []string{"-o", path}, args[last:])...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, out)
	}
	return path, nil
}

// imageOnce returns the image of a name, by digest, that was made of these files or folders: by an
// earlier run, whose image is still in the registry, or now by make.
func imageOnce(name string, of []string, make func(crane, image string) (string, error)) (string, error) {
	crane, err := crane()
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	for _, root := range of {
		err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := os.ReadFile(file)
			fmt.Fprintf(sum, "%s %d %s", file, len(text), text)
			return err
		})
		if err != nil {
			return "", err
		}
	}
	repository := os.Getenv("KO_DOCKER_REPO") + "/" + name
	image := fmt.Sprintf("%s:%x", repository, sum.Sum(nil))
	if digest, err := exec.Command(crane, "digest", image).Output(); err == nil {
		return repository + "@" + strings.TrimSpace(string(digest)), nil
	}
	return make(crane, image)
}

// script runs an image.sh, and returns the image that it has pushed, by digest.
func script(crane, file, dir, image string) (string, error) {
	cmd := exec.Command(file, dir, image)
	cmd.Env = append(os.Environ(), "CRANE="+crane)
	return said(cmd)
}

// said runs a command, and returns the last word that it prints.
func said(cmd *exec.Cmd) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s%s", strings.Join(cmd.Args, " "), err, &out, &errs)
	}
	words := strings.Fields(out.String())
	if len(words) == 0 {
		return "", nil
	}
	return words[len(words)-1], nil
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
