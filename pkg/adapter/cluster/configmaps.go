package cluster

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"knative.dev/eventing/pkg/apis/feature"
	"knative.dev/pkg/logging"
	"knative.dev/pkg/observability"

	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/features"
)

// The ConfigMaps of the system namespace that are read, besides trust bundles.
const (
	configLogging       = "config-logging"
	configObservability = "config-observability"
	configFeatures      = "config-features"
	// levelKey is the key of the adapter's level in config-logging.
	levelKey = "loglevel.adapter"
)

func isRead(cm *corev1.ConfigMap) bool {
	switch cm.Name {
	case configLogging, configObservability, configFeatures, ceilings.ConfigMapName:
		return true
	}
	return isBundle(cm)
}

// configs are the settings in Knative's ConfigMaps. Before its ConfigMap exists,
// Knative's defaults are in force. A ConfigMap that cannot be read, or that is
// deleted, changes nothing: without config-features every caller would be admitted.
type configs struct {
	store        cache.Store
	level        *slog.LevelVar // may be nil
	defaultLevel slog.Level     // when config-logging names none
	log          *slog.Logger
	trust        *trust

	flagsNow    atomic.Pointer[feature.Flags]
	ceilingsNow atomic.Pointer[ceilings.Config]

	mu       sync.Mutex
	started  bool // before that no change is applied
	applied  map[string]*appliedConfig
	atStart  sources.Settings // not changed after the start
	onChange func()           // called after a change of flags or ceilings, without the lock
}

// appliedConfig is a ConfigMap as it was applied last.
type appliedConfig struct {
	data    map[string]string
	existed bool // the ConfigMap existed once
	deleted bool // and does not exist now
}

func newConfigs(store cache.Store, level *slog.LevelVar, log *slog.Logger) *configs {
	c := &configs{store: store, level: level, log: log, trust: newTrust(log), onChange: func() {}, applied: map[string]*appliedConfig{}}
	if level != nil {
		c.defaultLevel = level.Level()
	}
	flags, _ := feature.NewFlagsConfigFromMap(nil)
	c.flagsNow.Store(&flags)
	noCeilings, _ := ceilings.Parse(nil)
	c.ceilingsNow.Store(noCeilings)
	defaults := observability.DefaultConfig()
	c.atStart = sources.Settings{Metrics: defaults.Metrics, Tracing: defaults.Tracing}
	return c
}

// start applies the ConfigMaps that exist; from then on refresh applies every change.
func (c *configs) start() {
	c.mu.Lock()
	c.started = true
	c.mu.Unlock()
	c.refresh()
}

// refresh applies what changed.
func (c *configs) refresh() {
	if c.apply() {
		c.mu.Lock()
		onChange := c.onChange
		c.mu.Unlock()
		onChange()
	}
}

// apply reads all ConfigMaps and reports whether the flags or the ceilings changed.
func (c *configs) apply() (changed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.started {
		return false
	}
	data := map[string]map[string]string{}
	var bundles []*corev1.ConfigMap
	for _, o := range c.store.List() {
		cm, ok := o.(*corev1.ConfigMap)
		if !ok {
			continue
		}
		if isBundle(cm) {
			bundles = append(bundles, cm)
		}
		data[cm.Name] = cm.Data
		if cm.Data == nil {
			data[cm.Name] = map[string]string{} // it exists and is empty
		}
	}
	c.trust.set(bundles)
	for _, setting := range []struct {
		configMap string
		apply     func(data map[string]string, first bool) (changed bool)
	}{
		{configLogging, c.logging}, {configObservability, c.observability},
		{configFeatures, c.features}, {ceilings.ConfigMapName, c.ceilings},
	} {
		now, exists := data[setting.configMap]
		if first, ok := c.differs(setting.configMap, now, exists); ok {
			changed = setting.apply(now, first) || changed
		}
	}
	return changed
}

