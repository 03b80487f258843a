package cluster

import (
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// A change of config-reschedule reaches every source at once; a bad one, and its
// deletion, change nothing.
func TestCeilings_FollowConfigReschedule(t *testing.T) {
	t.Parallel()
	much := func(o *v1alpha1.RescheduleSource) {
		o.Spec.Limits = &v1alpha1.RescheduleSourceLimits{MaxPending: new(int64(1) << 40)}
	}
	inCluster(t, func(r *env) {
		r.run()
		limits := func(what string, maxPending int64, namespace schedule.Ceilings) {
			t.Helper()
			expect(t, what+": maxPending of a", maxPending, r.registry.source("a-1").MaxPending)
			expect(t, what+": ceilings of b", namespace, r.registry.source("b-1").Ceilings)
		}
		shipped := schedule.Ceilings{MaxPending: ceilings.Shipped.MaxPending, MaxBytes: ceilings.Shipped.MaxBytes, MaxInFlight: int(ceilings.Shipped.MaxInFlight),
			MaxPerSecond: int(ceilings.Shipped.MaxPerSecond),
			MaxStarts:    int(ceilings.Shipped.MaxStarts), MaxStartsOfAll: int(ceilings.Shipped.MaxStartsOfAll)}
		limits("without a ConfigMap", ceilings.Shipped.MaxPending, shipped)

		own := shipped
		own.MaxPending, own.MinDelay = 50, time.Second
		r.put(configMap(ceilings.ConfigMapName, map[string]string{"max-pending": "70", "min-delay": "1s", "namespaces": "ops: {max-pending: 50}"}))
		limits("with one", 50, own)

		r.registry.newCalls()
		r.put(configMap(ceilings.ConfigMapName, map[string]string{"max-pendig": "70"}))
		limits("after a bad one", 50, own)
		expect(t, "lines that name the key", 1, r.log.count("max-pendig"))
		r.remove(configMap(ceilings.ConfigMapName, nil))
		limits("after its deletion", 50, own)
		expect(t, "calls", nil, r.registry.newCalls())

		r.put(configMap(ceilings.ConfigMapName, nil))
		limits("with an empty one", ceilings.Shipped.MaxPending, shipped)
	}, object("a", much), object("b"))
}
