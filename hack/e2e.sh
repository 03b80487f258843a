#!/usr/bin/env bash
# Runs test/e2e in the cluster; E2E are further flags of go test. On failure what the
# cluster knows of it is in bin/e2e.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/cluster/env.sh
source hack/cluster/env.sh
export E2E_LOGS=$PWD/bin/e2e
rm -rf "$E2E_LOGS"
mkdir -p "$E2E_LOGS"
# Knative's suites say so much that it is shown only where they fail.
suites() {
    echo "Knative's own suites, in test/knative" >&2
    if go -C test/knative test -tags e2e -count=1 -timeout 20m ./... >"$E2E_LOGS/suites.log" 2>&1; then return; fi
    grep -E '^ *--- FAIL|^FAIL|^panic' "$E2E_LOGS/suites.log" >&2
    return 1
}

# They wait most of their time, so there may be more of them than cores.
# shellcheck disable=SC2086 # E2E are several
if go test -tags e2e -count=1 -timeout 45m -parallel 6 ${E2E:-} ./test/e2e &&
    { [ -n "${E2E:-}" ] || suites; }; then exit 0; fi

kubectl get pods,reschedulesources,services.serving.knative.dev -A -o wide >"$E2E_LOGS/pods.txt" 2>&1 || true
kubectl get events -A --sort-by=.lastTimestamp >"$E2E_LOGS/events.txt" 2>&1 || true
for namespace in knative-eventing knative-serving; do
    for pod in $(kubectl -n $namespace get pods -o name); do
        kubectl -n $namespace logs "$pod" --all-containers --tail 5000 >"$E2E_LOGS/$namespace.${pod#pod/}.log" 2>&1 || true
    done
done
echo "e2e: failed; logs, objects and events are in $E2E_LOGS" >&2
exit 1
