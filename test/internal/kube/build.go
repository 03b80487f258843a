package kube

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// program is one that is built from another module of this checkout.
type program struct {
	name, module string
	pkg          string
	version      string // of this module the program takes its version; "" where it knows it itself
}

var programs = []program{
	{name: "etcd", module: "tools/cluster", pkg: "go.etcd.io/etcd/server/v3"},
	{name: "kube-apiserver", module: "tools", pkg: "k8s.io/kubernetes/cmd/kube-apiserver", version: "k8s.io/kubernetes"},
}

// Assets returns the directory that has etcd and kube-apiserver:
// KUBEBUILDER_ASSETS if it is set, else bin/kube of this checkout, where they
// are built first.
//
// Whether a program there is still the right one is left to go build, which
// reads in it what it was built from and links only when that has changed. A
// comparison of times would be quicker by seconds, and wrong after a change of
// the Go version or of the flags.
func Assets(ctx context.Context) (string, error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" {
		for _, p := range programs {
			if _, err := os.Stat(filepath.Join(dir, p.name)); err != nil {
				return "", fmt.Errorf("kube: KUBEBUILDER_ASSETS: %w", err)
			}
		}
		return filepath.Abs(dir)
	}
	root, err := Checkout(ctx)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "bin", "kube")
	for _, p := range programs {
		if err := p.build(ctx, filepath.Join(root, p.module), filepath.Join(dir, p.name)); err != nil {
			return "", fmt.Errorf("kube: building %s: %w", p.name, err)
		}
	}
	return dir, nil
}

func (p program) build(ctx context.Context, module, binary string) error {
	flags := []string{"-s", "-w"}
	if p.version != "" {
		version, err := command(ctx, "go", "-C", module, "list", "-m", "-f", "{{.Version}}", p.version)
		if err != nil {
			return err
		}
		// Knative's controllers look at the version and refuse an API server
		// that has none.
		major, minor, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
		minor, _, _ = strings.Cut(minor, ".")
		for _, set := range []string{"gitVersion=" + version, "gitMajor=" + major, "gitMinor=" + minor, "gitTreeState=clean"} {
			flags = append(flags, "-X", "k8s.io/component-base/version."+set)
		}
	}
	// Nothing else imports these packages. Without inlining they compile in three quarters of the time.
	compiler := "-gcflags=k8s.io/kubernetes/...=-l -dwarf=false"
	cmd := exec.CommandContext(ctx, "go", "build", "-C", module, "-trimpath", compiler, "-ldflags", strings.Join(flags, " "), "-o", binary, p.pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return cmd.Run()
}

// Checkout is the root of the module whose tests run.
func Checkout(ctx context.Context) (string, error) {
	file, err := command(ctx, "go", "env", "GOMOD")
	if err != nil {
		return "", err
	}
	return filepath.Dir(file), nil
}

// command returns what a program prints.
func command(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("kube: %s: %w", strings.Join(cmd.Args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
