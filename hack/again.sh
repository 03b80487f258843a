#!/usr/bin/env bash
# Runs the Go tests so many times beside two processes that only compute: again.sh TIMES. What fails is in
# bin/again.log, each line with the number of its run. hack/with-programs.sh must have built the programs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p bin
log=bin/again.log
: >"$log"
trap 'kill $(jobs -p)' EXIT
for _ in 1 2; do while :; do :; done & done
for ((i = 1; i <= $1; i++)); do
    echo "== run $i of $1" >&2
    for module in . sdk cli examples/config-watcher examples/metacontroller tools/olm; do
        go -C "$module" test -count=1 -timeout 60m ./... 2>&1 | grep -E '^ *--- FAIL|^FAIL|^panic' | sed "s|^|$i $module: |" | tee -a "$log"
        if [ "${PIPESTATUS[0]}" != 0 ]; then echo "$i $module: go test failed" >>"$log"; fi
    done
done
[ ! -s "$log" ]
