package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access/guard"
	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/capacity"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/optional"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// informers hold what the adapter watches. None resyncs: their consumers retry a
// failure by themselves.
type informers struct {
	sources, policies, configs cache.SharedIndexInformer
	slim                       *slimSources
	policiesKind               *optional.Kind

	running sync.WaitGroup
}

func newInformers(c kube.Clients, bound *capacity.Sources, log *slog.Logger) (*informers, error) {
	byNamespace := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	in := &informers{
		slim:     &slimSources{capacity: bound},
		sources:  cache.NewSharedIndexInformer(c.Sources, &v1alpha1.RescheduleSource{}, 0, byNamespace),
		policies: cache.NewSharedIndexInformer(c.Policies, &unstructured.Unstructured{}, 0, byNamespace),
		configs:  cache.NewSharedIndexInformer(c.ConfigMaps, &corev1.ConfigMap{}, 0, byNamespace),
	}
	for informer, transform := range map[cache.SharedIndexInformer]cache.TransformFunc{
		in.sources: in.slim.slim, in.policies: guard.ReadPolicy, in.configs: slimConfigMap,
	} {
		if err := informer.SetTransform(transform); err != nil {
			return nil, fmt.Errorf("cluster: making an informer: %w", err)
		}
	}
	if _, err := in.sources.AddEventHandler(bound.Handler()); err != nil {
		return nil, fmt.Errorf("cluster: making an informer: %w", err)
	}
	var err error
	in.policiesKind, err = optional.Follow(in.policies, func() {
		log.Info("the cluster has no EventPolicy resource; the adapter looks for it again from time to time")
	})
	if err != nil {
		return nil, fmt.Errorf("cluster: making an informer: %w", err)
	}
	return in, nil
}

// start runs the informers until ctx ends; stopped waits for their end.
func (in *informers) start(ctx context.Context) {
	for _, informer := range []cache.SharedIndexInformer{in.sources, in.policies, in.configs} {
		in.running.Go(func() { informer.RunWithContext(ctx) })
	}
}

func (in *informers) stopped() { in.running.Wait() }

// listed waits for the first list of each informer.
func (in *informers) listed(ctx context.Context) error {
	if cache.WaitForCacheSync(ctx.Done(), in.sources.HasSynced, in.policiesKind.Known, in.configs.HasSynced) {
		return nil
	}
	var missing []string
	for name, synced := range map[string]cache.InformerSynced{
		"RescheduleSources": in.sources.HasSynced, "EventPolicies": in.policiesKind.Known, "ConfigMaps": in.configs.HasSynced,
	} {
		if !synced() {
			missing = append(missing, name)
		}
	}
	return fmt.Errorf("cluster: waiting for the first list of %s: %w", strings.Join(missing, ", "), context.Cause(ctx))
}
