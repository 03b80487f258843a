#!/usr/bin/env bash
# Applies what runs as pods: DNS, Knative Eventing and Serving, the ingress, and volumes;
# and waits until all of it is there. KNATIVE=no: DNS and volumes.
# shellcheck source=hack/cluster/node.sh
source "$(dirname "${BASH_SOURCE[0]}")/node.sh"

# On the server's side: others write Knative's aggregated roles as well.
apply() { quietly "kubectl apply" kubectl apply --server-side --force-conflicts "$@"; }

apply -f "$ROOT/hack/cluster/manifests/storage.yaml" -f "$MANIFESTS/coredns.yaml"
volumes 0 20
deployed() { # NAMESPACES...: waits for their deployments
    local namespace deployment
    for namespace; do
        for deployment in $(kubectl -n "$namespace" get deployments -o name); do
            await 240 - "${deployment#*/} in $namespace" kubectl -n "$namespace" rollout status "$deployment" --timeout=1s
        done
    done
}
if [ "$KNATIVE" = no ]; then
    deployed kube-system
    exit
fi

say "applying Knative"
for what in eventing serving; do
    # Knative reserves three quarters of two processors. Pods of the tests would wait for others to end.
    awk '/^ *(requests|limits):/ {of = $1} of == "requests:" && /^ *cpu:/ {sub(/cpu: .*/, "cpu: 1m")} 1' "$MANIFESTS/$what.yaml" >"$STATE/$what.yaml"
    # Objects of kinds that these define come after them.
    awk -v RS='---\n' -v ORS='---\n' '/\nkind: Namespace\n/' "$STATE/$what.yaml" >"$STATE/$what-namespaces.yaml"
    awk -v RS='---\n' -v ORS='---\n' '/\nkind: CustomResourceDefinition\n/' "$STATE/$what.yaml" >"$STATE/$what-kinds.yaml"
    apply -f "$STATE/$what-namespaces.yaml" -f "$STATE/$what-kinds.yaml"
done
# For these alone: a definition that a test removes meanwhile would fail a wait for all.
kubectl wait --for=condition=Established -f "$STATE/eventing-kinds.yaml" -f "$STATE/serving-kinds.yaml" --timeout=60s >/dev/null
apply -f "$STATE/eventing.yaml" -f "$STATE/serving.yaml" -f "$MANIFESTS/traefik.yaml"
kubectl -n knative-serving patch configmap config-network --type merge -p '{"data":{"ingress-class":"traefik.ingress.networking.knative.dev"}}' >/dev/null

# The node finds images of Docker Hub in the registry (node.sh); Serving would ask Docker Hub. The
# proxy of each pod reserves nothing either.
kubectl -n knative-serving patch configmap config-deployment --type merge -p '{"data":{"queue-sidecar-cpu-request":"1m","registries-skipping-tag-resolving":"kind.local,ko.local,dev.local,index.docker.io"}}' >/dev/null

deployed kube-system knative-serving knative-eventing
