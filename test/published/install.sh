#!/usr/bin/env bash
# install.sh [GROUP...]: builds the operators of the groups (the directories here; all but olm, if none is named) from the
# modules that their authors published, and installs them, resident, with the manifests or the chart of the same module.
# An image that is in the registry of the same versions is not built again. The first time, all take half an hour.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
# shellcheck source=hack/cluster/env.sh
source hack/cluster/env.sh
# shellcheck source=hack/flags.sh
source hack/flags.sh
export GOGC=400                                                         # the compiler collects garbage less often
export KO_CONFIG_PATH=$PWD/hack/cluster KOCACHE=$PWD/bin/published/ko   # not the flags that a module has for ko
root=$PWD
work=$root/bin/published
programs=$work/programs

say() { printf '%(%H:%M:%S)T %s: %s\n' -1 "$group" "$*" >&2; }
fail() { say "$*"; exit 1; }

# module DIRECTORY MODULE@VERSION SUM: a copy of a module, which is a main module there: so it has its own go.mod, go.sum
# and replacements. A replacement by a directory is a module of its own, and gets its copy in that place.
module() {
    local said
    said=$(go mod download -json "$2") || fail "$2 cannot be had: $said"
    [[ $said = *"\"Sum\": \"$3\""* ]] || fail "$2 has another sum: $said"
    mkdir -p "$into/$1"
    cp -r --no-preserve=mode "$(sed -n 's/.*"Dir": "\(.*\)".*/\1/p' <<<"$said")/." "$into/$1"
    sums+=" $3"
}

