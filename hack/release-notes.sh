#!/usr/bin/env bash
# Prints the notes of a version: release-notes.sh v1.2.3. They are its section of CHANGELOG.md, and the commits since the
# version before it, if there is one; a version without a suffix skips pre-releases.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
version=$1
# The heading is "## [1.2.3] - 2026-01-31" or has no brackets.
notes=$(awk -v version="${version#v}" '
    /^## / { is = ($2 == version || $2 == "[" version "]") && $3 == "-" && $4 ~ /^[0-9][0-9][0-9][0-9]-[0-9][0-9]-[0-9][0-9]$/; next }
    is' CHANGELOG.md)
if ! [[ $notes = *[^[:space:]]* ]]; then
    echo "release notes: CHANGELOG.md has no section \"## [${version#v}] - $(date +%F)\" with a date and text: write it, and move the tag" >&2
    exit 1
fi
echo "# $version"
without=(--exclude '*-*')
if [[ $version = *-* ]]; then
    without=()
    printf '\n**This is a pre-release.** It may change before the version without a suffix, and no upgrade to or from it is promised.\n'
fi
printf '%s\n' "$notes"
if before=$(git describe --tags --abbrev=0 --match 'v[0-9]*' "${without[@]}" "$version^" 2>/dev/null); then
    printf '\n<details><summary>Commits since %s</summary>\n\n' "$before"
    git log --no-merges --format='- %s' "$before..$version"
    printf '\n</details>\n'
fi
