#!/usr/bin/env bash
# Runs test/e2e in the cluster, which runs Knative's own suites (test/knative) too. E2E holds
# further flags of go test. It shows the result of each test as it ends, and after a failure
# the whole output, and last what the failed tests said; objects, events and logs of pods are
# then in bin/e2e.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=hack/cluster/env.sh
source hack/cluster/env.sh
export E2E_LOGS=$PWD/bin/e2e
# shellcheck source=hack/flags.sh
source hack/flags.sh
export GOFLAGS="$GOFLAGS -vet=off" # as make test
export KOCACHE=$PWD/bin/ko         # ko links and compresses nothing again that is unchanged
rm -rf "$E2E_LOGS"
mkdir -p "$E2E_LOGS"

tags=e2e,grpcnotrace
if [ -n "${NODES:-}" ]; then tags+=,nodes; fi # for the cluster of make cluster-up, whose nodes can be taken away

# The tests wait most of the time, so more of them run than there are cores. Ten of them hold
# their place until the others have ended.
log=$E2E_LOGS/e2e.log
# shellcheck disable=SC2086 # E2E holds several flags
if (cd test/e2e && go test -tags $tags -count=1 -v -timeout 45m -parallel 19 ${E2E:-} .) 2>&1 | tee "$log" |
    grep --line-buffered -E '^(--- |    --- [A-Z]+: TestAlone_InTurn/|    alone_test.go:|ok|FAIL|panic|seed)'; then exit 0; fi
cat "$log"

kubectl get pods,reschedulesources,services.serving.knative.dev -A -o wide >"$E2E_LOGS/pods.txt" 2>&1 || true
kubectl get events -A --sort-by=.lastTimestamp >"$E2E_LOGS/events.txt" 2>&1 || true
for namespace in knative-eventing knative-serving; do
    for pod in $(kubectl -n $namespace get pods -o name); do
        kubectl -n $namespace logs "$pod" --all-containers --tail 5000 >"$E2E_LOGS/$namespace.${pod#pod/}.log" 2>&1 || true
    done
done
# Tests run side by side, so the lines of one are not together: go test names the test before its lines.
awk '/^=== / { name = $3; next }
    /^ *--- FAIL: / { failed[++n] = $3 }
    { said[name] = said[name] $0 "\n" }
    END { for (i = 1; i <= n; i++) printf "== %s said:\n%s", failed[i], said[failed[i]] }' "$log" | tee "$E2E_LOGS/failed.txt"
# The pods of Knative that ended and began again, or do not run.
awk '$1 ~ /^knative-/ && $2 ~ /^pod\// && ($5 != "0" || $4 != "Running")' "$E2E_LOGS/pods.txt" | tee -a "$E2E_LOGS/failed.txt"
# A node without disk or memory fails tests that have nothing in common.
kubectl get events -A --field-selector involvedObject.kind=Node,type=Warning -o custom-columns=NODE:.involvedObject.name,REASON:.reason,MESSAGE:.message --no-headers >&2 || true
echo "e2e: failed; logs, objects and events are in $E2E_LOGS" >&2
exit 1
