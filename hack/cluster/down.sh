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
for range in "$NODE_CIDR" "$POD_CIDR"; do ip route delete blackhole "$range" 2>/dev/null || true; done
if [ -f "$STATE/sysctl" ]; then sysctl -qp "$STATE/sysctl"; fi
rm -rf --one-file-system "$STATE"
rmdir /var/lib/cni 2>/dev/null || true
if [ "${1:-}" = --purge ]; then rm -rf "$CACHE"; fi
