#!/usr/bin/env bash
# image.sh DIRECTORY: makes the files of the operator's image, without a container engine.
#
# image.sh DIRECTORY IMAGE: also pushes them as an image, with the crane of $CRANE.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(mkdir -p "$1" && cd "$1" && pwd)
image=${2:-}
(cd "$here" && cargo build --locked --quiet --release --bin banner)
rm -rf "${root:?}"/*
mkdir -p "$root/etc"
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$root/etc/passwd"
install -D "$here/target/release/banner" "$root/app/banner"
# The loader and the C library: the image has no other base.
ldd "$root/app/banner" | grep -oE '(=> )?/[^ ]+ \(' | tr -d '=> (' | sort -u |
    while read -r file; do install -D "$file" "$root/$file"; done
[ -n "$image" ] || exit 0

tar=$(mktemp)
trap 'rm -f "$tar"' EXIT
tar -C "$root" --owner=0 --group=0 --mtime=@0 --sort=name --numeric-owner -cf "$tar" .
"$CRANE" append -f "$tar" -t "$image" >/dev/null
"$CRANE" mutate "$image" --set-platform "linux/$(go env GOARCH)" --user 65532 --entrypoint /app/banner -t "$image"
