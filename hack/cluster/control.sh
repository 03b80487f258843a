#!/usr/bin/env bash
# Starts what is not running of: the first node, the registry beside it, and in the node
# etcd and the control plane.
# shellcheck source=hack/cluster/node.sh
source "$(dirname "${BASH_SOURCE[0]}")/node.sh"

mkdir -p "$STATE"/{pki,kubeconfig,etcd} "$CACHE/registry"

# A kubelet and worker.sh set some of the host's, for all of its namespaces. down.sh sets them back.
[ -f "$STATE/sysctl" ] || sysctl vm.overcommit_memory kernel.panic kernel.panic_on_oops net.ipv4.ip_forward >"$STATE/sysctl"
boot 0
ip route replace "$SERVICE_CIDR" via "$NODE_IP"
# What no node answers for ends here: a node that has lost its power is silent, and nothing leaves
# the machine.
for range in "$NODE_CIDR" "$POD_CIDR"; do ip route replace blackhole "$range"; done

# --- the registry, on the host's end of the first cable, where only nodes reach it

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
            kubeconfig "$STATE/kubeconfig/$name" "$name" "token: $token"
        done <<'USERS'
admin admin system:masters
controller-manager system:kube-controller-manager
scheduler system:kube-scheduler
proxy system:kube-proxy
USERS
        touch complete
    )
fi

# --- the control plane

# A cluster that ends with its machine: etcd need not wait for the disk.
start_in node etcd "$BIN/etcd" --data-dir "$STATE/etcd" --unsafe-no-fsync --log-level warn
pki=$STATE/pki
start_in node kube-apiserver "$BIN/kube-apiserver" --etcd-servers http://127.0.0.1:2379 --advertise-address "$NODE_IP" \
    --service-cluster-ip-range "$SERVICE_CIDR" --allow-privileged --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --tls-cert-file "$pki/apiserver.crt" --tls-private-key-file "$pki/apiserver.key" --client-ca-file "$pki/ca.crt" --token-auth-file "$pki/tokens.csv" \
    --kubelet-client-certificate "$pki/kubelet-client.crt" --kubelet-client-key "$pki/kubelet-client.key" --kubelet-preferred-address-types InternalIP \
    --service-account-issuer https://kubernetes.default.svc --service-account-signing-key-file "$pki/accounts.key" --service-account-key-file "$pki/accounts.key"
await 120 node.kube-apiserver "the API server" kubectl get --raw /readyz
config=$STATE/kubeconfig/controller-manager
# A namespace that goes takes hundreds of calls, for each kind that there is, and the tests have some fifty
# namespaces. At the usual 20 calls a second one takes minutes, while pods and endpoints of others wait.
start_in node kube-controller-manager "$BIN/kube-controller-manager" --kubeconfig "$config" --authentication-kubeconfig "$config" --authorization-kubeconfig "$config" \
    --kube-api-qps 200 --kube-api-burst 400 \
    --root-ca-file "$pki/ca.crt" --service-account-private-key-file "$pki/accounts.key" --use-service-account-credentials --leader-elect=false --bind-address 127.0.0.1
config=$STATE/kubeconfig/scheduler
start_in node kube-scheduler "$BIN/kube-scheduler" --kubeconfig "$config" --authentication-kubeconfig "$config" --authorization-kubeconfig "$config" --leader-elect=false --bind-address 127.0.0.1

# --- the node

join 0
