#!/usr/bin/env bash
# Builds the adapter of 0.1.0 and runs the test that upgrades it and goes back. FROM is another
# commit, which has to be in this clone. If that commit has the replicated form, a group of its
# adapters is upgraded too, member by member. If it has spec.watch, a source that watches is upgraded at a
# real API server.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
from=${FROM:-975d2c0}
if ! git rev-parse --verify --quiet "$from^{commit}" >/dev/null; then
    echo "commit $from is not in this clone: git fetch --unshallow gets the history, and FROM names another commit" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'git worktree remove --force "$work/older" 2>/dev/null || true; rm -rf "$work"' EXIT
git worktree add --quiet --detach "$work/older" "$from"
# shellcheck source=hack/flags.sh
source hack/flags.sh
build() { go -C "$work/older" build -buildvcs=false -o "$work/$1" "./cmd/$1"; }
check() { go test -count=1 -timeout 30m -v -run TestUpgrade "$@"; }
build adapter
if [ -d "$work/older/cmd/adapter-replicated" ]; then
    check ./test/blackbox -upgrade.from="$work/adapter" -upgrade.reads2
    build adapter-replicated
    ADAPTER_REPLICATED_BINARY=$work/adapter-replicated check ./test/replicated
else
    check ./test/blackbox -upgrade.from="$work/adapter"
fi
if [ -d "$work/older/pkg/adapter/watch" ]; then
    check ./test/cluster -run TestUpgrade_Watching -upgrade.from="$work/adapter"
fi
