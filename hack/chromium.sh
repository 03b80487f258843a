#!/usr/bin/env bash
# Finds the browser of test/page, or installs Debian's chromium-headless-shell, and runs a
# command with its path in CHROMIUM: chromium.sh COMMAND...
#
# The major version is pinned: another one may show the page in another way. CHROMIUM=PATH
# names a browser that is there already.
set -euo pipefail
major=156
package=chromium-headless-shell
CHROMIUM=${CHROMIUM:-$package}
version() { "$CHROMIUM" --version 2>/dev/null || true; }
fail() { echo "hack/chromium.sh: $*" >&2; exit 1; }
if ! [[ $(version) =~ \ $major\. ]]; then
    command -v apt-get >/dev/null || fail "install $package $major, or set CHROMIUM to its path (found: $(version))"
    [ "$(id -u)" = 0 ] || fail "install $package $major as root, or set CHROMIUM to its path (found: $(version))"
    log=$(mktemp)
    apt-get update >"$log" 2>&1 &&
        DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "$package=$major.*" fonts-dejavu-core >>"$log" 2>&1 ||
        { cat "$log" >&2; fail "apt-get cannot install $package $major"; }
    rm -f "$log"
fi
[[ $(version) =~ \ $major\. ]] || fail "$CHROMIUM is $(version), and the tests need $major: raise the version here and in test/page/main_test.go"
export CHROMIUM
exec "$@"
