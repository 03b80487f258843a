#!/usr/bin/env bash
# Writes the bundle of a version for the Operator Lifecycle Manager, and validates it:
# olm-bundle.sh CONFIG VERSION OUT. CONFIG is a copy of config/ whose images have digests.
set -euo pipefail
config=$(realpath "$1") version=$2
mkdir -p "$3"
out=$(realpath "$3")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -R "$config" "$work/config"
cat >"$work/kustomization.yaml" <<EOT
resources: [config]
components: [config/olm]
EOT
go run -modfile=tools/go.mod sigs.k8s.io/kustomize/kustomize/v5 build "$work" >"$work/objects.yaml"
go -C tools run ./olm bundle -version "$version" -objects "$work/objects.yaml" -out "$out"
