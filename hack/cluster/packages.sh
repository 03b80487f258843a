#!/usr/bin/env bash
# Finds out whether this machine can be a node, and installs Debian's packages that it lacks.
# shellcheck source=hack/cluster/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

[ "$(uname -s)" = Linux ] || fail "a node needs Linux. Point KUBECONFIG at a cluster of yours (kind, minikube) instead"
[ "$(id -u)" = 0 ] || fail "a node needs root. Run make cluster-up as root, or point KUBECONFIG at a cluster of yours"

declare -A package_of=(
    [containerd]=containerd [runc]=runc [nft]=nftables [conntrack]=conntrack [ip]=iproute2 [openssl]=openssl
    [nsenter]=util-linux [sysctl]=procps [gcc]=gcc [mount]=mount [curl]=curl
)
missing=()
for command in "${!package_of[@]}"; do
    PATH=$PATH:/usr/sbin:/sbin command -v "$command" >/dev/null || missing+=("${package_of[$command]}")
done
# Not any on the PATH: an image is made of it.
/usr/bin/python3 -c 'import http.server, ssl' 2>/dev/null || missing+=(python3)
[ -x /usr/lib/cni/ptp ] || [ -x /opt/cni/bin/ptp ] || missing+=(containernetworking-plugins)

if ((${#missing[@]})); then
    command -v apt-get >/dev/null || fail "install ${missing[*]} (the names are Debian's)"
    say "installing ${missing[*]}"
    quietly "apt-get update" apt-get update
    DEBIAN_FRONTEND=noninteractive quietly "apt-get install" apt-get install -y --no-install-recommends "${missing[@]}"
fi

# Whatever is not there now stops a pod much later and with fewer words.
[ -d /sys/fs/cgroup ] || fail "/sys/fs/cgroup is not mounted: the kernel has no control groups"
unshare --mount --pid --net --uts --fork true || fail "namespaces cannot be made here: in a container, it has to be privileged"
