#!/usr/bin/env bash
# image.sh DIRECTORY: makes the files of the operator's image, without a container engine: Python of this machine, the
# packages of python/requirements.txt, reschedule-kopf and handlers.py.
#
# image.sh DIRECTORY IMAGE: also pushes them as an image, with the crane of $CRANE.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(mkdir -p "$1" && cd "$1" && pwd)
image=${2:-}
package=$here/../../python
python=${PYTHON:-$("$here/../../hack/python.sh" python3 -c 'import sys; print(sys._base_executable)')}
library=$("$python" -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')
rm -rf "${root:?}"/*
mkdir -p "$root"/{app/lib,etc,tmp}
chmod 1777 "$root/tmp"
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$root/etc/passwd"
"$python" -m pip --version >/dev/null 2>&1 || { echo "image.sh: $python has no pip" >&2; exit 1; }
grep -vE '^(#|mypy|ruff|pytest|pluggy|iniconfig|pathspec|types-|librt|Pygments|ast_serialize|ansible|Jinja2|MarkupSafe|resolvelib|packaging)' "$package/requirements.txt" >"$root/tmp/requirements"
"$python" -m pip install --quiet --disable-pip-version-check --no-deps --target "$root/app/lib" -r "$root/tmp/requirements"
rm "$root/tmp/requirements"
cp -r "$package/src/reschedule_kopf" "$here/handlers.py" "$root/app/"
tar -C / --exclude={__pycache__,test,idlelib,lib2to3,ensurepip,site-packages,dist-packages,'config-*',sitecustomize.py} -c "${library#/}" | tar -C "$root" -x
install -D "$(readlink -f "$python")" "$root/$(readlink -f "$python")"
ln -s "$(readlink -f "$python")" "$root/app/python3"
# The loader, the C library, and what else the programs need: the image has no other base.
{ find "$root/app/lib" "$root/${library#/}" -name '*.so' -exec ldd {} + 2>/dev/null; ldd "$(readlink -f "$python")"; } |
    grep -oE '(=> )?/[^ ]+ \(' | tr -d '=> (' | grep -v "^$root" | sort -u |
    while read -r file; do install -D "$file" "$root/$file"; done
# Without compiled files each cold start would compile them.
"$root/app/python3" -m compileall -q --invalidation-mode unchecked-hash "$root/app" "$root/${library#/}" >/dev/null || true
[ -n "$image" ] || exit 0

tar=$(mktemp)
trap 'rm -f "$tar"' EXIT
tar -C "$root" --owner=0 --group=0 --mtime=@0 --sort=name --numeric-owner -cf "$tar" .
"$CRANE" append -f "$tar" -t "$image" >/dev/null
"$CRANE" mutate "$image" --set-platform "linux/$(go env GOARCH)" --user 65532 --workdir /app --env PYTHONPATH=/app:/app/lib \
    --entrypoint /app/python3,-m,reschedule_kopf,-A,/app/handlers.py -t "$image"
