#!/usr/bin/env bash
# Installs this checkout into the cluster and waits for its controller. The adapter has
# no pod until there is a source. It goes into knative-eventing if the cluster has Knative
# Eventing, else into reschedule-system, where an installation also stays that is there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/cluster/env.sh
source hack/cluster/env.sh
# shellcheck source=hack/flags.sh
source hack/flags.sh
export KOCACHE=$PWD/bin/ko
ko() { go run -modfile=tools/ko/go.mod github.com/google/ko "$@"; }
eventing=$(kubectl get crd eventpolicies.eventing.knative.dev --ignore-not-found -o name)
plain=$(kubectl -n reschedule-system get deployment reschedule-controller --ignore-not-found -o name)
if [ -z "$eventing" ] || [ -n "$plain" ]; then
    kubectl kustomize hack/without-knative | ko apply --sbom=none -f -
    kubectl -n reschedule-system rollout status deployment/reschedule-controller --timeout=2m
    exit
fi
# An older StatefulSet has another serviceName, which cannot be changed: see
# docs/upgrade.md.
if [ "$(kubectl -n knative-eventing get statefulset reschedule-adapter --ignore-not-found -o jsonpath='{.spec.serviceName}')" = reschedule-adapter ]; then
    kubectl -n knative-eventing delete statefulset reschedule-adapter --cascade=orphan
fi
ko apply --sbom=none -f config/
kubectl -n knative-eventing rollout status deployment/reschedule-controller --timeout=2m