# place NAME INPUTS COMMAND...: an image of ours is in the place of the published one. The command makes it of the inputs,
# and gets its name with a tag; what is in the registry of the same inputs stays.
place() {
    local name=$1 repository=$KO_DOCKER_REPO/published/$group/${1##*/} tag digest
    tag=$(sha256sum <<<"$2" | cut -c1-16)
    shift 2
    if ! digest=$(crane digest "$repository:$tag" 2>/dev/null); then
        say "building ${name##*/}"
        "$@" "$repository:$tag" >"$into/build.log" 2>&1 || fail "$name cannot be built: $(tail -n 30 "$into/build.log")"
        digest=$(crane digest "$repository:$tag")
    fi
    echo "- {name: $name, newName: $repository, digest: \"$digest\"}" >>"$into/images"
}

# program NAME DIRECTORY PACKAGE: the image of a program of a copy.
program() { place "$1" "$(go version) $sums $3 $(cat hack/cluster/.ko.yaml)" compile "$into/$2" "$3"; }
compile() { (cd "$1" && KO_DOCKER_REPO=${3%:*} "$programs/ko" build --sbom=none --bare --tags="${3##*:}" "$2"); }
crane() { "$programs/crane" "$@"; }

# chart RELEASE NAMESPACE DIRECTORY: what their chart makes of the values here.
chart() {
    go -C test/operators tool helm template "$1" "$into/$3" --namespace "$2" --kube-version 1.34.0 \
        --values "$into/values.yaml" >"$into/chart.yaml" 2>"$into/helm.log" || fail "$(cat "$into/helm.log")"
}

cert-manager() {
    module theirs github.com/cert-manager/cert-manager@v1.11.5 h1:K2LurvwIE4hIhODQZnkOW6ljYe3lVMAliS/to+gI05o=
    program quay.io/jetstack/cert-manager-cainjector theirs ./cmd/cainjector
    program quay.io/jetstack/cert-manager-controller theirs ./cmd/controller
    program quay.io/jetstack/cert-manager-webhook theirs ./cmd/webhook
    # Their release puts these together.
    local chart=$into/theirs/deploy/charts/cert-manager
    sed 's/^\(version\|appVersion\): .*/\1: v1.11.5/' "$chart/Chart.template.yaml" >"$chart/Chart.yaml"
    cp "$into"/theirs/deploy/crds/*.yaml "$chart/templates"
    chart cert-manager cert-manager theirs/deploy/charts/cert-manager
}

flux() {
    module source-controller github.com/fluxcd/source-controller@v1.9.0 h1:5msg2yyjVYDULZos+2ve8MZzcSqTpusiXmrOeBhc9yY=
    module source-controller/api github.com/fluxcd/source-controller/api@v1.9.0 h1:kO5elmtCk227YKAfpTY+8Q6rgozOYmeyRRskGZBEbbo=
    program fluxcd/source-controller source-controller .
    sums=
    module kustomize-controller github.com/fluxcd/kustomize-controller@v1.9.6 h1:XB+G3A0mky0j5uVHZWv4oSlS2RvZBoNIUhstIvY0JKE=
    module kustomize-controller/api github.com/fluxcd/kustomize-controller/api@v1.9.6 h1:7XiuW+l3YYXWeIwLJ8w34zHlJyMUEKosBIxLIki9J3I=
    program fluxcd/kustomize-controller kustomize-controller .
    tar -C "$into/artifact" --owner=0 --group=0 --mtime=@0 -czf "$into/artifact.tgz" configmap.yaml
    crane append -f "$into/artifact.tgz" -t "$KO_DOCKER_REPO/published/flux/sample:latest" >"$into/artifact.log" 2>&1 || fail "$(cat "$into/artifact.log")"
    sed -i "s#REGISTRY#$KO_DOCKER_REPO#" "$into/sample.yaml"
}

external-secrets() {
    module theirs github.com/external-secrets/external-secrets@v0.16.2 h1:iNY+gIgSyL5higXTfnz+hdPCaiB/43UiHLqE7HBpj68=
    program oci.external-secrets.io/external-secrets/external-secrets theirs .
    local chart=$into/theirs/deploy/charts/external-secrets
    sed -i '/^dependencies:/,$d' "$chart/Chart.yaml" # a chart that is off, and not in the module
    chart external-secrets external-secrets theirs/deploy/charts/external-secrets
}

trust-manager() {
    module theirs github.com/cert-manager/trust-manager@v0.25.0 h1:nGtkHH9wEacI5uACdsq8wqCKWsCw1PMrwHPJcrUFUXA=
    program quay.io/jetstack/trust-manager theirs ./cmd/trust-manager
    sed -i 's/v0\.0\.0/v0.25.0/' "$into/theirs/deploy/charts/trust-manager/Chart.yaml" # as their release does
    chart trust-manager trust-manager theirs/deploy/charts/trust-manager
}

prometheus-operator() {
    local m=github.com/prometheus-operator/prometheus-operator
    module theirs $m@v0.85.0 h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=
    module theirs/pkg/apis/monitoring $m/pkg/apis/monitoring@v0.85.0 h1:oY+F5FZFmCjCyzkHWPjVQpzvnvEB/0FP+iyzDUUlqFc=
    module theirs/pkg/client $m/pkg/client@v0.85.0 h1:OdW3Vnmoa2pM5PfRyQaSEO+UN5yamEUS1MuhwE0PxbY=
    program quay.io/prometheus-operator/prometheus-operator theirs ./cmd/operator
}

kuberay() {
    module theirs github.com/ray-project/kuberay/ray-operator@v1.5.0 h1:KCjCQ7PSsvs9Ke+90CZbbs498nuaIJ/JkXk4vd54EVg=
    program quay.io/kuberay/operator theirs .
}

# Not an operator to sleep: hack/test-installs.sh installs by it.
olm() {
    # Its tag is not in the checksum database: the sum here is the check.
    GONOSUMDB=github.com/operator-framework/operator-controller \
        module theirs github.com/operator-framework/operator-controller@v1.5.1 h1:J3xdRHzh9ajuKt/i1fWxoOLUf3kMpaOnGf1XNZ6+Klg=
    sed 's/-tags=grpcnotrace/"-tags=grpcnotrace,containers_image_openpgp"/' hack/cluster/.ko.yaml >"$into/.ko.yaml" # as they build it: else it wants cgo
    KO_CONFIG_PATH=$into program quay.io/operator-framework/operator-controller theirs ./cmd/operator-controller
    KO_CONFIG_PATH=$into program quay.io/operator-framework/catalogd theirs ./cmd/catalogd
    awk -v RS='---\n' -v ORS='---\n' '!/(^|\n)apiVersion: cert-manager.io/' "$into/theirs/manifests/standard.yaml" >"$into/standard.yaml"
    sed -i "s#REGISTRY#${KO_DOCKER_REPO%%/*}#" "$into/registries.conf"
    # catalogd and operator-controller, with one authority.
    local key=(-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes) name=catalogd-service.olmv1-system.svc
    openssl req -x509 "${key[@]}" -keyout "$into/ca.key" -out "$into/ca.crt" -subj /CN=olm -days 30 2>/dev/null
    openssl req "${key[@]}" -keyout "$into/tls.key" -subj "/CN=$name" 2>/dev/null |
        openssl x509 -req -CA "$into/ca.crt" -CAkey "$into/ca.key" -CAcreateserial -days 30 -out "$into/tls.crt" \
            -extfile <(echo "subjectAltName=DNS:$name,DNS:operator-controller-service.olmv1-system.svc") 2>/dev/null
    local secret
    for secret in catalogd-service-cert-git-version olmv1-cert; do
        echo ---
        kubectl -n olmv1-system create secret generic $secret "--from-file=$into/ca.crt" "--from-file=$into/tls.crt" "--from-file=$into/tls.key" --dry-run=client -o yaml
    done >"$into/tls.yaml"
    echo "- {op: add, path: /webhooks/0/clientConfig/caBundle, value: $(base64 -w0 "$into/ca.crt")}" >"$into/webhook.yaml"
}

# An example of kopf's source distribution, run by the kopf of the same version.
kopf() {
    local of=kopf-1.45.2
    "$(hack/python.sh python3 -c 'import sys; print(sys._base_executable)')" -m pip download --quiet --no-deps --no-binary :all: \
        --disable-pip-version-check --dest "$into" kopf==1.45.2
    sha256sum --quiet --check <<<"5baa180cfdebe1c5095d2a0a96d7d91825b6920541a0825c55719c36abb0054f  $into/$of.tar.gz" || fail "$of is another"
    tar -C "$into" -xzf "$into/$of.tar.gz"
    mv "$into/$of" "$into/theirs"
    place nolar/kopf-operator "$of $(cat examples/kopf/image.sh python/requirements.txt)" layered
    sed 's/{{NAMESPACE}}/kopf/' "$into/theirs/docs/deployment-rbac.yaml" >"$into/rbac.yaml"
}
# layered IMAGE: the image of examples/kopf, which has the same libraries, with another program.
layered() {
    CRANE=$programs/crane examples/kopf/image.sh "$into/image" "$1-python"
    mkdir -p "$into/layer/app"
    cp "$into/theirs/examples/05-handlers/example.py" "$into/layer/app"
    tar -C "$into/layer" --owner=0 --group=0 --mtime=@0 --numeric-owner -cf "$into/layer.tar" app
    crane append --base "$1-python" -f "$into/layer.tar" -t "$1"
    crane mutate "$1" --entrypoint /app/python3,-m,kopf,run,--namespace=kopf,--standalone,/app/example.py -t "$1"
}

# No operator with JOSDK is published: this one is ours, examples/java-webpage, resident, with JOSDK as published.
josdk() {
    local example=examples/java-webpage
    [ -f $example/target/webpage.jar ] || mvn --batch-mode --quiet --file java/pom.xml --projects ../$example --also-make \
        -DskipTests package >"$into/mvn.log" 2>&1 || fail "$example cannot be built: $(tail -n 30 "$into/mvn.log")"
    cp -r $example/config "$into"
    place example.com/webpages "$(cat $example/image.sh $example/target/webpage.jar | sha256sum)" env "CRANE=$programs/crane" $example/image.sh "$into/image"
}

deploy() {
    group=$1 into=$work/$1 sums=
    [ -d "test/published/$group" ] || { echo "install.sh: there is no group $group" >&2; exit 1; }
    rm -rf "$into"
    mkdir -p "$into"
    cp -r "test/published/$group/." "$into"
    echo images: >"$into/images"
    "$group"
    cat "$into/images" >>"$into/kustomization.yaml"
    kubectl kustomize "$into" >"$into/all.yaml" || fail "the manifests cannot be made"
    say "installing"
    kubectl apply --server-side --force-conflicts -f "$into/all.yaml" >"$into/apply.log" 2>&1 || fail "$(grep -v ' serverside-applied$' "$into/apply.log")"
    local namespace
    for namespace in $(kubectl get -f "$into/all.yaml" -o jsonpath='{range .items[?(@.kind=="Deployment")]}{.metadata.namespace}{"\n"}{end}' | sort -u); do
        kubectl -n "$namespace" wait --for=condition=Available deployment --all --timeout=5m >&2
    done
}

mkdir -p "$programs"
go build -C tools/ko -o "$programs/" github.com/google/ko github.com/google/go-containerregistry/cmd/crane
all=(cert-manager flux external-secrets trust-manager prometheus-operator kuberay kopf josdk)
for g in "${@:-${all[@]}}"; do deploy "$g"; done
