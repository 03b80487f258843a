#!/usr/bin/env bash
# Prints the directory of prometheus and promtool, which the tests of config/monitoring run:
# the installed ones, or Debian's package, unpacked into bin/prometheus and installed
# nowhere.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

for name in prometheus promtool; do command -v "$name" >/dev/null || missing=$name; done
if [ -z "${missing:-}" ]; then
    dirname "$(command -v promtool)"
    exit
fi
out=$PWD/bin/prometheus
if [ ! -x "$out/usr/bin/promtool" ]; then
    if ! command -v apt-get >/dev/null || ! command -v dpkg-deb >/dev/null; then
        echo "$missing is missing, and this is no Debian: put prometheus and promtool, 2.42 or newer, on the PATH" >&2
        exit 1
    fi
    mkdir -p bin
    work=$(mktemp -d bin/prometheus.XXXXXX)
    trap 'rm -rf "$work"' EXIT
    if ! (cd "$work" && apt-get download -qq prometheus) >"$work/log" 2>&1; then
        apt-get update -qq >>"$work/log" 2>&1 || true # the lists may be old, or not there
        if ! (cd "$work" && apt-get download -qq prometheus) >>"$work/log" 2>&1; then
            echo "Debian's package prometheus cannot be downloaded; put prometheus and promtool, 2.42 or newer, on the PATH:" >&2
            cat "$work/log" >&2
            exit 1
        fi
    fi
    dpkg-deb -x "$work"/prometheus_*.deb "$work/tree"
    mv -T "$work/tree" "$out" 2>/dev/null || [ -x "$out/usr/bin/promtool" ] # another run was first
fi
"$out/usr/bin/promtool" --version >&2
echo "$out/usr/bin"
