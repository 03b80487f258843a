#!/usr/bin/env bash
# Builds the programs of the cluster, from the modules tools/cluster and tools/ko, into the cache.
# What has been built from the same versions is left alone. KUBERNETES is another version of Kubernetes.
# shellcheck source=hack/cluster/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# shellcheck source=hack/flags.sh
source "$ROOT/hack/flags.sh"
mkdir -p "$BIN"

# build NAME MODULE PACKAGE [FLAGS OF THE LINKER]
build() {
    local name=$1 module=$2 package=$3 flags="-s -w ${4:-}" key
    key=$({ go version; echo "$package $flags"; cat "$module"/go.{mod,sum} "$ROOT"/tools/cluster/registry/*; } | sha256sum)
    if [ -x "$BIN/$name" ] && [ "$(cat "$BIN/.$name.key" 2>/dev/null)" = "$key" ]; then return; fi
    say "building $name"
    # The packages of Kubernetes without inlining, as kube-apiserver in test/internal/kube: compiled once, in less time.
    GOGC=400 go build -C "$module" "-gcflags=k8s.io/kubernetes/...=-l -dwarf=false" -ldflags "$flags" -o "$BIN/$name" "$package"
    echo "$key" >"$BIN/.$name.key"
}

# another prints the directory of a module that has Kubernetes in the version KUBERNETES, with its own libraries. Their sums
# are not in this repository: the checksum database of Go knows them.
another() {
    local module=$CACHE/kubernetes/$KUBERNETES mod parts
    if [ ! -f "$module/complete" ]; then
        mod=$(go mod download -json "k8s.io/kubernetes@$KUBERNETES" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
        [ -n "$mod" ] || fail "there is no Kubernetes $KUBERNETES: name it as v1.34.4"
        mkdir -p "$module"
        # It requires its parts in a version that does not exist.
        parts=$(sed -n "s|^\tk8s.io/\([a-z-]*\) v0\.0\.0\$|replace k8s.io/\1 => k8s.io/\1 v0${KUBERNETES#v1}|p" "$mod")
        {
            sed '/^require/,$d; /^\/\//d' "$ROOT/tools/cluster/go.mod" | sed '/go.etcd.io/d'
            printf 'require k8s.io/kubernetes %s\n%s\n' "$KUBERNETES" "$parts"
        } >"$module/go.mod"
        GOFLAGS="$GOFLAGS -mod=mod" quietly "the module of Kubernetes $KUBERNETES" go -C "$module" list -deps "${programs[@]/#/k8s.io/kubernetes/cmd/}"
        touch "$module/complete"
    fi
    echo "$module"
}

ours=$ROOT/tools/cluster kubernetes=$ROOT/tools/cluster
programs=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl)
if [ -n "$KUBERNETES" ]; then kubernetes=$(another); fi
# Knative's controllers look at the version of Kubernetes, and refuse one that has none.
version=$(go -C "$kubernetes" list -m -f '{{.Version}}' k8s.io/kubernetes)
if running node.kube-apiserver && ! kubectl get --raw /version | grep -q "\"$version\""; then
    fail "the cluster that is up has another version than $version: make cluster-down ends it"
fi
IFS=. read -r major minor _ <<<"${version#v}"
v=k8s.io/component-base/version
stamp="-X $v.gitVersion=$version -X $v.gitMajor=$major -X $v.gitMinor=$minor -X $v.gitTreeState=clean"

build ko "$ROOT/tools/ko" github.com/google/ko
build crane "$ROOT/tools/ko" github.com/google/go-containerregistry/cmd/crane
build registry "$ours" ./registry
build etcd "$ours" go.etcd.io/etcd/server/v3
for program in "${programs[@]}"; do
    build $program "$kubernetes" k8s.io/kubernetes/cmd/$program "$stamp"
done

# The process that holds the namespaces of a pod. Each pod has one: in C it takes a tenth
# of a megabyte.
pause=$(go -C "$kubernetes" list -m -f '{{.Dir}}' k8s.io/kubernetes)/build/pause/linux/pause.c
if [ ! -x "$BIN/pause" ] || [ "$pause" -nt "$BIN/pause" ]; then
    say "building pause"
    gcc -Os -static -DVERSION="$version" -o "$BIN/pause" "$pause"
fi
