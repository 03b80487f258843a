#!/usr/bin/env bash
# Fails when hack/update-codegen.sh would change a file.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/pkg"
cp go.mod go.sum "$copy"
cp -r pkg/apis "$copy/pkg"
hack/update-codegen.sh "$copy"
if ! diff -r pkg/client "$copy/pkg/client" || ! diff -r pkg/apis "$copy/pkg/apis"; then
    echo "generated code is out of date: run hack/update-codegen.sh" >&2
    exit 1
fi
