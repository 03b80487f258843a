#!/usr/bin/env bash
# Makes a release of a tag twice, in two directories, with a base image of its own, pushes
# it to a registry of its own on loopback, verifies it as docs/releases.md says, and checks
# that both are the same bytes. It needs no network once the modules of tools and
# tools/ko are downloaded. PLATFORMS and CLI_PLATFORMS are what to build for: this machine alone
# by default, --all for all of a release.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
work=$(mktemp -d)
serving=
trap '[ -z "$serving" ] || kill "$serving"; rm -rf "$work"' EXIT
fail() { echo "test-release: $*" >&2; exit 1; }
# A release sets what it needs. The tools are compiled as all others are.
# shellcheck source=hack/flags.sh
source hack/flags.sh
export GOGC=off GOMEMLIMIT=1GiB # for the compiler, as in the Makefile
unset VERSION COSIGN_KEY KO_DEFAULTBASEIMAGE KOFLAGS
PLATFORMS=linux/$(go env GOARCH) CLI_PLATFORMS=$PLATFORMS
if [ "${1:-}" = --all ]; then
    PLATFORMS=linux/amd64,linux/arm64,linux/s390x,linux/ppc64le CLI_PLATFORMS=$PLATFORMS,darwin/amd64,darwin/arm64,windows/amd64
fi
export PLATFORMS CLI_PLATFORMS

# It is built as a binary, because go run would not pass on the signal that ends it.
go build -modfile=tools/ko/go.mod -o "$work/bin/crane" github.com/google/go-containerregistry/cmd/crane
go -C tools/ko build -buildvcs=false -o "$work/bin/cosign" ./cosign
PATH=$work/bin:$PATH
crane() { "$work/bin/crane" "$@" 2>>"$work/crane.log"; }

# A repository with the files of this directory as they are on the disk, and the tag of a
# pre-release. Both have the same commit, as two clones of one repository have.
version=v0.0.1-test.1
checkout() { # DIRECTORY
    hack/copy-checkout.sh "$1"
    printf '\n## [%s] - 2026-01-31\n\n### Added\n\n- What the test reads.\n\n## 0.0.0 - unreleased\n\n- Other text.\n' "${version#v}" >>"$1/CHANGELOG.md"
    git -C "$1" add --all
    git -C "$1" commit --quiet --message=all --date=2026-01-31T00:00:00Z
    git -C "$1" tag "$version"
}
export GIT_COMMITTER_DATE=2026-01-31T00:00:00Z
checkout "$work/one"
checkout "$work/another/directory/with/a/longer/name"
repository=$work/one

# refused FILE WORDS: a release stops with these words, before it builds.
refused() {
    if "$repository/hack/$1" 2>"$work/refusal"; then fail "$1 was not refused, but should say: $2"; fi
    grep -qF -- "$2" "$work/refusal" || fail "$1 does not say \"$2\" but: $(cat "$work/refusal")"
}
export DIST=$work/never COSIGN_PASSWORD=test
refused release.sh "KO_DOCKER_REPO is not set"
refused make-release.sh "KO_DOCKER_REPO is not set"
export KO_DOCKER_REPO=127.0.0.1:1/x
for wrong in 1.2.3 v1.2 v01.2.3 v1.2.3- v1.2.3-01 v1.2.3-a..b v1.2.3+build latest; do VERSION=$wrong refused make-release.sh "\"$wrong\" is no version"; done
VERSION=v9.9.9 refused make-release.sh "there is no tag v9.9.9: git tag"
refused make-release.sh "COSIGN_KEY is not set"
COSIGN_KEY=$work/none refused make-release.sh "cannot be read"
KO_DEFAULTBASEIMAGE=example.com/base:latest refused make-release.sh "has no digest"
touch "$repository/left-over"
refused make-release.sh "the tree differs from $version; commit or remove: ?? left-over"
rm "$repository/left-over"
git -C "$repository" tag v0.0.0
VERSION=v0.0.0 refused make-release.sh 'CHANGELOG.md has no section "## [0.0.0] - 2'
git -C "$repository" tag --delete v0.0.0 >/dev/null
git -C "$repository" commit --quiet --allow-empty --message=later
refused make-release.sh "this commit has no tag"
VERSION=$version refused make-release.sh "does not point to the commit that is checked out: git checkout $version"
git -C "$repository" checkout --quiet "$version"
# With an older Go than the toolchain of go.mod too.
mkdir "$work/old"
printf '#!/bin/sh\necho go1.26.0\n' >"$work/old/go"
chmod +x "$work/old/go"
PATH=$work/old:$PATH VERSION=v0 refused release.sh "Go is 1.26.0; go.mod asks for"
[ ! -e "$work/never" ] || fail "a refused release wrote files"

