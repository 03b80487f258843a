# shellcheck shell=bash
# What the scripts of this directory share: names, addresses, and how something is
# started and waited for. Sourced, not run.
#
# A node is a set of namespaces (network, mounts, processes, host name), not a machine.
# Whatever runs in it ends with its first process, and its mounts and addresses end
# with it. It has no route but to other nodes, by the host's end of its cable, so nothing
# leaves the machine.

# shellcheck disable=SC2034 # used by the scripts that source this
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
# What is worth keeping: programs, and the registry with its images.
CACHE=${CLUSTER_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/reschedule-cluster}
# What ends with the cluster. There is one on a machine, whatever checkout made it.
STATE=/var/lib/reschedule-cluster
BIN=$CACHE/bin
MANIFESTS=$CACHE/manifests

# Whether Knative is in the cluster; what is there already stays.
KNATIVE=${KNATIVE:-yes}
# The version of Kubernetes, such as v1.34.4; "" is the one of tools/cluster.
KUBERNETES=${KUBERNETES:-}

# Nodes have numbers. The first is 0 and has the control plane; worker.sh makes others.
node_name() { if (($1)); then echo "worker$1"; else echo node; fi; }
host_ip() { echo "10.99.0.$((4 * $1 + 1))"; } # of the cable between host and node
node_ip() { echo "10.99.0.$((4 * $1 + 2))"; }
pod_cidr() { echo "10.244.$1.0/24"; }
HOST_IP=$(host_ip 0)
NODE_IP=$(node_ip 0)
NODE_CIDR=10.99.0.0/24
POD_CIDR=10.244.0.0/16
SERVICE_CIDR=10.96.0.0/16
KUBERNETES_IP=10.96.0.1
DNS_IP=10.96.0.10
# Below this the kubelet ends pods, and starts none.
DISK_LOW=500Mi
DISK_NEEDED=8500 # MB: programs and images take 3,600, pods of the tests 3,500, and DISK_LOW is left
CABLE=reschedule # and the number of the node: the host's end

# What a proxy of the machine cannot reach.
export NO_PROXY=${NO_PROXY:+$NO_PROXY,}$HOST_IP,$NODE_IP

REGISTRY=$HOST_IP:5000
BASE_IMAGE=$REGISTRY/base:nonroot
PLATFORM=linux/$(go env GOARCH)
KUBECONFIG_FILE=$STATE/kubeconfig/admin

say() { printf '%(%H:%M:%S)T %s\n' -1 "$*" >&2; }
fail() { say "cluster: $*"; exit 1; }

# quietly WHAT COMMAND...: what the command says is shown only if it fails.
quietly() {
    local what=$1 log
    shift
    if ! log=$("$@" 2>&1); then
        echo "$log" >&2
        fail "$what failed; why is above"
    fi
}

# birth PID: when a process was started, which tells it from a later one of its number.
birth() { awk '{print $22}' "/proc/$1/stat" 2>/dev/null; }

running() {
    local pid born
    read -r pid born 2>/dev/null <"$STATE/pid/$1" && [ "$(birth "$pid")" = "$born" ]
}
pid_of() { cut -d ' ' -f 1 "$STATE/pid/$1"; }

# start NAME COMMAND...: in the background and in a session of its own, which the end of
# this terminal does not reach; once, and with its log in a file.
start() {
    local name=$1
    shift
    if running "$name"; then return; fi
    mkdir -p "$STATE/log" "$STATE/pid"
    setsid "$@" >>"$STATE/log/$name.log" 2>&1 </dev/null 9>&- &
    echo "$! $(birth $!)" >"$STATE/pid/$name"
}

# stop NAME: asks, waits ten seconds, insists.
stop() {
    running "$1" || return 0
    local pid
    pid=$(pid_of "$1")
    kill "$pid" 2>/dev/null || true
    for ((i = 0; i < 100; i++)); do
        running "$1" || return 0
        sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
}

[[ $KNATIVE =~ ^(yes|no)$ ]] || fail "KNATIVE is \"$KNATIVE\": say yes or no"
[[ $KUBERNETES =~ ^(v1\.[0-9]+\.[0-9]+)?$ ]] || fail "KUBERNETES is \"$KUBERNETES\": name a version as v1.34.4"

# Two at once would start each thing twice.
alone() {
    mkdir -p "$CACHE"
    exec 9>"$CACHE/lock"
    flock --nonblock 9 || { say "waiting for another cluster-up or cluster-down to end"; flock 9; }
}

# await SECONDS NAME WHAT COMMAND...: until the command succeeds. NAME is whose log is
# shown if it does not, or - if there is none.
await() {
    local seconds=$1 name=$2 what=$3 until=$((SECONDS + $1)) last
    shift 3
    if last=$("$@" 2>&1); then return; fi
    say "waiting for $what"
    until last=$("$@" 2>&1); do
        if [ "$name" != - ] && ! running "$name"; then
            tail -n 20 "$STATE/log/$name.log" >&2
            fail "$name has ended; its last lines are above"
        fi
        if ((SECONDS > until)); then
            [ "$name" = - ] || tail -n 20 "$STATE/log/$name.log" >&2
            fail "no $what after $seconds seconds: $last"
        fi
        sleep 0.2
    done
}

# in_node NODE COMMAND...: in the namespaces of a node.
in_node() {
    local name=$1
    shift
    nsenter --target "$(pid_of "$name.init")" --mount --net --pid --uts "$@"
}

# start_in NODE NAME COMMAND...: in a node, as NODE.NAME.
start_in() {
    local node=$1 name=$2
    shift 2
    start "$node.$name" nsenter --target "$(pid_of "$node.init")" --mount --net --pid --uts "$@"
}

booted() { running "$1" && [ -f "$STATE/pid/$1.booted" ]; }

# halt NODE: ends all that runs in it at once, with its mounts and its end of the cable.
halt() {
    local name=$1 process
    rm -f "$STATE/pid/$name".{booted,ready}
    if running "$name"; then
        if running "$name.init"; then kill -9 "$(pid_of "$name.init")" 2>/dev/null || true; else stop "$name"; fi
    fi
    for process in "$STATE/pid/$name" "$STATE/pid/$name".*; do
        for ((i = 0; i < 100; i++)); do
            running "${process##*/}" || break
            sleep 0.1
        done
    done
    rm -f "$STATE/pid/$name" "$STATE/pid/$name".*
}

# cgroups: the hierarchies of control groups.
cgroups() {
    if [ -f /sys/fs/cgroup/cgroup.controllers ]; then echo /sys/fs/cgroup; else printf '%s\n' /sys/fs/cgroup/*/; fi
}
# remove_cgroups GROUP: removes the group and the groups below it. Their processes have ended.
remove_cgroups() {
    local hierarchy
    for hierarchy in $(cgroups); do
        [ ! -d "$hierarchy$1" ] || find "$hierarchy$1" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
}

kubectl() { "$BIN/kubectl" --kubeconfig "$KUBECONFIG_FILE" "$@"; }
crane() { "$BIN/crane" "$@"; }
# With GOGC, as in build.sh, the compiler collects garbage less often.
ko() { GOGC=400 KO_CONFIG_PATH=$ROOT/hack/cluster KO_DEFAULTBASEIMAGE=$BASE_IMAGE KO_DEFAULTPLATFORMS=$PLATFORM "$BIN/ko" "$@"; }
