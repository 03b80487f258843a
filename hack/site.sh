#!/usr/bin/env bash
# Builds the site of the pages into bin/site, with the versions of hack/site/requirements.txt; a warning is an error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=bin/site-venv stamp=$(sha256sum <hack/site/requirements.txt | cut -c1-16)
if [ ! -e "$venv/$stamp" ]; then
    rm -rf "$venv"
    python3 -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --requirement hack/site/requirements.txt
    "$venv/bin/pip" check
    touch "$venv/$stamp"
fi
export NO_MKDOCS_2_WARNING=1
exec "$venv/bin/mkdocs" build --strict --config-file hack/site/mkdocs.yaml
