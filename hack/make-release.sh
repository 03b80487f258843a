#!/usr/bin/env bash
# Makes the release of a tag: images with SBOM, signature and provenance in the registry,
# and the files of docs/releases.md in dist/. Two runs for one tag give the same files and
# the same digests, whatever directory and day they run in; only signatures differ.
#
# VERSION is the tag, by default the tag of this commit. COSIGN_KEY is the file of a private key
# of cosign's (COSIGN_PASSWORD), or the word keyless: then cosign from the PATH signs with the
# identity of the workflow. KO_DOCKER_REPO is as in hack/release.sh. PLATFORMS and
# CLI_PLATFORMS are what to build for, DIST replaces the directory dist.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
refuse() { echo "make release: $*" >&2; exit 1; }

# Each reason to refuse is found before anything is built.
[ -n "${KO_DOCKER_REPO:-}" ] || refuse "KO_DOCKER_REPO is not set: name the registry and path that the images are pushed to, for example KO_DOCKER_REPO=ghcr.io/reschedule-dev"
VERSION=${VERSION:-$(git describe --tags --exact-match 2>/dev/null || true)}
[ -n "$VERSION" ] || refuse "this commit has no tag: git tag -a v1.2.3 -m v1.2.3, or check out a tag"
number='(0|[1-9][0-9]*)' word='(0|[1-9][0-9]*|[0-9]*[a-zA-Z-][0-9a-zA-Z-]*)'
[[ $VERSION =~ ^v$number\.$number\.$number(-$word(\.$word)*)?$ ]] ||
    refuse "\"$VERSION\" is no version: a release is v1.2.3 or v1.2.3-rc.1, as in SemVer 2.0, and has no build metadata, because \"+\" may not be in the tag of an image"
[ ${#VERSION} -le 63 ] || refuse "\"$VERSION\" has ${#VERSION} characters; the value of a label has at most 63"
commit=$(git rev-parse --verify --quiet "refs/tags/$VERSION^{commit}") || refuse "there is no tag $VERSION: git tag -a $VERSION -m $VERSION"
[ "$commit" = "$(git rev-parse HEAD)" ] || refuse "the tag $VERSION does not point to the commit that is checked out: git checkout $VERSION"
[ -z "$(git status --porcelain)" ] || refuse "the tree differs from $VERSION; commit or remove: $(git status --porcelain | head -n 5 | tr '\n' ' ')"
notes=$(hack/release-notes.sh "$VERSION") || exit 1
base=${KO_DEFAULTBASEIMAGE:-$(sed -n 's/^defaultBaseImage: //p' .ko.yaml)}
[[ $base =~ @(sha256):([0-9a-f]{64})$ ]] || refuse "the base image $base has no digest: name it as IMAGE@sha256:… in .ko.yaml"
base_digest=${BASH_REMATCH[2]}
case ${COSIGN_KEY:-} in
"") refuse "COSIGN_KEY is not set: name the file of a private key (cosign generate-key-pair), or keyless in a workflow" ;;
keyless) sign=() ;;
*)
    [ -r "$COSIGN_KEY" ] || refuse "COSIGN_KEY is $COSIGN_KEY, which cannot be read"
    sign=(--key "$(realpath "$COSIGN_KEY")")
    ;;
esac

# Bytes depend on the files of the tag alone: the toolchain is exact, and neither the time
# nor git's state is built in.
GOTOOLCHAIN=go$(sed -n 's/^toolchain go//p' go.mod)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
# shellcheck source=hack/flags.sh
source hack/flags.sh
export VERSION GOTOOLCHAIN SOURCE_DATE_EPOCH GOFLAGS="$GOFLAGS -buildvcs=false" TZ=UTC LC_ALL=C
export PLATFORMS=${PLATFORMS:-linux/amd64,linux/arm64,linux/s390x,linux/ppc64le}
CLI_PLATFORMS=${CLI_PLATFORMS:-$PLATFORMS,darwin/amd64,darwin/arm64,windows/amd64}
source=https://github.com/reschedule-dev/reschedule
download=$source/releases/download/$VERSION

dist=${DIST:-dist}
mkdir -p "$dist"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
out=$work/out
# The same bytes for the same files.
archive() { # FILE DIRECTORY NAMES...
    tar -C "$2" --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --format=ustar -cf - "${@:3}" | gzip -9n >"$1"
}

# push_files NAME DIRECTORY FLAGS...: pushes an image of files, and prints its name with the digest and without the tag: OLM 1
# refuses both.
push_files() {
    local image=$KO_DOCKER_REPO/$1:$VERSION
    archive "$work/$1.tar.gz" "$2" .
    "$work/bin/crane" append --new_layer "$work/$1.tar.gz" --new_tag "$image" >/dev/null
    "$work/bin/crane" mutate "$image" --tag "$image" --set-platform linux/amd64 "${@:3}" >/dev/null
    echo "${image%:*}@$("$work/bin/crane" digest "$image")"
}

