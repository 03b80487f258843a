#!/usr/bin/env bash
# Builds the programs of the cluster, from the modules tools/cluster and tools/ko, into the cache.
# What has been built from the same versions is left alone.
# shellcheck source=hack/cluster/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=hack/flags.sh
source "$ROOT/hack/flags.sh"
mkdir -p "$BIN"

# build NAME MODULE PACKAGE [FLAGS OF THE LINKER]
build() {
    local name=$1 module=$ROOT/tools/$2 package=$3 flags="-s -w ${4:-}" key
    key=$({ go version; echo "$package $flags"; cat "$module"/go.{mod,sum} "$ROOT"/tools/cluster/registry/*; } | sha256sum)
    if [ -x "$BIN/$name" ] && [ "$(cat "$BIN/.$name.key" 2>/dev/null)" = "$key" ]; then return; fi
    say "building $name"
    GOGC=400 go build -C "$module" -ldflags "$flags" -o "$BIN/$name" "$package"
    echo "$key" >"$BIN/.$name.key"
}

# Knative's controllers look at the version of Kubernetes, and refuse one that has none.
kubernetes=$(go -C "$ROOT/tools/cluster" list -m -f '{{.Version}}' k8s.io/kubernetes)
IFS=. read -r major minor _ <<<"${kubernetes#v}"
v=k8s.io/component-base/version
stamp="-X $v.gitVersion=$kubernetes -X $v.gitMajor=$major -X $v.gitMinor=$minor -X $v.gitTreeState=clean"

build ko ko github.com/google/ko
build crane ko github.com/google/go-containerregistry/cmd/crane
build registry cluster ./registry
build etcd cluster go.etcd.io/etcd/server/v3
for program in kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl; do
    build $program cluster k8s.io/kubernetes/cmd/$program "$stamp"
done

# The process that holds the namespaces of a pod. Each pod has one: in C it takes a tenth
# of a megabyte.
pause=$(go -C "$ROOT/tools/cluster" list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c
if [ ! -x "$BIN/pause" ] || [ "$pause" -nt "$BIN/pause" ]; then
    say "building pause"
    gcc -Os -static -DVERSION="$kubernetes" -o "$BIN/pause" "$pause"
fi