# Notes of a later version have the commits since the version before it, which is no pre-release.
git -C "$work" clone --quiet "$repository" notes
noted() { git -C "$work/notes" -c user.name=test -c user.email=test@example.com commit --quiet --allow-empty --message="$1"; }
printf '\n## [0.1.0] - 2026-02-01\n\n- New.\n\n## [0.2.0] - 2026-03-01\n\n- Newer.\n' >>"$work/notes/CHANGELOG.md"
git -C "$work/notes" add CHANGELOG.md
noted "the first one" && git -C "$work/notes" tag v0.1.0
noted "for a test" && git -C "$work/notes" tag v0.2.0-rc.1
noted "the second one" && git -C "$work/notes" tag v0.2.0
"$work/notes/hack/release-notes.sh" v0.2.0 >"$work/notes.md"
printf -- '%s\n' '# v0.2.0' '' '- Newer.' '' '<details><summary>Commits since v0.1.0</summary>' '' '- the second one' '- for a test' '' '</details>' | diff - "$work/notes.md" || fail "the notes of v0.2.0 are others"

: >"$work/registry.log"
"$work/bin/crane" registry serve --address 127.0.0.1:0 >>"$work/registry.log" 2>&1 &
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

bases=()
for platform in ${PLATFORMS//,/ }; do
    base=$(CRANE=$work/bin/crane hack/base-image.sh "$registry/$platform" "$platform" 2>>"$work/crane.log")
    bases+=(-m "${base%:*}@$(crane digest "$base")")
done
crane index append "${bases[@]}" -t "$registry/base:nonroot" >/dev/null
KO_DEFAULTBASEIMAGE=$registry/base@$(crane digest "$registry/base:nonroot")
(cd "$work" && cosign generate-key-pair && cosign generate-key-pair --output-key-prefix=other)
export KO_DEFAULTBASEIMAGE KO_DOCKER_REPO=$registry/reschedule COSIGN_KEY=$work/cosign.key

release() { # DIRECTORY DIST
    if ! DIST=$2 "$1/hack/make-release.sh" 2>"$work/release.log"; then fail "$(cat "$work/release.log")"; fi
}
dist=$work/dist
release "$work/one" "$dist"

for file in "$dist"/reschedule{,-crds,-tls,-admission,-replicated,-without-knative,-peer-certificates}.yaml; do
    if grep -n 'version: devel\|ko://' "$file"; then fail "$(basename "$file") is not released"; fi
    grep -qE "app.kubernetes.io/version: \"?$version\"?\$" "$file" || fail "$(basename "$file") has no version"
done
images() { sed -n 's/^ *\(- \)\{0,1\}image: //p' "$@" | sort; }
kustomize() { go run -modfile=tools/go.mod sigs.k8s.io/kustomize/kustomize/v5 build "$1"; }
commands() { sed -n "/^<!-- test: $1 -->\$/,/^\`\`\`\$/p" "$2" | sed '1,2d;$d'; }
objects() { grep -hc '^kind:' "$@" | awk '{n += $1} END {print n}'; }
[ "$(objects "$dist"/reschedule.yaml)" = "$(objects config/*.yaml)" ] || fail "reschedule.yaml does not hold every object of config/"
[ "$(objects "$dist"/reschedule-crds.yaml)" = 1 ] || fail "reschedule-crds.yaml holds more than the CRD"
[ "$(objects "$dist"/reschedule-admission.yaml)" = "$(objects config/20[456]-*.yaml)" ] || fail "reschedule-admission.yaml has other objects than 204 to 206"

if grep -n 'adapter-replicated' "$dist/reschedule.yaml"; then fail "reschedule.yaml names adapter-replicated, which is opt-in"; fi
mkdir "$work/root"
for name in adapter adapter-replicated controller; do
    image=$(sed -n "s|\(.*image: \)\{0,1\}\($registry/reschedule/${name}[:@].*\)|\2|p" "$dist"/reschedule.yaml "$dist/adapter-replicated.txt")
    [[ $image == *@sha256:* ]] || fail "$name is not named by digest: \"$image\""
    [ "$(crane digest "$registry/reschedule/$name:$version")" = "${image##*@}" ] || fail "$name has no tag $version"
    for platform in ${PLATFORMS//,/ }; do
        crane config --platform "$platform" "$image" | grep '"User":"65532"' >/dev/null || fail "$name for $platform runs as another user: $(crane config --platform "$platform" "$image")"
        crane export --platform "$platform" "$image" - | tar -x -C "$work/root" --no-same-owner 2>>"$work/crane.log"
        go version -m "$work/root/ko-app/$name" >"$work/built"
        if grep -q 'CGO_ENABLED=1' "$work/built"; then fail "$name needs a C library"; fi
        grep -q "GOARCH=${platform#*/}\$" "$work/built" || fail "$name for $platform is for another: $(cat "$work/built")"
        if grep -qaF "$repository/" "$work/root/ko-app/$name"; then fail "$name contains the path of its directory"; fi
    done
    crane manifest "$registry/reschedule/$name:${image##*@sha256:}" >/dev/null 2>&1 || crane manifest "$registry/reschedule/$name:sha256-${image##*sha256:}.sbom" | grep spdx >/dev/null || fail "$name has no SBOM"
done
crane export --platform "linux/$(go env GOARCH)" "$(sed -n "s|.*image: \($registry/reschedule/adapter[:@].*\)|\1|p" "$dist"/reschedule.yaml)" - | tar -x -C "$work/root" --no-same-owner 2>>"$work/crane.log"
[ "$("$work/root/ko-app/adapter" --version)" = "$version" ] || fail "the adapter says it is $("$work/root/ko-app/adapter" --version)"
crane export --platform "linux/$(go env GOARCH)" "$(cat "$dist/adapter-replicated.txt")" - | tar -x -C "$work/root" --no-same-owner 2>>"$work/crane.log"
[ "$("$work/root/ko-app/adapter-replicated" --version)" = "$version" ] || fail "adapter-replicated says it is $("$work/root/ko-app/adapter-replicated" --version)"

# The archives: each command line, the base for kustomize, the SBOMs; and krew's manifest.
for platform in ${CLI_PLATFORMS//,/ }; do
    file=kn-source-reschedule_${version}_${platform/\//_}.tar.gz
    mkdir -p "$work/cli/$platform"
    tar -xzf "$dist/$file" -C "$work/cli/$platform"
    binary=$(ls "$work/cli/$platform"/kn-source-reschedule*)
    go version -m "$binary" | grep "GOARCH=${platform#*/}\$" >/dev/null || fail "$file is for another platform"
    if grep -qaF "$repository/" "$binary"; then fail "$file contains the path of its directory"; fi
    grep -A1 "/$version/$file\$" "$dist/reschedule-source.yaml" | grep "sha256: $(sha256sum <"$dist/$file" | cut -d' ' -f1)" >/dev/null || fail "krew's manifest has no checksum of $file"
done
# What krew and Artifact Hub read is YAML, and about this version.
mkdir "$work/listed"
cp "$dist/reschedule-source.yaml" "$work/listed/"
{ printf 'apiVersion: example.com/v1\nkind: Package\nmetadata: {name: plugin}\npackage:\n'; sed 's/^/  /' "$dist/artifacthub-pkg.yml"; } >"$work/listed/package.yaml"
echo 'resources: [reschedule-source.yaml, package.yaml]' >"$work/listed/kustomization.yaml"
kustomize "$work/listed" >"$work/listed.yaml" || fail "the manifests of the command line are no YAML"
for words in "uri: https://.*/$version/kn-source-reschedule_" "version: ${version#v}\$" "prerelease: true" "url: https://.*/blob/$version/docs/cli.md"; do
    grep -q "$words" "$work/listed.yaml" || fail "the manifests of the command line have no \"$words\": $(cat "$work/listed.yaml")"
done
"$work/cli/linux/$(go env GOARCH)/kn-source-reschedule" version | grep -F "$version" >/dev/null || fail "the command line does not say that it is $version"
tar -xzf "$dist/reschedule-kustomize.tar.gz" -C "$work"
kustomize "$work/reschedule" >"$work/kustomized.yaml"
[ "$(objects "$work/kustomized.yaml")" = "$(objects "$dist/reschedule.yaml")" ] || fail "the base for kustomize has other objects than reschedule.yaml"
diff <(images "$work/kustomized.yaml") <(images "$dist/reschedule.yaml") || fail "the base for kustomize has other images"
# The group of three is the same with the image of adapter-replicated, as one file and by
# the kustomization of docs/high-availability.md.
replicated=$(cat "$dist/adapter-replicated.txt")
sed "s|$registry/reschedule/adapter:.*|$replicated|" "$dist/reschedule.yaml" | images | diff - <(images "$dist/reschedule-replicated.yaml") || fail "reschedule-replicated.yaml has other images"
[ "$(objects "$dist/reschedule-replicated.yaml")" = "$(objects "$dist/reschedule.yaml")" ] || fail "reschedule-replicated.yaml has other objects than reschedule.yaml"
grep -qx '  replicas: 3' "$dist/reschedule-replicated.yaml" || fail "reschedule-replicated.yaml has no three adapters"
[ "$(objects "$dist/reschedule-peer-certificates.yaml")" = "$(objects config/peer-certificates/*.yaml)" ] || fail "reschedule-peer-certificates.yaml does not hold every object of config/peer-certificates"
# The form without Knative is the same again, as a file and by the chart.
helm() { go -C test/operators tool helm "$1" --kube-version 1.34.0 --namespace reschedule-system "${@:2}"; }
diff <(images "$dist/reschedule.yaml") <(images "$dist/reschedule-without-knative.yaml") || fail "reschedule-without-knative.yaml has other images"
if grep -nE '^  +namespace: ' "$dist/reschedule-without-knative.yaml" | grep -v 'reschedule-system$'; then fail "reschedule-without-knative.yaml has objects in other namespaces"; fi
chart=$dist/reschedule-${version#v}.tgz
helm lint --strict "$chart" >"$work/lint.log" 2>&1 || fail "$(cat "$work/lint.log")"
helm template reschedule "$chart" >"$work/chart.yaml"
tar -xzOf "$chart" reschedule/Chart.yaml >"$work/Chart.yaml"
for words in 'artifacthub.io/prerelease: "true"' "{name: adapter, image: \"$registry/reschedule/adapter:$version@sha256:" "{name: adapter-replicated, image: "; do
    grep -qF "$words" "$work/Chart.yaml" || fail "the chart has no annotation \"$words\": $(cat "$work/Chart.yaml")"
done
if grep -n 'version: devel\|ko://' "$work/chart.yaml"; then fail "the chart is not released"; fi
diff <(images "$dist/reschedule.yaml") <(images "$work/chart.yaml") || fail "the chart has other images"
[ "$(objects "$work/chart.yaml")" = "$(($(objects "$dist/reschedule-without-knative.yaml") - 1))" ] || fail "the chart has other objects than reschedule-without-knative.yaml, which also makes the namespace"
helm template reschedule "$chart" --set adapter.replicated=true | grep -F "$replicated" >/dev/null || fail "the chart has another image for three adapters"
mkdir "$work/files"
cp "$dist"/reschedule-{replicated,peer-certificates}.yaml "$work/files/"
echo 'resources: [reschedule-replicated.yaml, reschedule-peer-certificates.yaml]' >"$work/files/kustomization.yaml"
commands group docs/high-availability.md | sed 's/\(\[\|- \)config\b/\1reschedule/' >"$work/kustomization.yaml"
kustomize "$work/files" >"$work/of-files.yaml"
kustomize "$work" >"$work/of-docs.yaml"
diff "$work/of-files.yaml" "$work/of-docs.yaml" || fail "docs/high-availability.md makes another group than reschedule-replicated.yaml and reschedule-peer-certificates.yaml"
# The bundle has the images of this release; its image has its files, and the catalog names it.
mkdir "$work/bundle" "$work/pulled"
tar -xzf "$dist/reschedule-bundle.tar.gz" -C "$work/bundle"
csv=$work/bundle/manifests/reschedule.clusterserviceversion.yaml
if grep -rn 'version: devel\|ko://' "$work/bundle"; then fail "the bundle is not released"; fi
diff <(sed -n '/^  relatedImages:/,/^  [a-z]/s/^  - image: //p' "$csv" | sort) <(images "$dist/reschedule.yaml") || fail "the bundle has other images"
bundle=$registry/reschedule/reschedule-bundle@$(crane digest "$registry/reschedule/reschedule-bundle:$version")
grep -qxF "image: $bundle" "$dist/reschedule-catalog.yaml" || fail "the catalog does not name $bundle"
crane export "$bundle" - | tar -x -C "$work/pulled" --no-same-owner 2>>"$work/crane.log"
diff -r "$work/bundle" "$work/pulled" || fail "the image of the bundle has other files"
crane config "$bundle" | grep '"operators.operatorframework.io.bundle.mediatype.v1":"registry+v1"' >/dev/null || fail "the image of the bundle has no labels"
crane export "$registry/reschedule/reschedule-catalog:$version" - | tar -xO configs/reschedule/catalog.yaml | diff - "$dist/reschedule-catalog.yaml" || fail "the image of the catalog has another one"
for image in "$bundle" "$registry/reschedule/reschedule-catalog:$version"; do
    cosign verify --key "$work/cosign.pub" --insecure-ignore-tlog=true "$image" >/dev/null 2>&1 || fail "$image is not signed"
done
tar -xzOf "$dist/reschedule-sbom.tar.gz" --wildcards './*.spdx.json' | grep '"spdxVersion"' >/dev/null || fail "reschedule-sbom.tar.gz has no SPDX document"
for words in "# $version" '**This is a pre-release.**' '- What the test reads.' "$registry/reschedule/adapter:$version@sha256:" "$registry/reschedule/adapter-replicated:$version@sha256:"; do
    grep -qF -- "$words" "$dist/release-notes.md" || fail "the notes lack \"$words\": $(cat "$dist/release-notes.md")"
done
if grep -qF 'Other text.' "$dist/release-notes.md"; then fail "the notes have the text of another version"; fi

# The commands of docs/releases.md, as they are there, accept this release and refuse each change.
commands verify docs/releases.md >"$work/verify.sh"
grep -q 'cosign verify-attestation' "$work/verify.sh" || fail "docs/releases.md has no commands that verify"
verify() { (cd "$1" && bash -euo pipefail "$work/verify.sh") >"$work/verified" 2>&1; }
cp "$work/cosign.pub" "$dist/"
verify "$dist" || fail "docs/releases.md does not verify: $(cat "$work/verified")"
grep -qF "$(git -C "$repository" rev-parse HEAD)" "$work/verified" || fail "the provenance does not name the commit: $(cat "$work/verified")"
changed() { # WHAT COMMAND...
    rm -rf "$work/changed"
    cp -R "$dist" "$work/changed"
    (cd "$work/changed" && "${@:2}")
    if verify "$work/changed"; then fail "docs/releases.md accepts $1"; fi
}
unsigned=$registry/base@$(crane digest "$registry/base:nonroot")
changed "another key" cp "$work/other.pub" cosign.pub
changed "another file" sed -i '1s/^/#/' reschedule.yaml
changed "another list of checksums" sh -c 'echo >>reschedule-crds.yaml; sha256sum *.yaml >checksums.txt'
changed "an image without a signature" sh -c "sed -i 's|image: .*/adapter[:@].*|image: $unsigned|' reschedule.yaml; sha256sum reschedule.yaml >checksums.txt; cosign sign-blob --key $work/cosign.key --bundle checksums.txt.sigstore.json checksums.txt"
changed "an image of adapter-replicated without a signature" sh -c "echo '$unsigned' >adapter-replicated.txt; sha256sum adapter-replicated.txt >checksums.txt; cosign sign-blob --key $work/cosign.key --bundle checksums.txt.sigstore.json checksums.txt"
rm "$dist/cosign.pub"

# A second build is the same.
release "$work/another/directory/with/a/longer/name" "$work/again"
diff -r --exclude=checksums.txt.sigstore.json "$dist" "$work/again" >"$work/differences" || fail "two builds of one tag differ: $(cat "$work/differences")"
cat "$dist/checksums.txt"
sed -n 's/^- `\(.*\)`$/\1/p' "$dist/release-notes.md"
echo "ok: $version for $PLATFORMS was released twice to a registry on loopback, and is the same"
