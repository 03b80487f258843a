package main

import (
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// conditions describes the cluster. The version of Knative is an argument because
// a cluster built from source does not have it.
func (c *cluster) conditions(ctx context.Context, repo, knative string) (conditions, error) {
	found := conditions{Commit: "unknown"}
	if out, err := exec.CommandContext(ctx, "git", "-C", repo, "describe", "--always").Output(); err == nil {
		found.Commit = strings.TrimSpace(string(out))
	}
	var nodes struct {
		Items []struct {
			Status struct {
				Capacity map[string]string
				NodeInfo struct{ KernelVersion, ContainerRuntimeVersion, KubeletVersion string }
			}
		}
	}
	if err := c.get(ctx, "/api/v1/nodes", &nodes); err != nil {
		return found, err
	}
	for _, n := range nodes.Items {
		info := n.Status.NodeInfo
		found.Node = fmt.Sprintf("%d node(s) with %s cores and %s, Linux %s, %s", len(nodes.Items), n.Status.Capacity["cpu"], n.Status.Capacity["memory"],
			info.KernelVersion, strings.Replace(info.ContainerRuntimeVersion, "://", " ", 1))
		found.Versions = append(found.Versions, "Kubernetes "+info.KubeletVersion)
	}
	found.Versions = slices.Compact(found.Versions)
	var controller struct{ Metadata metadata }
	if err := c.get(ctx, "/apis/apps/v1/namespaces/knative-eventing/deployments/eventing-controller", &controller); err != nil {
		return found, err
	}
	found.Versions = append(found.Versions, "Knative "+cmp.Or(knative, controller.Metadata.Labels["app.kubernetes.io/version"]))
	return found, nil
}
