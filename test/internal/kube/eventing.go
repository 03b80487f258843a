package kube

import (
	"context"
	"path/filepath"
)

// SystemNamespace is where Knative Eventing is installed, and we with it.
const SystemNamespace = "knative-eventing"

// eventing are the files of Knative Eventing's own installation that a source
// and its controller rest on: the kinds they watch or send to, the
// configuration they read, the roles that theirs are aggregated into.
var eventing = []string{
	"100-namespace.yaml",
	"resources/eventpolicy.yaml",
	"resources/broker.yaml",
	"configmaps/features.yaml",
	"configmaps/kreference-mapping.yaml",
	"configmaps/leader-election.yaml",
	"configmaps/logging.yaml",
	"configmaps/observability.yaml",
	"roles/addressable-resolvers-clusterrole.yaml",
	"roles/source-observer-clusterrole.yaml",
}

// InstallEventing applies what of Knative Eventing a source needs, as the
// module of the version in go.mod has it. Nothing of it runs.
func (s *Server) InstallEventing(ctx context.Context) error { return s.ApplyEventing(ctx, eventing...) }

// ApplyEventing applies files of its config/core.
func (s *Server) ApplyEventing(ctx context.Context, names ...string) error {
	module, err := command(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "knative.dev/eventing")
	if err != nil {
		return err
	}
	files := make([]string, len(names))
	for i, name := range names {
		files[i] = filepath.Join(module, "config", "core", filepath.FromSlash(name))
	}
	return s.ApplyFiles(ctx, files...)
}
