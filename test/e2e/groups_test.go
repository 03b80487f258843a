//go:build e2e && nodes

package e2e

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// Three adapters become six, which are two groups. The controller spreads new sources over both,
// members of either group answer for all sources, and the command line shows both. The pod that
// owns one group is lost: no call for the other group fails, and nothing is lost. It replaces the
// one adapter that the other tests use, so it is not parallel.
func TestGroups_OwnersPodLost(t *testing.T) {
	n := newNamespace(t, "groups")
	n.singleAgain()
	n.deploy("operator", 2, streamRules...)
	user := n.explainer()
	spec := toService("operator") + "delivery: {backoffDelay: PT0.5S, backoffPolicy: linear, backoffMax: PT5S}\n"
	old := n.source("old", spec)
	eventually(t, patience, "one adapter becomes three", n.replicate())
	growth := old.streamOf(1, "grow.")
	growth.flow(10)
	growth.underWay()
	growing := outage{from: time.Now()}
	eventually(t, patience, "three adapters become six", n.grow())
	growing.to = time.Now()
	growth.flow(10)
	growth.end()
	t.Logf("three adapters became six within %s; callers had no answer for %s, calls that were repeated: %v",
		growing.to.Sub(growing.from).Round(time.Second), growth.unanswered(growing), growth.repeated())

	byGroup := map[int]*source{old.group(): old}
	for i := 0; len(byGroup) < 2; i++ {
		if i == 20 {
			t.Fatal("all new sources are in one group")
		}
		s := n.source(fmt.Sprint("new", i), spec)
		byGroup[s.group()] = s
	}
	if old.group() != 0 || byGroup[1] == nil {
		t.Fatalf("the source from before is in group %d, and the others in %v", old.group(), byGroup)
	}
	steady, struck := byGroup[0], byGroup[1]
	var keys []string
	for _, pod := range n.podsOf(system, memberLabel) {
		for _, s := range byGroup {
			key := "through/" + s.name + "/" + pod.Name
			s.through(pod).put(key, `{}`)
			keys = append(keys, key)
		}
	}
	for _, key := range keys {
		n.awaitRuns(patience, key, 1)
	}

	lost := n.shardOwner(1)
	var own, other *corev1.Pod // members that stay
	for _, pod := range n.podsOf(system, memberLabel) {
		if pod.Name < adapter+"-3" {
			own = pod
		} else if pod.Name != lost.Name {
			other = pod
		}
	}
	streams := []*stream{struck.streamOf(2, "struck."), steady.through(own).streamOf(1, "own."), steady.through(other).streamOf(1, "other.")}
	for _, s := range streams {
		s.flow(20)
	}
	for _, s := range streams {
		s.underWay()
	}
	o := outage{from: time.Now()}
	n.deleteNow(lost)
	eventually(t, patience, "the pod is replaced", func() error { return n.replaced(lost) })
	o.to = time.Now()
	calm := o
	calm.calm = true
	for _, s := range streams {
		s.flow(20)
		s.end()
	}
	eventually(t, patience, "the command line shows two groups", func() error { return user.seesGroups(2) })
	streams[0].judge(o)
	streams[1].judge(calm)
	streams[2].judge(calm)
	growth.judge(growing)
}

// group is the group of adapters that has the source.
func (s *source) group() int {
	s.t.Helper()
	text := s.get().Status.Annotations[v1alpha1.GroupAnnotation]
	if text == "" {
		return 0
	}
	group, err := strconv.Atoi(text)
	if err != nil {
		s.t.Fatal(err)
	}
	return group
}

// through is the source as one adapter's callers see it.
func (s *source) through(pod *corev1.Pod) *source {
	at := *s
	at.address = fmt.Sprintf("http://%s:8080/%s/%s", pod.Status.PodIP, s.namespace.name, s.name)
	return &at
}