go build -modfile=tools/ko/go.mod -o "$work/bin/crane" github.com/google/go-containerregistry/cmd/crane
if [ "$COSIGN_KEY" != keyless ]; then
    go -C tools/ko build -o "$work/bin/cosign" ./cosign
    PATH=$work/bin:$PATH
fi
cosign() { command cosign "$1" --yes "${sign[@]}" "${@:2}"; }

echo "$VERSION: images for $PLATFORMS" >&2
DIST=$out KOFLAGS="--sbom-dir=$work/sbom ${KOFLAGS:-}" hack/release.sh
# Every image that a manifest names, so that an image of a manifest that comes later is in,
# and the image of a group's manifest, which is made of this list.
mapfile -t images < <({ sed -n 's/^ *\(- \)\{0,1\}image: //p' "$out"/*.yaml; cat "$out/adapter-replicated.txt"; } | sort -u)
for image in "${images[@]}"; do
    [[ $image =~ @sha256:[0-9a-f]{64}$ ]] || refuse "the image $image is named without a digest"
done
archive "$out/reschedule-sbom.tar.gz" "$work/sbom" .

# config/ with the images of this release in the place of ko's references.
mkdir "$work/kustomize"
cp -R config "$work/kustomize/reschedule"
for image in "${images[@]}"; do
    name=${image%@*} name=${name##*/}
    find "$work/kustomize" -type f -exec sed -i "s|ko://github.com/reschedule-dev/reschedule/cmd/${name%%:*}\$|$image|" {} +
done
rm "$work"/kustomize/reschedule/*.go
find "$work/kustomize" -name '*.yaml' -exec sed -i "s|app.kubernetes.io/version: devel\$|app.kubernetes.io/version: \"$VERSION\"|" {} +
archive "$out/reschedule-kustomize.tar.gz" "$work/kustomize" reschedule

# Three adapters instead of one, and the form without Knative, for installations without kustomize.
printf 'resources: [reschedule]\ncomponents: [reschedule/replicated]\n' >"$work/kustomize/kustomization.yaml"
go run -modfile=tools/go.mod sigs.k8s.io/kustomize/kustomize/v5 build "$work/kustomize" >"$out/reschedule-replicated.yaml"
printf 'resources: [reschedule]\ncomponents: [reschedule/without-knative]\n' >"$work/kustomize/kustomization.yaml"
go run -modfile=tools/go.mod sigs.k8s.io/kustomize/kustomize/v5 build "$work/kustomize" >"$out/reschedule-without-knative.yaml"
cp "$work/kustomize/reschedule/peer-certificates/peer-certificates.yaml" "$out/reschedule-peer-certificates.yaml"
# The operator of docs/quickstart.md, for readers without a checkout.
go run -modfile=tools/go.mod sigs.k8s.io/kustomize/kustomize/v5 build examples/python-sleeping >"$out/reschedule-example.yaml"

# The chart, with that directory in the place of the link to config/. Helm itself would write the time into it.
chart=$work/chart/reschedule
mkdir "$work/chart"
cp -R charts/reschedule "$work/chart"
rm "$chart/config"
cp -R "$work/kustomize/reschedule" "$chart/config"
sed -i "s|^version: .*|version: ${VERSION#v}|; s|^appVersion: .*|appVersion: $VERSION|" "$chart/Chart.yaml"
# For Artifact Hub: annotations are the last key of the file.
prerelease=false
[[ $VERSION != *-* ]] || prerelease=true
{
    printf '  artifacthub.io/prerelease: "%s"\n  artifacthub.io/images: |\n' $prerelease
    for image in "${images[@]}"; do
        name=${image%@*} name=${name##*/}
        printf -- '    - {name: %s, image: "%s"}\n' "${name%%:*}" "$image"
    done
} >>"$chart/Chart.yaml"
archive "$out/reschedule-${VERSION#v}.tgz" "$work/chart" --exclude-from="$chart/.helmignore" reschedule

