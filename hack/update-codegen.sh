#!/usr/bin/env bash
# Generates deep copies, clients, listers, informers and the reconciler of the
# API in pkg/apis. Needs Go and the modules of hack/codegen; no network once they
# are there, no GOPATH and no vendor folder. With an argument it writes into that
# copy of the tree instead.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "${1:-$here/..}"

module=$(go list -m)
api=pkg/apis/sources/v1alpha1
client=pkg/client
header=$here/boilerplate.go.txt
generate() { go tool -modfile="$here/codegen/go.mod" "$@"; }

rm -rf "$client"
generate deepcopy-gen --go-header-file "$header" --output-file zz_generated.deepcopy.go "./$api"
generate client-gen --go-header-file "$header" --clientset-name versioned --input-base "" --input "$module/$api" \
    --output-dir "$client/clientset" --output-pkg "$module/$client/clientset"
generate lister-gen --go-header-file "$header" --output-dir "$client/listers" --output-pkg "$module/$client/listers" "./$api"
generate informer-gen --go-header-file "$header" --versioned-clientset-package "$module/$client/clientset/versioned" \
    --listers-package "$module/$client/listers" --output-dir "$client/informers" --output-pkg "$module/$client/informers" "./$api"
generate injection-gen --go-header-file "$header" --input-dirs "$module/$api" \
    --versioned-clientset-package "$module/$client/clientset/versioned" \
    --external-versions-informers-package "$module/$client/informers/externalversions" \
    --listers-package "$module/$client/listers" --output-package "$module/$client/injection" --output-dir "$client/injection"
gofmt -w "$client"
