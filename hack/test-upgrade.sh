#!/usr/bin/env bash
# Builds the adapters of the commit FROM and runs the tests that upgrade them and go back: one that is alone, a
# group, member by member, and one with a source that watches, at a real API server. FROM has to be in this clone,
# and its data directory and its log have to be of the same formats.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
from=${FROM:?is the commit to upgrade from}
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
check ./test/blackbox -upgrade.from="$work/adapter"
build adapter-replicated
check ./test/replicated -upgrade.from="$work/adapter-replicated"
check ./test/cluster -run TestUpgrade_Watching -upgrade.from="$work/adapter"
