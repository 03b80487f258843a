#!/usr/bin/env bash
# Installs this checkout into the cluster and waits until its controller is there. The
# adapter has no pod before the first source.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/cluster/env.sh
source hack/cluster/env.sh
go tool -modfile=tools/ko/go.mod ko apply --sbom=none -f config/
kubectl -n knative-eventing rollout status deployment/reschedule-controller --timeout=2m