# The bundle for the Operator Lifecycle Manager. Its image is the directory, and nothing
# else; so is the catalog's, which OLM 1 serves. The catalog names the bundle by digest.
echo "$VERSION: bundle and catalog for OLM" >&2
hack/olm-bundle.sh "$work/kustomize/reschedule" "$VERSION" "$work/bundle"
archive "$out/reschedule-bundle.tar.gz" "$work/bundle" manifests metadata
mapfile -t labels < <(sed -n 's/^ *\(operators.*\): \(.*\)$/--label=\1=\2/p' "$work/bundle/metadata/annotations.yaml")
bundle=$(push_files reschedule-bundle "$work/bundle" "${labels[@]}")
go -C tools run ./olm catalog -bundle "$work/bundle" -image "$bundle" -out "$out/reschedule-catalog.yaml"
mkdir -p "$work/catalog/configs/reschedule"
cp "$out/reschedule-catalog.yaml" "$work/catalog/configs/reschedule/catalog.yaml"
catalog=$(push_files reschedule-catalog "$work/catalog" --label=operators.operatorframework.io.index.configs.v1=/configs)
images+=("$bundle" "$catalog")

cat >"$out/reschedule-source.yaml" <<EOF
# The manifest of the plugin for krew: kubectl krew install --manifest=reschedule-source.yaml
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: reschedule-source
  annotations:
    artifacthub.io/category: integration-delivery
    artifacthub.io/license: Apache-2.0
spec:
  version: $VERSION
  homepage: $source
  shortDescription: See why a key of a RescheduleSource did not run
  description: |
    Explains why a key or a RescheduleSource is not delivered; lists, runs, sets
    and cancels keys and dead letters; suspends, drains, exports and imports.
  platforms:
EOF
for platform in ${CLI_PLATFORMS//,/ }; do
    os=${platform%/*} arch=${platform#*/} binary=kn-source-reschedule
    [ "$os" != windows ] || binary+=.exe
    echo "$VERSION: command line for $platform" >&2
    mkdir -p "$work/$platform"
    GOOS=$os GOARCH=$arch go -C cli build -ldflags "-s -w -X main.version=$VERSION" -o "$work/$platform/$binary" .
    cp LICENSE "$work/$platform/"
    file=kn-source-reschedule_${VERSION}_${os}_$arch.tar.gz
    archive "$out/$file" "$work/$platform" "$binary" LICENSE
    cat >>"$out/reschedule-source.yaml" <<EOF
  - selector: {matchLabels: {os: $os, arch: $arch}}
    uri: $download/$file
    sha256: $(sha256sum <"$out/$file" | cut -d' ' -f1)
    bin: $binary
EOF
done

# The plugin of kn, for Artifact Hub.
cat >"$out/artifacthub-pkg.yml" <<EOF
version: ${VERSION#v}
name: kn-source-reschedule
displayName: kn source reschedule
createdAt: "$(date --utc --date="@$SOURCE_DATE_EPOCH" +%FT%TZ)"
description: Says why a key of a RescheduleSource did not run, and steers sources, keys and dead letters
category: integration-delivery
license: Apache-2.0
prerelease: $prerelease
homeURL: $source
keywords: [knative, kn, plugin, timers, scale-to-zero]
links:
  - {name: documentation, url: "$source/blob/$VERSION/docs/cli.md"}
  - {name: archives, url: "$source/releases/tag/$VERSION"}
install: |
  Unpack the archive of your platform from $source/releases/tag/$VERSION,
  and put kn-source-reschedule into your PATH.
EOF

{
    printf '%s\n' "$notes"
    printf '\n## Images\n\n'
    printf -- '- `%s`\n' "${images[@]}"
    printf '\nHow to verify them: %s/blob/%s/docs/releases.md\n' "$source" "$VERSION"
} >"$out/release-notes.md"

# https://slsa.dev/spec/v1.0/provenance. It has no times: they would say nothing about the bytes.
cat >"$work/provenance.json" <<EOF
{"buildDefinition": {
   "buildType": "$source/blob/main/docs/releases.md#what-the-provenance-says",
   "externalParameters": {"source": "$source", "tag": "$VERSION", "platforms": "$PLATFORMS"},
   "resolvedDependencies": [
     {"uri": "git+$source@refs/tags/$VERSION", "digest": {"gitCommit": "$commit"}},
     {"uri": "${base%@*}", "digest": {"sha256": "$base_digest"}},
     {"uri": "https://go.dev/dl/", "name": "$GOTOOLCHAIN"}]},
 "runDetails": {"builder": {"id": "${BUILDER_ID:-$source/blob/main/docs/releases.md#by-hand}"}}}
EOF

(cd "$out" && sha256sum -- * >"$work/checksums.txt")
mv "$work/checksums.txt" "$out/"
cosign sign-blob --bundle "$out/checksums.txt.sigstore.json" "$out/checksums.txt"
for image in "${images[@]}"; do
    cosign sign "$image"
    cosign attest --type slsaprovenance1 --predicate "$work/provenance.json" "$image"
done
# The files appear only now: half a release must not look like one.
mv "$out"/* "$dist/"
echo "$VERSION is in $dist; the images are signed" >&2
