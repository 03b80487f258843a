#!/usr/bin/env bash
# Generates deep copies, clients, listers, informers and the reconciler of the
# API in pkg/apis. It needs Go and the modules of tools, but no GOPATH and no vendor
# directory, and no network once the modules are downloaded. An argument names a copy of
# the tree to write to instead.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "${1:-$here/..}"

module=$(go list -m)
api=pkg/apis/sources/v1alpha1
client=pkg/client
header=$here/boilerplate.go.txt
# Not go tool, which ignores the -trimpath of GOFLAGS and would compile the standard library a second time.
generate() { go run -modfile="$here/../tools/go.mod" "$@"; }

rm -rf "$client"
generate k8s.io/code-generator/cmd/deepcopy-gen --go-header-file "$header" --output-file zz_generated.deepcopy.go "./$api"
generate k8s.io/code-generator/cmd/client-gen --go-header-file "$header" --clientset-name versioned --input-base "" --input "$module/$api" \
    --output-dir "$client/clientset" --output-pkg "$module/$client/clientset"
generate k8s.io/code-generator/cmd/lister-gen --go-header-file "$header" --output-dir "$client/listers" --output-pkg "$module/$client/listers" "./$api"
generate k8s.io/code-generator/cmd/informer-gen --go-header-file "$header" --versioned-clientset-package "$module/$client/clientset/versioned" \
    --listers-package "$module/$client/listers" --output-dir "$client/informers" --output-pkg "$module/$client/informers" "./$api"
generate knative.dev/pkg/codegen/cmd/injection-gen --go-header-file "$header" --input-dirs "$module/$api" \
    --versioned-clientset-package "$module/$client/clientset/versioned" \
    --external-versions-informers-package "$module/$client/informers/externalversions" \
    --listers-package "$module/$client/listers" --output-package "$module/$client/injection" --output-dir "$client/injection"
gofmt -w "$client"
