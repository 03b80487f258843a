#!/usr/bin/env bash
# Builds what runs as pods and is not ours, pushes it to the registry, and writes manifests
# that name it by digest, into the cache. What is there of the same versions is left alone.
# Needs the registry. KNATIVE=no leaves Knative's and the ingress's out.
# shellcheck source=hack/cluster/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
export CRANE=$BIN/crane

mkdir -p "$MANIFESTS"
cd "$ROOT"
key=$({ go version; cat hack/base-image.sh hack/cluster/{images.sh,.ko.yaml} hack/cluster/manifests/* $(find tools/cluster -type f | sort) test/knative/go.{mod,sum}; } | sha256sum)
have() { [ "$(cat "$MANIFESTS/$1" 2>/dev/null)" = "$key" ] && crane digest "$REGISTRY/ubi8/ubi:latest" >/dev/null 2>&1; }
if have .knative-key || { [ "$KNATIVE" = no ] && have .key; }; then exit 0; fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

quietly "the base image" hack/base-image.sh "$REGISTRY" "$PLATFORM"
# image NAME:TAG DIRECTORY [FLAGS OF CRANE MUTATE]: of files alone.
image() {
    local image=$1 directory=$2
    shift 2
    tar -C "$directory" --owner=0 --group=0 --mtime=@0 --sort=name --numeric-owner -cf "$work/files.tar" .
    quietly "the image $image" crane append -f "$work/files.tar" -t "$REGISTRY/${image%:*}:raw"
    quietly "the image $image" crane mutate "$REGISTRY/${image%:*}:raw" --set-platform "$PLATFORM" --user 65532 "$@" -t "$REGISTRY/$image"
}
# programs DIRECTORY FILES...: with the libraries that they want.
programs() {
    local directory=$1
    shift
    { ldd "$@" | grep -o '/[^ ]* (' | tr -d ' ('; printf '%s\n' "$@"; } | sort -u | xargs -I FILE install -D FILE "$directory/FILE"
}
install -D "$BIN/pause" "$work/pause/pause"
image pause:latest "$work/pause" --entrypoint /pause
# Knative's suites wait for a service with the shell and the curl of this image.
programs "$work/curl" /bin/sh "$(command -v curl)"
image ubi8/ubi:latest "$work/curl"
# What examples/python-function runs in: Debian's Python in the place of Docker Hub's, which
# has no compiled modules either.
library=$(/usr/bin/python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
programs "$work/python" /usr/bin/python3 "$library"/lib-dynload/*.so
tar -C / --exclude={__pycache__,test,idlelib,lib2to3,'config-*',sitecustomize.py} -c "${library#/}" | tar -C "$work/python" -x
image library/python:3-slim "$work/python"

# resolve DIRECTORY WHAT FILES...: builds the images that the manifests name, in the module that has
# their programs, and pushes them to WHAT in the registry: Eventing and Serving have images of one name,
# and an image without a tag is removed (down.sh).
resolve() {
    local directory=$1 what=$2
    shift 2
    say "building the images of $what"
    if ! (cd "$directory" && KO_DOCKER_REPO=$REGISTRY/$what ko resolve --sbom=none --jobs=2 --base-import-paths --recursive "${@/#/--filename=}") \
        >"$work/$what.yaml" 2>"$work/$what.log"; then
        cat "$work/$what.log" >&2
        fail "the images of $what could not be built"
    fi
    mv "$work/$what.yaml" "$MANIFESTS/$what.yaml"
}
dir() { go -C test/knative list -m -f '{{.Dir}}' "knative.dev/$1"; }

resolve tools/cluster coredns "$ROOT/hack/cluster/manifests/coredns.yaml"
echo "$key" >"$MANIFESTS/.key"
if [ "$KNATIVE" = no ]; then exit 0; fi

go -C test/knative mod download knative.dev/{eventing,serving,networking,caching}
eventing=$(dir eventing) networking=$(dir networking)
# A module has no symbolic links: the targets of the links in Knative's config are named here.
resolve test/knative eventing "$eventing"/config/{core,channels/in-memory-channel,brokers/mt-channel-broker} "$eventing/third_party/eventing-integrations-latest"
resolve test/knative serving "$(dir serving)/config/core" "$networking/config/"{certificate,domain-claim,ingress,serverlessservice,config-network}.yaml "$(dir caching)/config/image.yaml"

# Traefik is built from a copy of its module, with its own go.mod, whose replacements only a main module can have, and its
# own go.sum. Its sum is here. It has the clients of 180 services of names and of Amazon ECS, half of what is compiled for
# it: the packages in tools/cluster/_traefik are in their place.
traefik=github.com/traefik/traefik/v3@v3.6.12 sum=h1:6pe4s7aaDTQs+AsF7KP3sM/xnq7zOVvibRQe5tw9eFo=
lego=github.com/go-acme/lego/v4
copies=$CACHE/traefik
rm -rf "$copies"
mkdir -p "$copies"
# without NAME PACKAGE MODULE: a copy of a module's directory, with another package.
without() {
    cp -r --no-preserve=mode "$3" "$copies/$1"
    rm "$copies/$1/$2"/*.go
    cp "tools/cluster/_traefik/${2##*/}.go" "$copies/$1/$2"
}
module=$(go mod download -json "$traefik")
[[ $module = *"\"Sum\": \"$sum\""* ]] || fail "$traefik has another sum: $module"
without traefik pkg/provider/ecs "$(sed -n 's/.*"Dir": "\(.*\)".*/\1/p' <<<"$module")"
go -C "$copies/traefik" mod download "$lego"
without lego providers/dns "$(go -C "$copies/traefik" list -m -f '{{.Dir}}' "$lego")"
go -C "$copies/traefik" mod edit -replace "$lego=../lego"
resolve "$copies/traefik" traefik "$ROOT/hack/cluster/manifests/traefik.yaml"
echo "$key" >"$MANIFESTS/.knative-key"
