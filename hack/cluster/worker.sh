#!/usr/bin/env bash
# Gives the cluster more nodes, and takes them away. NUMBER is 1 to 9; the node is workerNUMBER.
#
#   worker.sh add NUMBER...     a new node, or one that was killed, with its disk
#   worker.sh kill NUMBER...    as a machine without power: all its processes end at once, and
#                               packets to it get no answer. The cluster is not told
#   worker.sh remove NUMBER...  the node, its pods, its volumes and its disk are gone
#   worker.sh forget ADDRESS    connections through a Service to a pod that is gone. Linux remembers a connection without
#                               an answer for up to five minutes, and sends a new one from the same port there too
# shellcheck source=hack/cluster/node.sh
source "$(dirname "${BASH_SOURCE[0]}")/node.sh"

[[ "$*" =~ ^((add|kill|remove)(\ [1-9])+|forget\ [0-9.]+)$ ]] || fail "worker.sh add|kill|remove NUMBER..., of 1 to 9, or forget ADDRESS"
[ -f "$STATE/pid/node.booted" ] || fail "there is no cluster here: make cluster-up"
verb=$1
shift
alone
# left_out NODE ADDRESS: no Service leads to the address.
left_out() { [[ ! $(in_node "$1" nft list table ip kube-proxy) =~ goto\ endpoint-[^\ ]*"__$2/" ]]; }
if [ "$verb" = forget ]; then
    for number in {0..9}; do
        name=$(node_name "$number")
        booted "$name" || continue
        await 60 - "kube-proxy of $name without $1" left_out "$name" "$1"
        in_node "$name" conntrack --delete --proto tcp --reply-src "$1" >/dev/null 2>&1 || true # it fails where there is none
    done
    exit
fi
for number; do
    name=$(node_name "$number")
    case $verb in
    add)
        # The host routes between the nodes; down.sh sets it back.
        sysctl -qw net.ipv4.ip_forward=1
        boot "$number"
        join "$number"
        volumes "$number" 3
        ;;
    kill) halt "$name" ;;
    remove)
        halt "$name"
        kubectl delete node "$name" --ignore-not-found >/dev/null
        kubectl delete pods -A --field-selector "spec.nodeName=$name" --force --grace-period=0 >/dev/null 2>&1
        # Their claims may still be there, and wait for a volume that does not come back.
        kubectl delete persistentvolumes -l "node=$name" --wait=false >/dev/null
        for volume in $(kubectl get persistentvolumes -l "node=$name" -o name); do
            kubectl patch "$volume" --type merge -p '{"metadata":{"finalizers":null}}' >/dev/null 2>&1 || true
        done
        remove_cgroups "/$name"
        rm -rf --one-file-system "$STATE/nodes/$name"
        ;;
    esac
done
