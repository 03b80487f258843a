#!/usr/bin/env bash
# Installs releases of this checkout in the cluster as docs/install.md and docs/olm.md say: test-installs.sh [WAY...], where
# a way is helm, kubectl, kustomize, flux or olm; all of them, if none is named. Each way installs a release, wakes the
# operator of the quick start by a change and by a timer, upgrades to the next release, goes back, and uninstalls. DRIFT is
# for how many seconds Flux must find nothing to change. An installation that is there is a reason to stop.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/cluster/env.sh
source hack/cluster/env.sh
# shellcheck source=hack/flags.sh
source hack/flags.sh
root=$PWD work=$(mktemp -d) way=release namespace=reschedule-system DRIFT=${DRIFT:-60}
trap 'rm -rf "$work"' EXIT
say() { printf '%(%H:%M:%S)T %s: %s\n' -1 "$way" "$*" >&2; }
fail() { say "$*"; exit 1; }
# quietly COMMAND...: what it says is shown only if it fails.
quietly() { "$@" >"$work/said" 2>&1 || fail "$* failed: $(tail -n 30 "$work/said")"; }
# block NAME: what is in the pages below this mark.
block() { sed -n "/^<!-- test: $1 -->\$/,/^\`\`\`\$/p" "$root"/docs/{install,olm}.md | sed '1,2d;$d' | grep . || fail "no page has a block $1"; }
ours() { kubectl get namespaces,clusterroles,clusterrolebindings,validatingadmissionpolicies,validatingadmissionpolicybindings,crds,priorityclasses -o name | grep reschedule || true; }

[ -z "$(ours)" ] || fail "the cluster has an installation: remove it first (docs/install.md): $(ours | tr '\n' ' ')"

# Two releases of the files as they are on the disk.
first=v0.0.1 second=v0.0.2
export COSIGN_PASSWORD=test COSIGN_KEY=$work/cosign.key CLI_PLATFORMS=linux/$(go env GOARCH) PLATFORMS=$KO_DEFAULTPLATFORMS
export KO_DOCKER_REPO=$KO_DOCKER_REPO/release KO_DEFAULTBASEIMAGE
go -C tools/ko build -buildvcs=false -o "$work/bin/cosign" ./cosign
go build -modfile=tools/ko/go.mod -buildvcs=false -o "$work/bin/crane" github.com/google/go-containerregistry/cmd/crane
go -C test/operators build -buildvcs=false -o "$work/bin/helm" helm.sh/helm/v3/cmd/helm
PATH=$work/bin:$PATH
(cd "$work" && quietly cosign generate-key-pair)
KO_DEFAULTBASEIMAGE=${KO_DEFAULTBASEIMAGE%@*}@$(crane digest "$KO_DEFAULTBASEIMAGE")
hack/copy-checkout.sh "$work/checkout"
git() { command git -C "$work/checkout" "$@"; }
for version in $first $second; do
    printf '\n## [%s] - 2026-01-31\n\n- A release of a test.\n' "${version#v}" >>"$work/checkout/CHANGELOG.md"
    git add --all
    git commit --quiet --message="$version"
    git tag "$version"
    say "making $version"
    DIST=$work/$version quietly "$work/checkout/hack/make-release.sh"
done

