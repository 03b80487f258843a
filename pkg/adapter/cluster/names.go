package cluster

import (
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// newNames returns a work queue in which the namespaces take turns: a tenant who changes
// thousands of sources makes a neighbour wait for one of them.
func newNames() workqueue.TypedDelayingInterface[cache.ObjectName] {
	queue := workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[cache.ObjectName]{Queue: &inTurn{names: map[string][]cache.ObjectName{}}})
	return workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[cache.ObjectName]{Queue: queue})
}

// inTurn implements [workqueue.Queue].
type inTurn struct {
	namespaces []string                      // that have names, in turn
	names      map[string][]cache.ObjectName // in the order of their coming
	n          int
}

// Touch implements [workqueue.Queue].
func (q *inTurn) Touch(cache.ObjectName) {}

// Len implements [workqueue.Queue].
func (q *inTurn) Len() int { return q.n }

// Push implements [workqueue.Queue].
func (q *inTurn) Push(name cache.ObjectName) {
	q.n++
	if len(q.names[name.Namespace]) == 0 {
		q.namespaces = append(q.namespaces, name.Namespace)
	}
	q.names[name.Namespace] = append(q.names[name.Namespace], name)
}

// Pop implements [workqueue.Queue].
func (q *inTurn) Pop() cache.ObjectName {
	q.n--
	namespace := q.namespaces[0]
	q.namespaces = q.namespaces[1:]
	names := q.names[namespace]
	if len(names) == 1 {
		delete(q.names, namespace)
	} else {
		q.names[namespace] = names[1:]
		q.namespaces = append(q.namespaces, namespace)
	}
	return names[0]
}
