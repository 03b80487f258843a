#!/usr/bin/env bash
# Installs this checkout into the cluster and waits for its controller. The adapter has
# no pod until there is a source.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/cluster/env.sh
source hack/cluster/env.sh
# shellcheck source=hack/flags.sh
source hack/flags.sh
export KOCACHE=$PWD/bin/ko
# An older StatefulSet has another serviceName, which cannot be changed: see
# docs/upgrade.md.
if [ "$(kubectl -n knative-eventing get statefulset reschedule-adapter --ignore-not-found -o jsonpath='{.spec.serviceName}')" = reschedule-adapter ]; then
    kubectl -n knative-eventing delete statefulset reschedule-adapter --cascade=orphan
fi
go run -modfile=tools/ko/go.mod github.com/google/ko apply --sbom=none -f config/
kubectl -n knative-eventing rollout status deployment/reschedule-controller --timeout=2m
