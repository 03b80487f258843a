#!/usr/bin/env bash
# Makes a release with a base image of its own, pushes it to a registry of its own on
# loopback, and checks the result. It needs no network once the modules of tools/ko are
# downloaded.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
serving=
trap '[ -z "$serving" ] || kill "$serving"; rm -rf "$work"' EXIT
fail() { echo "test-release: $*" >&2; exit 1; }

# It is built as a binary, because go tool would not pass on the signal that ends it.
go build -modfile=tools/ko/go.mod -o "$work/crane" github.com/google/go-containerregistry/cmd/crane
crane() { "$work/crane" "$@" 2>>"$work/crane.log"; }

# Without a repository it must fail and say so.
if (unset KO_DOCKER_REPO; hack/release.sh) 2>"$work/refusal"; then fail "released to nowhere"; fi
grep -q "KO_DOCKER_REPO is not set" "$work/refusal" || fail "the error does not name KO_DOCKER_REPO: $(cat "$work/refusal")"

# With an older Go than the toolchain of go.mod too.
mkdir "$work/old"
printf '#!/bin/sh\necho go1.26.0\n' >"$work/old/go"
chmod +x "$work/old/go"
if PATH=$work/old:$PATH KO_DOCKER_REPO=127.0.0.1:1/x VERSION=v0 hack/release.sh 2>"$work/refusal"; then fail "released with an old Go"; fi
grep -q "Go is 1.26.0; go.mod asks for" "$work/refusal" || fail "the error does not name the version of Go: $(cat "$work/refusal")"

"$work/crane" registry serve --address 127.0.0.1:0 >"$work/registry.log" 2>&1 &
serving=$!
port=
for ((i = 0; i < 100; i++)); do
    port=$(sed -n 's/.*serving on port \([0-9]*\).*/\1/p' "$work/registry.log")
    [ -z "$port" ] || break
    kill -0 "$serving" || fail "the registry ended: $(cat "$work/registry.log")"
    sleep 0.1
done
[ -n "$port" ] || fail "the registry does not start: $(cat "$work/registry.log")"
registry=127.0.0.1:$port

platform=linux/$(go env GOARCH)
base=$(CRANE=$work/crane hack/base-image.sh "$registry" "$platform" 2>>"$work/crane.log")

export DIST=$work/dist KO_DOCKER_REPO=$registry/reschedule KO_DEFAULTBASEIMAGE=$base VERSION=v0.0.0-test PLATFORMS=$platform
if ! hack/release.sh 2>"$work/release.log"; then fail "$(cat "$work/release.log")"; fi

for file in "$work"/dist/reschedule.yaml "$work"/dist/reschedule-crds.yaml "$work"/dist/reschedule-tls.yaml; do
    if grep -n 'version: devel\|ko://' "$file"; then fail "$(basename "$file") is not released"; fi
    grep -q 'app.kubernetes.io/version: "v0.0.0-test"' "$file" || fail "$(basename "$file") has no version"
done
objects() { grep -hc '^kind:' "$@" | awk '{n += $1} END {print n}'; }
[ "$(objects "$work"/dist/reschedule.yaml)" = "$(objects config/*.yaml)" ] || fail "reschedule.yaml does not hold every object of config/"
[ "$(objects "$work"/dist/reschedule-crds.yaml)" = 1 ] || fail "reschedule-crds.yaml holds more than the CRD"

for name in adapter controller; do
    image=$(sed -n "s|.*image: \($registry/reschedule/${name}[:@].*\)|\1|p" "$work"/dist/reschedule.yaml)
    [[ $image == *@sha256:* ]] || fail "$name is not named by digest: \"$image\""
    [ "$(crane digest "$registry/reschedule/$name:$VERSION")" = "${image##*@}" ] || fail "$name has no tag $VERSION"
    crane config "$image" | grep -q '"User":"65532"' || fail "$name runs as another user: $(crane config "$image")"
    crane export "$image" - | tar -x -C "$work" --no-same-owner 2>>"$work/crane.log"
    if go version -m "$work/ko-app/$name" | grep -q 'CGO_ENABLED=1'; then fail "$name needs a C library"; fi
    if grep -qaF "$PWD/" "$work/ko-app/$name"; then fail "$name contains the path of this directory"; fi
done
[ "$("$work/ko-app/adapter" --version)" = "$VERSION" ] || fail "the adapter says it is $("$work/ko-app/adapter" --version)"
echo "ok: $VERSION was released to a registry on loopback"
