#!/usr/bin/env bash
# base-image.sh REGISTRY PLATFORM: pushes a base image for ko, with a user and without a
# program, and prints its name. It serves registries that have no other images; ko needs a
# base. CRANE is the path of crane.
set -euo pipefail
registry=$1 platform=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/root/{etc,tmp}
chmod 755 "$work/root" "$work/root/etc"
chmod 1777 "$work/root/tmp"
echo 'nonroot:x:65532:65532:nonroot:/:/sbin/nologin' >"$work/root/etc/passwd"
echo 'nonroot:x:65532:' >"$work/root/etc/group"
# The bytes are the same each time, so that images built on it keep their digests.
tar -C "$work/root" --owner=0 --group=0 --mtime=@0 --sort=name --numeric-owner -cf "$work/base.tar" .
"$CRANE" append -f "$work/base.tar" -t "$registry/base:raw" >/dev/null
"$CRANE" mutate "$registry/base:raw" --set-platform "$platform" --user 65532 -t "$registry/base:nonroot" >/dev/null
echo "$registry/base:nonroot"
