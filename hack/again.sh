#!/usr/bin/env bash
# Runs the Go tests so many times beside two processes that only compute: again.sh TIMES. What fails is in
# bin/again.log, each line with the number of its run, and in bin/again with its whole output.
# hack/with-programs.sh must have built the programs.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
log=bin/again.log
rm -rf bin/again
mkdir -p bin/again
: >"$log"
trap 'kill $(jobs -p)' EXIT
for _ in 1 2; do while :; do :; done & done
for ((i = 1; i <= $1; i++)); do
    echo "== run $i of $1" >&2
    for module in . sdk cli tools; do
        said=bin/again/$i.$(basename "$(realpath "$module")").log
        if go -C "$module" test -count=1 -timeout 60m ./... >"$said" 2>&1; then
            rm "$said"
        else
            { grep -E '^ *--- FAIL|^FAIL|^panic' "$said" || echo "go test failed"; } | sed "s|^|$i $module: |" | tee -a "$log"
        fi
    done
done
[ ! -s "$log" ]
