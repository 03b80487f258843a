# shellcheck shell=bash
# How a node is made: its namespaces, its cable to the host, and containerd, the kubelet and
# kube-proxy in it. Sourced, not run. Node 0 has the control plane; worker.sh makes others.
# Each function takes the node's number, and leaves alone what is there already.
# shellcheck source=hack/cluster/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

# boot makes the namespaces and the cable. The disk is a directory, which outlives both.
boot() {
    local number=$1 name init cable
    name=$(node_name "$number")
    cable=$CABLE$number
    mkdir -p "$STATE"/{pid,log} "$STATE/nodes/$name"/{cni,containerd,kubelet,var-log,volumes}
    if booted "$name"; then return; fi
    halt "$name"
    # Mounts of the node are its own, but shared with its pods, as the kubelet wants it.
    # What would be left behind elsewhere on the machine is covered: sockets and names of
    # network namespaces in /run, logs of pods, addresses of pods.
    mkdir -p /var/lib/cni
    # shellcheck disable=SC2016 # expanded by the shell in there
    start "$name" unshare --mount --pid --net --uts --fork --kill-child=SIGKILL --mount-proc bash -c '
        mount --make-rshared /
        mount -t tmpfs tmpfs /run
        mount -t tmpfs tmpfs /var/lib/cni
        mount --bind "$2/nodes/$1/var-log" /var/log
        hostname "$1"
        touch "$2/pid/$1.ready"
        # The first process is the parent of all that lose theirs: bash reaps them.
        while true; do sleep 1h & wait; done' node "$name" "$STATE"
    await 10 "$name" "the namespaces of $name" test -f "$STATE/pid/$name.ready"
    init=$(pgrep -P "$(pid_of "$name")")
    echo "$init $(birth "$init")" >"$STATE/pid/$name.init"

    ip link add "$cable" type veth peer name eth0 netns "$init"
    ip address add "$(host_ip "$number")/30" dev "$cable"
    ip link set "$cable" up
    in_node "$name" ip link set lo up
    in_node "$name" ip address add "$(node_ip "$number")/30" dev eth0
    in_node "$name" ip link set eth0 up
    # The address of a service is replaced by a pod's after its route was looked up. The
    # node's own pods have a route each; the others are behind the host.
    for to in "$SERVICE_CIDR" "$NODE_CIDR" "$POD_CIDR"; do
        in_node "$name" ip route add "$to" via "$(host_ip "$number")"
    done
    in_node "$name" ip route add unreachable "$(pod_cidr "$number")"
    in_node "$name" sysctl -qw net.ipv4.ip_forward=1
    ip route add "$(pod_cidr "$number")" via "$(node_ip "$number")"
    touch "$STATE/pid/$name.booted" # else boot was interrupted, and begins anew
}

# sign FILE SUBJECT EXTENSIONS: FILE.key and FILE.crt.
sign() {
    local pki=$STATE/pki
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 365 -out "$1.crt" -extfile <(echo "$3") 2>/dev/null
}

# kubeconfig FILE NAME CREDENTIALS
kubeconfig() {
    cat >"$1" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: reschedule, cluster: {server: "https://$NODE_IP:6443", certificate-authority: $STATE/pki/ca.crt}}]
users: [{name: "$2", user: {$3}}]
contexts: [{name: reschedule, context: {cluster: reschedule, user: "$2"}}]
current-context: reschedule
YAML
}

# join starts what makes the node one of the cluster's, and waits for it.
join() {
    local number=$1 name dir ip plugins cgroup=/ host hierarchy
    name=$(node_name "$number")
    dir=$STATE/nodes/$name
    ip=$(node_ip "$number")
    plugins=/usr/lib/cni
    [ -x $plugins/ptp ] || plugins=/opt/cni/bin
    mkdir -p "$dir/cni/net.d"
    # Each pod has a cable of its own, and the node routes between them.
    cat >"$dir/cni/net.d/10-pods.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{
  "type": "ptp",
  "ipam": {"type": "host-local", "dataDir": "$dir/cni/addresses", "ranges": [[{"subnet": "$(pod_cidr "$number")"}]], "routes": [{"dst": "0.0.0.0/0"}]}
}]}
JSON
    # The others have images that Knative's suites and our examples name; images.sh makes
    # some in their place.
    for host in "$REGISTRY" registry.access.redhat.com docker.io; do
        mkdir -p "$dir/containerd/certs.d/$host"
        printf 'server = "http://%s"\n[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' "$REGISTRY" "$REGISTRY" \
            >"$dir/containerd/certs.d/$host/hosts.toml"
    done
    # restrict_oom_score_adj: without CAP_SYS_RESOURCE runc cannot lower the score, and no pod starts.
    cat >"$dir/containerd/config.toml" <<TOML
