#!/usr/bin/env bash
# Starts what is not running of: the node's namespaces, the registry beside them, and in
# them etcd, the control plane, containerd, the kubelet and kube-proxy.
# shellcheck source=hack/cluster/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

mkdir -p "$STATE"/{pid,log,pki,kubeconfig,etcd,cni,containerd,kubelet,var-log,volumes} "$CACHE/registry"

# --- namespaces and the cable

# The kubelet sets some of the host's, for all of its namespaces. down.sh sets them back.
[ -f "$STATE/sysctl" ] || sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops >"$STATE/sysctl"

if ! running node; then
    # Mounts of the node are its own, but shared with its pods, as the kubelet wants it.
    # What would be left behind elsewhere on the machine is covered: sockets and names of
    # network namespaces in /run, logs of pods, addresses of pods.
    mkdir -p /var/lib/cni
    # shellcheck disable=SC2016 # expanded by the shell in there
    start node unshare --mount --pid --net --uts --fork --kill-child=SIGKILL --mount-proc bash -c '
        mount --make-rshared /
        mount -t tmpfs tmpfs /run
        mount -t tmpfs tmpfs /var/lib/cni
        mount --bind "$1/var-log" /var/log
        hostname node
        touch "$1/pid/node.ready"
        # The first process is the parent of all that lose theirs: bash reaps them.
        while true; do sleep 1h & wait; done' node "$STATE"
    await 10 node "the node's namespaces" test -f "$STATE/pid/node.ready"
    rm "$STATE/pid/node.ready"
    init=$(pgrep -P "$(pid_of node)")
    echo "$init $(birth "$init")" >"$STATE/pid/node.init"

    ip link add "$CABLE" type veth peer name eth0 netns "$init"
    ip address add "$HOST_IP/30" dev "$CABLE"
    ip link set "$CABLE" up
    in_node ip link set lo up
    in_node ip address add "$NODE_IP/30" dev eth0
    in_node ip link set eth0 up
    # The address of a service is replaced by a pod's after its route was looked up.
    in_node ip route add "$SERVICE_CIDR" via "$HOST_IP"
    in_node sysctl -qw net.ipv4.ip_forward=1
    ip route add "$SERVICE_CIDR" via "$NODE_IP"
    ip route add "$POD_CIDR" via "$NODE_IP"
    touch "$STATE/network" # else up.sh was interrupted, and begins anew
fi
# start_in NAME COMMAND...: in the node.
start_in() {
    local name=$1
    shift
    start "$name" nsenter --target "$(pid_of node.init)" --mount --net --pid --uts "$@"
}

# --- the registry, on the host's end of the cable, where nobody else reaches it

cat >"$STATE/registry.yaml" <<YAML
version: 0.1
log: {level: warn}
storage:
  filesystem: {rootdirectory: $CACHE/registry}
  delete: {enabled: true}
http: {addr: "$REGISTRY"}
YAML
start registry env OTEL_TRACES_EXPORTER=none "$BIN/registry" serve "$STATE/registry.yaml"
await 10 registry "the registry" curl -fsS "http://$REGISTRY/v2/"

# --- keys

sign() { # NAME SUBJECT EXTENSIONS
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout "$1.key" -out "$1.csr" -subj "$2" 2>/dev/null
    openssl x509 -req -in "$1.csr" -CA ca.crt -CAkey ca.key -CAcreateserial -days 365 -out "$1.crt" -extfile <(echo "$3") 2>/dev/null
}
kubeconfig() { # NAME TOKEN
    cat >"$STATE/kubeconfig/$1" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: reschedule, cluster: {server: "https://$NODE_IP:6443", certificate-authority: $STATE/pki/ca.crt}}]
users: [{name: "$1", user: {token: "$2"}}]
contexts: [{name: reschedule, context: {cluster: reschedule, user: "$1"}}]
current-context: reschedule
YAML
}
if [ ! -f "$STATE/pki/complete" ]; then
    (
        umask 077
        cd "$STATE/pki" || exit
        openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -keyout ca.key -out ca.crt -subj /CN=reschedule-cluster -days 365 2>/dev/null
        sign apiserver /CN=kube-apiserver "subjectAltName=DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,IP:$KUBERNETES_IP,IP:$NODE_IP"
        sign kubelet-client /O=system:masters/CN=kube-apiserver "extendedKeyUsage=clientAuth"
        openssl genrsa -out accounts.key 2048 2>/dev/null
        : >tokens.csv
        while read -r name user group; do
            token=$(openssl rand -hex 16)
            echo "$token,$user,$name,\"$group\"" >>tokens.csv
            kubeconfig "$name" "$token"
        done <<'USERS'
admin admin system:masters
controller-manager system:kube-controller-manager
scheduler system:kube-scheduler
kubelet system:node:node system:nodes
proxy system:kube-proxy
USERS
        touch complete
    )
