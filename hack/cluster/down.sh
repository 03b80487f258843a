#!/usr/bin/env bash
# Ends the cluster of up.sh and removes what it left, but for the cache of programs and
# images; with --purge that too.
# shellcheck source=hack/cluster/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ "${1:-}" = --for-up ] || alone
# With its first process end all of the node's, its mounts, and its end of the cable.
if running node; then
    say "ending the node"
    kill -9 "$(pid_of node.init)" 2>/dev/null || stop node
    for ((i = 0; i < 100; i++)); do
        running node || break
        sleep 0.1
    done
fi
stop registry
ip link delete "$CABLE" 2>/dev/null || true
for hierarchy in /sys/fs/cgroup /sys/fs/cgroup/*/; do
    [ ! -d "$hierarchy/kubepods" ] || find "$hierarchy/kubepods" -depth -type d -exec rmdir {} \; 2>/dev/null || true
done
if [ -f "$STATE/sysctl" ]; then sysctl -qp "$STATE/sysctl"; fi
rm -rf --one-file-system "$STATE"
rmdir /var/lib/cni 2>/dev/null || true
if [ "${1:-}" = --purge ]; then rm -rf "$CACHE"; fi
