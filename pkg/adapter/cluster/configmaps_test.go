package cluster

import (
	"log/slog"
	"testing"

	"knative.dev/pkg/observability"

	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
)

// The log level comes from config-logging.
func TestLogging_LevelOfTheConfigMap(t *testing.T) {
	t.Parallel()
	zap := func(level string) string { return `{"level": "` + level + `", "encoding": "json"}` }
	for name, c := range map[string]struct {
		data map[string]string
		want slog.Level
		bad  bool
	}{
		"nothing":                    {want: slog.LevelWarn},
		"an example only":            {data: map[string]string{"_example": "loglevel.adapter: debug"}, want: slog.LevelWarn},
		"of all":                     {data: map[string]string{"zap-logger-config": zap("error")}, want: slog.LevelError},
		"of all, without a level":    {data: map[string]string{"zap-logger-config": "{}"}, want: slog.LevelWarn},
		"our own":                    {data: map[string]string{"zap-logger-config": zap("error"), "loglevel.adapter": "debug"}, want: slog.LevelDebug},
		"our own, empty":             {data: map[string]string{"zap-logger-config": zap("info"), "loglevel.adapter": ""}, want: slog.LevelInfo},
		"of another":                 {data: map[string]string{"loglevel.controller": "debug"}, want: slog.LevelWarn},
		"warn":                       {data: map[string]string{"loglevel.adapter": "warn"}, want: slog.LevelWarn},
		"above error":                {data: map[string]string{"loglevel.adapter": "fatal"}, want: slog.LevelError},
		"a level that there is not":  {data: map[string]string{"loglevel.adapter": "loud"}, bad: true},
		"a bad level of all":         {data: map[string]string{"zap-logger-config": zap("loud")}, bad: true},
		"a config that is no config": {data: map[string]string{"zap-logger-config": "level: debug"}, bad: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := levelOf(c.data, slog.LevelWarn)
			if (err != nil) != c.bad || err == nil && got != c.want {
				t.Errorf("level is %v, %v; want %v", got, err, c.want)
			}
		})
	}
}

// The flags follow config-features.
func TestFeatures_FollowTheConfigMap(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		c := r.connect()
		oidc := func() bool { return c.configs.flags().IsOIDCAuthentication() }
		if c.configs.flags().IsStrictTransportEncryption() || oidc() || !c.configs.flags().IsAuthorizationDefaultModeSameNamespace() {
			t.Error("without config-features its defaults are not in force")
		}
		r.put(configMap(configFeatures, map[string]string{"transport-encryption": "strict", "authentication-oidc": "enabled"}))
		if !c.configs.flags().IsStrictTransportEncryption() || !oidc() {
			t.Error("the features do not follow")
		}
		r.put(configMap(configFeatures, map[string]string{"transport-encryption": "permissive"}))
		if c.configs.flags().IsStrictTransportEncryption() || oidc() {
			t.Error("the features do not follow back")
		}
		r.put(configMap(configFeatures, nil))
		expect(t, "mode", true, c.configs.flags().IsAuthorizationDefaultModeSameNamespace())
	})
}

// config-observability is read at the start, and a later change is logged.
func TestObservability_IsReadAtTheStart(t *testing.T) {
	t.Parallel()
	inCluster(t, func(r *env) {
		c := r.connect()
		at := c.configs.settings()
		if at.Metrics.Protocol != "http/protobuf" || at.Metrics.Endpoint != "http://otel:4318" || at.Tracing.Protocol != "stdout" || !at.Profiling {
			t.Errorf("settings are %+v", at)
		}
		expect(t, "lines", 0, r.log.count("next restart"))
		changed := configMap(configObservability, map[string]string{"metrics-protocol": "prometheus"})
		r.put(changed)
		changed.Labels = map[string]string{"a": "b"}
		r.put(changed)
		r.remove(changed)
		expect(t, "lines", 1, r.log.count("next restart"))
		expect(t, "settings", at, c.configs.settings())
	}, configMap(configObservability, map[string]string{
		"metrics-protocol": "http/protobuf", "metrics-endpoint": "http://otel:4318", "tracing-protocol": "stdout", "runtime-profiling": "enabled",
	}))
}

// Without a usable config-observability Knative's defaults are in force.
func TestObservability_HasKnativesDefaults(t *testing.T) {
	t.Parallel()
	usual := observability.DefaultConfig()
	want := sources.Settings{Metrics: usual.Metrics, Tracing: usual.Tracing}
	inCluster(t, func(r *env) {
		expect(t, "settings", want, r.connect().configs.settings())
	})
	inCluster(t, func(r *env) {
		expect(t, "settings", want, r.connect().configs.settings())
		expect(t, "lines", 1, r.log.count("Knative's defaults are in force"))
	}, configMap(configObservability, map[string]string{"metrics-protocol": "smoke", "runtime-profiling": "enabled"}))
}
