#!/usr/bin/env bash
# Brings up Kubernetes and Knative on this machine, without a container engine and without
# images from elsewhere; what is up already is left alone. KNATIVE=no leaves Knative out. See
# README.md here.
# shellcheck source=hack/cluster/lib.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

if [ -n "${KUBECONFIG:-}" ] && [ "$KUBECONFIG" != "$KUBECONFIG_FILE" ]; then
    say "KUBECONFIG is set: that cluster is used, and none is brought up"
    exit 0
fi
here=$ROOT/hack/cluster
"$here/packages.sh"
alone
if [ -d "$STATE" ] && ! booted node; then
    say "removing what is left of a cluster that has ended, or was not finished"
    "$here/down.sh" --for-up
fi
# With less, the kubelet would end pods in the middle of the tests, and only events would say why.
taken=$(du -smc "$CACHE" "$STATE" 2>/dev/null | tail -n 1 | cut -f 1) || true
for directory in "$CACHE" "${STATE%/*}"; do
    free=$(df -m --output=avail "$directory" | tail -n 1)
    ((free + taken >= DISK_NEEDED)) ||
        fail "the disk of $directory has $free MB free and the cluster needs $((DISK_NEEDED - taken)) MB: remove files, for example with go clean -cache"
done
"$here/build.sh"
"$here/control.sh"
"$here/images.sh"
"$here/knative.sh"
cat >"$STATE/env" <<ENV
export KUBECONFIG=$KUBECONFIG_FILE
export KO_DOCKER_REPO=$REGISTRY/reschedule KO_DEFAULTBASEIMAGE=$BASE_IMAGE KO_DEFAULTPLATFORMS=$PLATFORM
export PATH=$BIN:\$PATH NO_PROXY=$NO_PROXY
ENV
say "up after $SECONDS s. For kubectl and ko: source $STATE/env"