# release VERSION: the files of it are where the commands of the page expect them.
release() {
    VERSION=${1#v}
    rm -rf "$work/files"
    cp -r "$work/$1" "$work/files"
    say "$1"
}
# page NAME: runs the commands of the page.
page() {
    block "$1" >"$work/commands"
    (cd "$work/files" && VERSION=$VERSION quietly bash -eu "$work/commands")
}

preview() { # NAME TTL: the operator of the quick start deletes it at this age.
    quietly kubectl create namespace "$1"
    quietly kubectl label namespace "$1" "preview-ttl=$2"
}
gone() { quietly kubectl wait "namespace/$1" --for=delete --timeout=5m; }
runs() { # VERSION: the controller is of it, and ready
    quietly kubectl -n "$namespace" rollout status deployment/reschedule-controller --timeout=5m
    local label
    label=$(kubectl -n "$namespace" get deployment reschedule-controller -o jsonpath='{.metadata.labels.app\.kubernetes\.io/version}')
    [ "$label" = "$1" ] || fail "the controller is $label instead of $1"
}

# key COMMAND...: of the command line of the release.
key() { "$work/bin/kn-source-reschedule" --namespace namespace-ttl key "$@"; }
far() { key describe namespace-ttl far --output json | grep -E '"(revision|dueAt)"' || fail "the key of the first release is gone"; }

# installed: an operator at zero is woken by a change, and by a timer.
installed() {
    runs $first
    quietly kubectl apply -f "$work/files/reschedule-example.yaml"
    quietly kubectl -n namespace-ttl wait reschedulesource/namespace-ttl --for=jsonpath='{.status.scale.state}'=Asleep --timeout=5m
    preview preview-now 5s
    gone preview-now
    tar -xzf "$work/files/kn-source-reschedule_v${VERSION}_${CLI_PLATFORMS/\//_}.tar.gz" -C "$work/bin"
    quietly key set namespace-ttl far --at 2099-01-01T00:00:00Z # nothing else knows of it
    far >"$work/far"
    say "an operator was woken from zero"
}
# upgraded VERSION: the schedules are there, and a change and a timer wake.
upgraded() {
    runs "$1"
    preview preview-now 5s
    gone preview-now
    far | diff "$work/far" - >&2 || fail "the key of the first release has changed"
    say "$1 wakes it, and has its schedules"
}
# uninstalled COMMAND...: as the page says, with a source that is there.
uninstalled() {
    [ "$1" = page ] || quietly kubectl delete reschedulesources --all -A --timeout=5m
    "$@"
    kubectl delete -f "$work/files/reschedule-example.yaml" --ignore-not-found >"$work/said" 2>&1 || true # its source's kind may be gone
    quietly kubectl wait namespace/namespace-ttl --for=delete --timeout=2m
    [ "$namespace" = knative-eventing ] || quietly kubectl delete namespace "$namespace" --ignore-not-found
    [ -z "$(ours)" ] || fail "it left $(ours | tr '\n' ' ')"
    say "uninstalled"
}

helm_() {
    release $first && page helm-install
    installed
    release $second && page helm-upgrade
    upgraded $second
    page helm-rollback
    upgraded $first
    uninstalled page helm-uninstall
}

kubectl_() {
    release $first && page kubectl
    installed
    release $second && page kubectl
    upgraded $second
    release $first && page kubectl
    upgraded $first
    uninstalled quietly kubectl delete -f "$work/files/reschedule-without-knative.yaml"
}

# The patches of the page, with names of this cluster, and the form without Knative.
kustomized() { # VERSION
    local class
    class=$(kubectl get storageclass -o jsonpath="{.items[0].metadata.name}")
    release "$1"
    tar -xzf "$work/files/reschedule-kustomize.tar.gz" -C "$work/files"
    { block kustomize-patches | sed 's/\[config\]/[reschedule]/; s/50Gi/2Gi/; s/value: fast/value: '"$class"'/; /nodeSelector/d'; echo 'components: [reschedule/without-knative]'; } >"$work/files/kustomization.yaml"
    (cd "$work/files" && quietly kubectl apply -k .)
}
kustomize_() {
    kustomized $first
    installed
    [ "$(kubectl -n reschedule-system get pvc data-reschedule-adapter-0 -o jsonpath='{.spec.resources.requests.storage}')" = 2Gi ] || fail "the patch of the volume did not count"
    kustomized $second
    upgraded $second
    kustomized $first
    upgraded $first
    uninstalled quietly kubectl delete -k "$work/files"
}

# Flux reads the manifests from the registry. publish VERSION: an artifact of the release.
publish() {
    release "$1"
    tar -C "$work/files" --sort=name --mtime=@0 --owner=0 --group=0 -czf "$work/artifact.tgz" reschedule-without-knative.yaml
    crane append -f "$work/artifact.tgz" -t "$KO_DOCKER_REPO/manifests:stable" >"$work/said" 2>&1 || fail "$(cat "$work/said")"
}
changed_since() { # TIME: whether Flux wrote an object since
    kubectl -n flux-system logs deployment/kustomize-controller --since-time="$1" | grep 'server-side apply' | grep '"reschedule"' | grep '"\(created\|configured\|deleted\)"' >"$work/changes"
}
flux_() {
    quietly test/published/install.sh flux
    publish $first
    block flux | sed "s#oci://.*#oci://$KO_DOCKER_REPO/manifests#; s#interval: 10m#interval: 5s#; s#^  url:#  insecure: true\n&#" >"$work/flux.yaml"
    quietly kubectl apply -f "$work/flux.yaml"
    quietly kubectl -n flux-system wait kustomization/reschedule --for=condition=Ready --timeout=5m
    installed
    local since
    since=$(date -u +%FT%TZ)
    sleep "$DRIFT" # nothing may happen
    if changed_since "$since"; then fail "Flux changed something: $(tail -n 1 "$work/changes")"; fi
    say "nothing to change for $DRIFT s"
    quietly kubectl -n "$namespace" scale deployment/reschedule-controller --replicas=2
    quietly kubectl -n "$namespace" wait deployment/reschedule-controller --for=jsonpath='{.spec.replicas}'=1 --timeout=1m
    for ((i = 0; i < 100; i++)); do ! changed_since "$since" || break; sleep 0.1; done
    [ -s "$work/changes" ] || fail "Flux logs no change: what does it write when it changes something?"
    quietly kubectl -n flux-system patch kustomization reschedule --type merge -p '{"spec":{"suspend":true}}'
    publish $second
    quietly kubectl -n flux-system wait ocirepository/reschedule --for=jsonpath='{.status.artifact.revision}'="stable@$(crane digest "$KO_DOCKER_REPO/manifests:stable")" --timeout=2m
    runs $first
    quietly kubectl -n flux-system patch kustomization reschedule --type merge -p '{"spec":{"suspend":false}}'
    await_version $second
    upgraded $second
    publish $first
    await_version $first
    upgraded $first
    uninstalled pruned
    quietly kubectl delete -f "$work/flux.yaml" --ignore-not-found
    quietly kubectl delete -f bin/published/flux/all.yaml
}
await_version() { quietly kubectl -n "$namespace" wait deployment/reschedule-controller --for=jsonpath='{.metadata.labels.app\.kubernetes\.io/version}'="$1" --timeout=3m; }
pruned() { quietly kubectl -n flux-system delete kustomization reschedule --timeout=5m; }

# OLM 1, which knows no way back.
olm_() {
    local namespace=knative-eventing
    quietly test/published/install.sh olm
    release $first
    kubectl get namespace $namespace >/dev/null || fail "OLM installs beside Knative Eventing: make cluster-up, without KNATIVE=no"
    quietly kubectl apply -f "$work/files/reschedule-admission.yaml"
    block olm | sed "s#ghcr.io/reschedule-dev/\(.*\):VERSION#$KO_DOCKER_REPO/\1:$first#" >"$work/olm.yaml"
    quietly kubectl apply -f "$work/olm.yaml"
    quietly kubectl wait clusterextension/reschedule --for=condition=Installed --timeout=5m
    installed
    release $second
    quietly kubectl apply -f "$work/files/reschedule-admission.yaml"
    quietly kubectl patch clustercatalog reschedule --type merge -p '{"spec":{"source":{"image":{"ref":"'"$KO_DOCKER_REPO/reschedule-catalog:$second"'"}}}}'
    quietly kubectl wait clusterextension/reschedule --for=jsonpath='{.status.install.bundle.version}'=${second#v} --timeout=5m
    upgraded $second
    uninstalled unextended
    quietly kubectl delete -f bin/published/olm/all.yaml
}

unextended() {
    quietly kubectl delete clusterextension reschedule --timeout=5m
    quietly kubectl delete -f "$work/olm.yaml" -f "$work/files/reschedule-admission.yaml" --ignore-not-found
}

if (($# == 0)); then set -- helm kubectl kustomize flux olm; fi
for way; do
    began=$SECONDS
    "${way}_"
    say "ok after $((SECONDS - began)) s"
done
