package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
)

// A ConfigMap has a value that cannot be understood, or is removed, for a minute. Its settings stay in force, and its
// next ones are followed, without a restart. Settings of config-observability are read at the start.
func TestHeals_ConfigMapsBrokenForAMinute(t *testing.T) {
	t.Parallel()
	type data = map[string]string
	for name, row := range map[string]struct {
		broken      data
		first, next data
		now         func(*env, *Cluster) any
		was, is     any
	}{
		ceilings.ConfigMapName: {
			data{"max-pending": "many"}, data{"max-pending": "50"}, data{"max-pending": "60"},
			func(r *env, _ *Cluster) any { return r.registry.source("a-1").Ceilings.MaxPending }, int64(50), int64(60),
		},
		configFeatures: {
			data{"authentication-oidc": "perhaps"}, data{"authentication-oidc": "enabled"}, data{"authentication-oidc": "disabled"},
			func(_ *env, c *Cluster) any { return c.configs.flags().IsOIDCAuthentication() }, true, false,
		},
		configLogging: {
			data{levelKey: "loud"}, data{levelKey: "error"}, data{levelKey: "debug"},
			func(r *env, _ *Cluster) any { return r.level.Level().String() }, "ERROR", "DEBUG",
		},
		configObservability: {
			data{"metrics-protocol": "smoke"}, data{"runtime-profiling": "enabled"}, data{"runtime-profiling": "disabled"},
			func(_ *env, c *Cluster) any { return c.configs.settings().Profiling }, true, true,
		},
	} {
		for how, breaks := range map[string]func(*env){
			"broken":             func(r *env) { r.put(configMap(name, row.broken)) },
			"removed":            func(r *env) { r.remove(configMap(name, nil)) },
			"broken and removed": func(r *env) { r.put(configMap(name, row.broken)); r.remove(configMap(name, nil)) },
		} {
			t.Run(name+" "+how, func(t *testing.T) {
				t.Parallel()
				inCluster(t, func(r *env) {
					c := r.run()
					expect(t, "at the start", row.was, row.now(r, c))
					breaks(r)
					take(time.Minute)
					expect(t, "while it is "+how, row.was, row.now(r, c))
					if strings.HasSuffix(how, "removed") && name != configObservability {
						expect(t, "lines of a removal", 1, r.log.count("a ConfigMap was deleted"))
					}
					r.put(configMap(name, row.first))
					expect(t, "as it was", row.was, row.now(r, c))
					r.put(configMap(name, row.next))
					expect(t, "changed", row.is, row.now(r, c))
					breaks(r)
					take(time.Minute)
					expect(t, "again while it is "+how, row.is, row.now(r, c))
					r.put(configMap(name, row.first))
					expect(t, "as at the start", row.was, row.now(r, c))
				}, configMap(name, row.first), object("a"))
			})
		}
	}
}

// A value of config-features that is none of Knative's is the strictest at the start, until it is right: as off, which it
// is to Knative, it would admit every caller.
func TestHeals_FeaturesBrokenAtTheStart(t *testing.T) {
	t.Parallel()
	broken := map[string]string{"authentication-oidc": "enable", "transport-encryption": "on", "default-authorization-mode": "deny"}
	inCluster(t, func(r *env) {
		flags := r.run().configs.flags
		if f := flags(); !f.IsOIDCAuthentication() || !f.IsStrictTransportEncryption() || !f.IsAuthorizationDefaultModeDenyAll() {
			t.Errorf("at the start: %v", f)
		}
		r.put(configMap(configFeatures, map[string]string{"default-authorization-mode": "allow-all"}))
		if f := flags(); f.IsOIDCAuthentication() || f.IsStrictTransportEncryption() || !f.IsAuthorizationDefaultModeAllowAll() {
			t.Errorf("once it is right: %v", f)
		}
	}, configMap(configFeatures, broken))
}
