#!/usr/bin/env bash
# Ends the cluster of up.sh and removes what it left, but for the cache of programs and
# images; with --purge that too.
# shellcheck source=hack/cluster/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ "${1:-}" = --for-up ] || alone
# With its first process end all of a node's, its mounts, and its end of the cable.
for number in {0..9}; do
    name=$(node_name "$number")
    if running "$name"; then say "ending $name"; fi
    halt "$name"
    ip link delete "$CABLE$number" 2>/dev/null || true
    if ((number)); then remove_cgroups "/$name"; fi
done
remove_cgroups /kubepods
stop registry
# Each commit that ran here has left images. Today's images are kept, so that the next run pushes
# little, and everything that is not this project's.
if [ -x "$BIN/registry" ] && [ -f "$STATE/registry.yaml" ]; then
    repositories=$CACHE/registry/docker/registry/v2/repositories
    find "$repositories/reschedule" -path '*/_manifests/tags/*/current/link' -mtime +0 2>/dev/null | # written by each push
        while read -r link; do rm -rf "${link%/current/link}"; done || true
    quietly "removing images that have no tag" env OTEL_TRACES_EXPORTER=none "$BIN/registry" garbage-collect --quiet --delete-untagged "$STATE/registry.yaml"
fi
for range in "$NODE_CIDR" "$POD_CIDR"; do ip route delete blackhole "$range" 2>/dev/null || true; done
if [ -f "$STATE/sysctl" ]; then sysctl -qp "$STATE/sysctl"; fi
rm -rf --one-file-system "$STATE"
rmdir /var/lib/cni 2>/dev/null || true
if [ "${1:-}" = --purge ]; then rm -rf "$CACHE"; fi
