# shellcheck shell=bash
# The cluster to work in: the cluster of KUBECONFIG, or else of make cluster-up. Sourced.
if [ -z "${KUBECONFIG:-}" ]; then
    if [ ! -f /var/lib/reschedule-cluster/env ]; then
        echo "no cluster: run make cluster-up, or set KUBECONFIG, and KO_DOCKER_REPO to a registry that it pulls from" >&2
        exit 1
    fi
    source /var/lib/reschedule-cluster/env
fi
