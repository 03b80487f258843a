#!/usr/bin/env bash
# copy-checkout.sh DIRECTORY: a new repository there has the files of this checkout as they are on the disk, and no commit.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mkdir -p "$1"
git ls-files -z --cached --others --exclude-standard | while IFS= read -rd '' f; do [ ! -e "$f" ] || printf '%s\0' "$f"; done |
    tar --null --files-from=- -cf - | tar -C "$1" -xf -
git -C "$1" init --quiet
git -C "$1" config user.name test
git -C "$1" config user.email test@example.com