fi

# --- the control plane

# A cluster that ends with its machine: etcd need not wait for the disk.
start_in etcd "$BIN/etcd" --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level warn
pki=$STATE/pki
start_in kube-apiserver "$BIN/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --advertise-address "$NODE_IP" \
    --service-cluster-ip-range "$SERVICE_CIDR" --allow-privileged --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" --client-ca-file "$pki/ca.crt" --token-auth-file "$pki/tokens.csv" \
    --kubelet-client-certificate "$pki/kubelet-client.crt" --kubelet-client-key "$pki/kubelet-client.key" --kubelet-preferred-address-types InternalIP \
    --service-account-issuer https://kubernetes.default.svc --service-account-signing-key-file "$pki/accounts.key" --service-account-key-file "$pki/accounts.key"
await 120 kube-apiserver "the API server" kubectl get --raw /readyz
config=$STATE/kubeconfig/controller-manager
start_in kube-controller-manager "$BIN/kube-controller-manager" --kubeconfig "$config" --authentication-kubeconfig "$config" --authorization-kubeconfig "$config" \
    --root-ca-file "$pki/ca.crt" --service-account-private-key-file "$pki/accounts.key" --use-service-account-credentials --leader-elect=false --bind-address 127.0.0.1
config=$STATE/kubeconfig/scheduler
start_in kube-scheduler "$BIN/kube-scheduler" --kubeconfig "$config" --authentication-kubeconfig "$config" --authorization-kubeconfig "$config" --leader-elect=false --bind-address 127.0.0.1

# --- the node

plugins=/usr/lib/cni
[ -x $plugins/ptp ] || plugins=/opt/cni/bin
mkdir -p "$STATE/cni/net.d"
# Each pod has a cable of its own, and the node routes between them.
cat >"$STATE/cni/net.d/10-pods.conflist" <<JSON
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{
  "type": "ptp",
  "ipam": {"type": "host-local", "dataDir": "$STATE/cni/addresses", "ranges": [[{"subnet": "$POD_CIDR"}]], "routes": [{"dst": "0.0.0.0/0"}]}
}]}
JSON
# The others are those of images which Knative's suites and our examples name; images.sh makes
# some in their place.
for host in "$REGISTRY" registry.access.redhat.com docker.io; do
    mkdir -p "$STATE/containerd/certs.d/$host"
    printf 'server = "http://%s"\n[host."http://%s"]\n  capabilities = ["pull", "resolve"]\n' "$REGISTRY" "$REGISTRY" \
        >"$STATE/containerd/certs.d/$host/hosts.toml"
done
# restrict_oom_score_adj: without CAP_SYS_RESOURCE runc cannot lower the score, and no pod starts.
cat >"$STATE/containerd/config.toml" <<TOML
version = 2
root = "$STATE/containerd/root"
state = "/run/containerd"
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "$STATE/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "$REGISTRY/pause:latest"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$plugins"
    conf_dir = "$STATE/cni/net.d"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$STATE/containerd/certs.d"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
TOML
: >"$STATE/resolv.conf"
cat >"$STATE/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, x509: {clientCAFile: $pki/ca.crt}, webhook: {enabled: true}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
failSwapOn: false
containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
clusterDomain: cluster.local
clusterDNS: [$DNS_IP]
resolvConf: $STATE/resolv.conf
volumePluginDir: $STATE/kubelet/plugins
serializeImagePulls: false
# The disk is the machine's, with whatever else is on it.
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 100Mi, nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
YAML
start_in containerd containerd --config "$STATE/containerd/config.toml"
await 30 containerd "containerd" in_node test -S /run/containerd/containerd.sock
start_in kubelet "$BIN/kubelet" --config "$STATE/kubelet.yaml" --kubeconfig "$STATE/kubeconfig/kubelet" --root-dir "$STATE/kubelet" --cert-dir "$STATE/kubelet/pki" \
    --hostname-override node --node-ip "$NODE_IP"
start_in kube-proxy "$BIN/kube-proxy" --kubeconfig "$STATE/kubeconfig/proxy" --proxy-mode nftables --cluster-cidr "$POD_CIDR" --hostname-override node --bind-address "$NODE_IP" \
    --conntrack-max-per-core 0 --conntrack-tcp-timeout-established 0s --conntrack-tcp-timeout-close-wait 0s
await 60 kubelet "the node" kubectl wait --for=condition=Ready node/node --timeout=1s
