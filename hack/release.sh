#!/usr/bin/env bash
# Builds and pushes the images, and writes the manifests that install them:
#
#   dist/reschedule.yaml       everything
#   dist/reschedule-crds.yaml  the CRD alone, for installations that apply CRDs first
#   dist/reschedule-tls.yaml   the adapter's certificate (cert-manager), beside the first
#   dist/reschedule-admission.yaml  the admission policies and the rights that they bound,
#                              which the first has too, for installations by OLM
#   dist/adapter-replicated.txt  the image of cmd/adapter-replicated, which the first does not name
#
# KO_DOCKER_REPO is the repository of the images. VERSION is their tag and the version
# label of every object. PLATFORMS is ko's --platform, KOFLAGS are further flags of ko, and
# DIST replaces the directory dist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [ -z "${KO_DOCKER_REPO:-}" ]; then
    echo "KO_DOCKER_REPO is not set: name the registry and path that the images are pushed to," >&2
    echo "for example KO_DOCKER_REPO=ghcr.io/reschedule-dev hack/release.sh" >&2
    exit 1
fi
export VERSION=${VERSION:-$(git describe --tags --always --dirty)}
if ! [[ $VERSION =~ ^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$ ]]; then
    echo "VERSION is \"$VERSION\", which is no valid tag and label: use at most 63 letters, digits, dots, dashes and underscores" >&2
    exit 1
fi

# Releases are built with the toolchain of go.mod or a newer one: an older toolchain
# passes every test but has known vulnerabilities.
toolchain=$(sed -n 's/^toolchain go//p' go.mod)
go=$(go env GOVERSION)
if [ "$(printf '%s\n' "$toolchain" "${go#go}" | sort -V | head -n 1)" != "$toolchain" ]; then
    echo "Go is ${go#go}; go.mod asks for $toolchain or newer: install that, or set GOTOOLCHAIN=auto" >&2
    exit 1
fi

ko() { go run -modfile=tools/ko/go.mod github.com/google/ko "$@"; }
label() { sed "s|app.kubernetes.io/version: devel\$|app.kubernetes.io/version: \"$VERSION\"|"; }

# The files are written elsewhere first: half a file must not look like a release.
dist=${DIST:-dist}
mkdir -p "$dist"
out=$(mktemp -d "$dist/.release.XXXXXX")
trap 'rm -rf "$out"' EXIT
# shellcheck disable=SC2206 # KOFLAGS are several flags
flags=(--base-import-paths --tags "$VERSION" --platform "${PLATFORMS:-linux/amd64,linux/arm64,linux/s390x,linux/ppc64le}" ${KOFLAGS:-})
ko resolve --filename config/ "${flags[@]}" >"$out/images.yaml"
ko build ./cmd/adapter-replicated "${flags[@]}" >"$out/adapter-replicated.txt"
label <"$out/images.yaml" >"$out/reschedule.yaml"
label <config/300-reschedulesource.yaml >"$out/reschedule-crds.yaml"
label <config/tls/adapter-certificate.yaml >"$out/reschedule-tls.yaml"
for file in config/20[456]-*.yaml; do echo ---; label <"$file"; done >"$out/reschedule-admission.yaml"
rm "$out/images.yaml"
mv "$out"/* "$dist/"
echo "$dist/reschedule.yaml, reschedule-crds.yaml, reschedule-tls.yaml, reschedule-admission.yaml and adapter-replicated.txt are $VERSION" >&2
