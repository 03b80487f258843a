package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strconv"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/busy"
	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

const (
	// maxPodList bounds the answer with the pods of a workload.
	maxPodList = 8 << 20
	// podLists are made at a time, podListsOfOne of them for one namespace.
	podLists, podListsOfOne = 8, 2
	// metricsOf pods are read.
	metricsOf = 10
	// metricReads are made at a time, metricReadsOfOne of them for one namespace.
	metricReads, metricReadsOfOne = 16, 4
)

// podsResource is the resource of pods.
var podsResource = objects.Resource{Version: "v1", Kind: "Pod", Plural: "pods", Namespaced: true}

// podList is what is read of a list of pods.
type podList struct {
	Items []pod `json:"items"`
}

type pod struct {
	Metadata struct {
		Name     string     `json:"name"`
		UID      string     `json:"uid"`
		Deletion *time.Time `json:"deletionTimestamp"`
	} `json:"metadata"`
	Status struct {
		IP         string `json:"podIP"`
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"conditions"`
		Containers []container `json:"containerStatuses"`
		Init       []container `json:"initContainerStatuses"`
	} `json:"status"`
}

type container struct {
	Name     string `json:"name"`
	Restarts int    `json:"restartCount"`
	State    struct {
		Waiting    *reason `json:"waiting"`
		Terminated *reason `json:"terminated"`
	} `json:"state"`
}

type reason struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// Examine implements [scale.API].
func (c *Objects) Examine(ctx context.Context, a objects.Account, w schedule.Workload, at schedule.Busy) (h scale.Health, err error) {
	s, err := c.scale(ctx, a, w, nil)
	if err != nil {
		return h, err
	}
	h.Replicas = s.Spec.Replicas
	if s.Status.Selector == "" {
		return h, fmt.Errorf("%w: the scale of %s %s/%s has no selector of its pods", scale.ErrNoTarget, w.Kind, a.Namespace, w.Name)
	}
	list, err := c.pods(ctx, a, s.Status.Selector)
	if err != nil {
		return h, err
	}
	var ready []pod
	for _, p := range list.Items {
		if p.Metadata.Deletion != nil {
			continue
		}
		seen := p.health()
		h.Pods = append(h.Pods, seen)
		if seen.Ready {
			ready = append(ready, p)
		}
	}
	if at.Port != 0 && len(ready) > 0 {
		h.Work = c.work(ctx, a, ready[:min(len(ready), metricsOf)], at)
		h.Work.Waits = h.Work.Waits && len(ready) <= metricsOf // else the leader may be another one
	}
	return h, nil
}

// pods lists the pods that a selector matches.
func (c *Objects) pods(ctx context.Context, a objects.Account, selector string) (list podList, err error) {
	ctx, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	turn, err := c.podLists.Take(ctx, a.Namespace, "")
	if err != nil {
		return list, fmt.Errorf("kube: waiting for a call: %w", err)
	}
	defer turn.Release()
	q := objects.Query{Resource: podsResource, Namespace: a.Namespace}
	// Pods that have ended stay for long, also evicted ones.
	params := url.Values{"labelSelector": {selector}, "fieldSelector": {"status.phase!=Failed,status.phase!=Succeeded"}, "limit": {strconv.Itoa(scale.MaxPods)}}
	answer, err := c.call(ctx, caller{a, nil}, &request{path: pathOf(q), params: params, accept: asJSON}, forbidden(a, "list", q))
	if err != nil {
		return list, err
	}
	defer answer.Body.Close()
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxPodList)).Decode(&list); err != nil {
		return list, fmt.Errorf("kube: reading the pods of %s: %w", a.Namespace, err)
	}
	return list, nil
}

// health is what matters of a pod.
func (p *pod) health() scale.Pod {
	seen := scale.Pod{UID: p.Metadata.UID}
	for _, condition := range p.Status.Conditions {
		switch condition.Type {
		case "Ready":
			seen.Ready = condition.Status == "True"
		case "PodScheduled":
			if condition.Status == "False" {
				seen.Problem = "It has no node: " + shortened(condition.Message)
			}
		}
	}
	for _, list := range [][]container{p.Status.Init, p.Status.Containers} {
		for _, c := range list {
			seen.Restarts += c.Restarts
			for _, why := range []*reason{c.State.Terminated, c.State.Waiting} {
				if why != nil && why.Reason != "" && why.Reason != "Completed" && why.Reason != "ContainerCreating" && why.Reason != "PodInitializing" {
					seen.Problem = fmt.Sprintf("Container %s of pod %s: %s %s", c.Name, p.Metadata.Name, why.Reason, shortened(why.Message))
				}
			}
		}
	}
	return seen
}

// work reads the metrics of pods.
func (c *Objects) work(ctx context.Context, a objects.Account, pods []pod, at schedule.Busy) (sum scale.Work) {
	turn, err := c.metrics.Take(ctx, a.Namespace, "")
	if err != nil {
		sum.Failed = fmt.Errorf("kube: waiting for a read: %w", err)
		return sum
	}
	defer turn.Release()
	ctx, cancel := context.WithTimeout(ctx, 2*busy.Timeout)
	defer cancel()
	token := func() (string, error) { return c.token(ctx, caller{a, nil}) }
	leaders, waiting := 0, 0
	sum.Fresh = true
	for _, p := range pods {
		w, err := c.busy.Read(ctx, net.JoinHostPort(p.Status.IP, strconv.Itoa(int(at.Port))), at.Path, token)
		if err != nil {
			sum.Failed = errors.New(shortened(err.Error()))
			return sum
		}
		sum.Known = sum.Known || w.Known
		sum.Busy = sum.Busy || w.Busy
		sum.Fresh = sum.Fresh && w.Fresh
		sum.Reconciles += w.Reconciles
		sum.Requeues += w.Requeues
		sum.Errors += w.Errors
		if w.Waits {
			waiting++
		} else {
			leaders++
		}
	}
	sum.Waits = waiting > 0 && leaders == 0
	return sum
}