// differs reports whether the data of a ConfigMap must be applied, and whether it is
// the first time. It logs a ConfigMap that was deleted.
func (c *configs) differs(name string, data map[string]string, exists bool) (first, ok bool) {
	last := c.applied[name]
	if first = last == nil; first {
		last = new(appliedConfig)
		c.applied[name] = last
	}
	if last.existed && !exists && !last.deleted {
		c.log.Error("a ConfigMap was deleted; its settings stay in force until it is back or the adapter restarts", "configMap", name)
	}
	last.deleted = last.existed && !exists
	last.existed = last.existed || exists
	if !first && (last.deleted || maps.Equal(last.data, data)) {
		return false, false
	}
	last.data = data
	return first, true
}

// logging sets the level.
func (c *configs) logging(data map[string]string, _ bool) (changed bool) {
	if c.level == nil {
		return false
	}
	level, err := levelOf(data, c.defaultLevel)
	if err != nil {
		c.log.Error("the log level stays as it was: the ConfigMap cannot be understood", "configMap", configLogging, "error", err)
		return false
	}
	if before := c.level.Level(); before != level {
		c.level.Set(level)
		c.log.Info("the log level changed", "from", before.String(), "to", level.String())
	}
	return false
}

// levelOf returns the level of loglevel.adapter, else the level of
// zap-logger-config, else the default.
func levelOf(data map[string]string, defaultLevel slog.Level) (slog.Level, error) {
	const zapKey, ours = "zap-logger-config", "adapter"
	var zap struct {
		Level string `json:"level"`
	}
	if text := data[zapKey]; text != "" {
		if err := json.Unmarshal([]byte(text), &zap); err != nil {
			return 0, fmt.Errorf("%s: %w", zapKey, err)
		}
	}
	if data[levelKey] == "" {
		data = maps.Clone(data)
		if zap.Level == "" {
			delete(data, levelKey)
		} else {
			data[levelKey] = zap.Level
		}
	}
	cfg, err := logging.NewConfigFromMap(data)
	if err != nil {
		return 0, err
	}
	level, ok := cfg.LoggingLevel[ours]
	if !ok {
		return defaultLevel, nil
	}
	// Zap counts levels by one, from debug = -1; a level above error is error here.
	return min(slog.Level(level)*4, slog.LevelError), nil
}

// observability is applied once: exporters cannot be replaced while the process runs.
func (c *configs) observability(data map[string]string, first bool) (changed bool) {
	if !first {
		c.log.Warn("a ConfigMap changed; it takes effect at the next restart", "configMap", configObservability)
		return false
	}
	cfg, err := observability.NewFromMap(data)
	if err != nil {
		c.log.Error("Knative's defaults are in force: the ConfigMap cannot be understood", "configMap", configObservability, "error", err)
		return false
	}
	c.atStart.Metrics, c.atStart.Tracing, c.atStart.Profiling = cfg.Metrics, cfg.Tracing, cfg.Runtime.ProfilingEnabled()
	return false
}

// features applies the flags. A value that is none of Knative's changes nothing; at the start the strictest one is in
// its place.
func (c *configs) features(data map[string]string, first bool) (changed bool) {
	flags, err := features.Read(data)
	switch {
	case err != nil && !first:
		c.log.Error("the features stay as they were: the ConfigMap cannot be understood", "configMap", configFeatures, "error", err)
		return false
	case err != nil:
		c.log.Error("the strictest features are in force: the ConfigMap cannot be understood", "configMap", configFeatures, "error", err)
	}
	c.flagsNow.Store(&flags)
	return true
}

// ceilings applies the administrator's ceilings.
func (c *configs) ceilings(data map[string]string, _ bool) (changed bool) {
	config, err := ceilings.Parse(data)
	if err != nil {
		c.log.Error("the ceilings stay as they were: the ConfigMap cannot be understood", "configMap", ceilings.ConfigMapName, "error", err)
		return false
	}
	c.ceilingsNow.Store(config)
	return true
}

// flags returns the flags in force; they are not changed.
func (c *configs) flags() feature.Flags { return *c.flagsNow.Load() }

// setOnChange replaces the function that is called after every change of the flags or
// the ceilings.
func (c *configs) setOnChange(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onChange = f
}

// settings returns the settings as of the start.
func (c *configs) settings() sources.Settings { return c.atStart }
