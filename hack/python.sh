#!/usr/bin/env bash
# Makes the environment of the Python package in python/.venv, with the versions of
# python/requirements.txt, or uses an existing one: python.sh COMMAND... runs a command in it.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/python
venv=$root/.venv
fail() { echo "hack/python.sh: $*" >&2; exit 1; }
# The checkout's path is part of what is installed.
stamp=$( (echo "$root"; cat "$root/requirements.txt" "$root/pyproject.toml") | sha256sum | cut -c1-16)
if [ ! -e "$venv/$stamp" ]; then
    python3 -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
        fail "install Python of at least 3.11 with venv (Debian: python3-venv)"
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement "$root/requirements.txt"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --editable "$root"
    "$venv/bin/pip" check >/dev/null || fail "python/requirements.txt lacks what another package needs: $("$venv/bin/pip" check)"
    touch "$venv/$stamp"
fi
export PATH=$venv/bin:$PATH
cd "$root"
exec "$@"