version = 2
root = "$dir/containerd/root"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$dir/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$REGISTRY/pause:latest"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$plugins"
    conf_dir = "$dir/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$dir/containerd/certs.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
TOML
    # A kubelet ends control groups of pods that it does not know: the first node's have
    # the root, each other node has a group of its own.
    if ((number)); then
        cgroup=/$name
        for hierarchy in $(cgroups); do mkdir -p "$hierarchy$cgroup"; done
    fi
    : >"$dir/resolv.conf"
    cat >"$dir/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: $STATE/pki/ca.crt}, webhook: {enabled: true}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: $cgroup
failSwapOn: false
failCgroupV1: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDomain: cluster.local
clusterDNS: [$DNS_IP]
resolvConf: $dir/resolv.conf
volumePluginDir: $dir/kubelet/plugins
serializeImagePulls: false
# By default 110. make density has 60 operators more than the cluster itself; a node has addresses for 254.
maxPods: 220
# The disk is the machine's, with all that is on it beside the cluster. A percentage of a large
# disk would end pods that have enough.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: $DISK_LOW, imagefs.available: $DISK_LOW, nodefs.inodesFree: "1%"}
YAML
    if [ ! -f "$dir/kubeconfig" ]; then
        (
            umask 077
            sign "$dir/kubelet-client" "/O=system:nodes/CN=system:node:$name" extendedKeyUsage=clientAuth
            kubeconfig "$dir/kubeconfig" "system:node:$name" "client-certificate: $dir/kubelet-client.crt, client-key: $dir/kubelet-client.key"
        )
    fi
    start_in "$name" containerd containerd --config "$dir/containerd/config.toml"
    await 30 "$name.containerd" "containerd of $name" in_node "$name" test -S /run/containerd/containerd.sock
    start_in "$name" kubelet "$BIN/kubelet" --config "$dir/kubelet.yaml" --kubeconfig "$dir/kubeconfig" --root-dir "$dir/kubelet" --cert-dir "$dir/kubelet/pki" \
        --hostname-override "$name" --node-ip "$ip"
    start_in "$name" kube-proxy "$BIN/kube-proxy" --kubeconfig "$STATE/kubeconfig/proxy" --proxy-mode nftables --cluster-cidr "$POD_CIDR" --hostname-override "$name" --bind-address "$ip" \
        --conntrack-max-per-core 0 --conntrack-tcp-timeout-established 0s --conntrack-tcp-timeout-close-wait 0s
    await 60 "$name.kubelet" "node $name" kubectl wait --for=condition=Ready "node/$name" --timeout=1s
}

# volumes NUMBER MANY: of the default StorageClass, on the node's disk. Local volumes can be given to
# the group of a pod, other volumes of the host cannot. Volumes whose claim is gone are made anew.
volumes() {
    local name i volume
    name=$(node_name "$1")
    for volume in $(kubectl get persistentvolumes -l "node=$name" -o jsonpath='{range .items[?(@.status.phase=="Released")]}{.metadata.name} {end}'); do
        kubectl delete persistentvolume "$volume" >/dev/null
        rm -rf "$STATE/nodes/$name/volumes/${volume##*-}"
    done
    for ((i = 1; i <= $2; i++)); do
        mkdir -p "$STATE/nodes/$name/volumes/$i"
        sed "s|NODE|$name|g; s|NUMBER|$i|; s|DIRECTORY|$STATE/nodes/$name/volumes/$i|" "$ROOT/hack/cluster/manifests/volume.yaml"
    done >"$STATE/nodes/$name/volumes.yaml"
    quietly "kubectl apply" kubectl apply --server-side --force-conflicts -f "$STATE/nodes/$name/volumes.yaml"
}
