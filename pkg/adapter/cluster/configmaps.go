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

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
)

// The ConfigMaps of the system namespace that are read, beside trust bundles.
const (
	configLogging       = "config-logging"
	configObservability = "config-observability"
	configFeatures      = "config-features"
	// levelKey is our own level in config-logging.
	levelKey = "loglevel.adapter"
)

func isRead(cm *corev1.ConfigMap) bool {
	switch cm.Name {
	case configLogging, configObservability, configFeatures, ceilings.ConfigMapName:
		return true
	}
	return isBundle(cm)
}

// configs is what Knative's ConfigMaps say. One that was never there says what
// Knative's defaults are. One that cannot be understood, or that is deleted,
// changes nothing: to delete config-features must not let everybody in.
type configs struct {
	store cache.Store
	level *slog.LevelVar // may be nil
	usual slog.Level     // when config-logging names none
	log   *slog.Logger
	trust *trust

	flagsNow    atomic.Pointer[feature.Flags]
	ceilingsNow atomic.Pointer[ceilings.Config]

	mu      sync.Mutex
	started bool                         // from then on changes are taken
	seen    map[string]map[string]string // the data by ConfigMap, as taken last
	atStart Settings                     // of config-observability; not changed after the start
	there   map[string]bool              // the ConfigMap was there
	missing map[string]bool              // and is not now
	flagged func()                       // told of changed flags and ceilings, without the lock
}

func newConfigs(store cache.Store, level *slog.LevelVar, log *slog.Logger) *configs {
	c := &configs{store: store, level: level, log: log, trust: newTrust(log), flagged: func() {},
		seen: map[string]map[string]string{}, there: map[string]bool{}, missing: map[string]bool{}}
	if level != nil {
		c.usual = level.Level()
	}
	defaults, _ := feature.NewFlagsConfigFromMap(nil)
	c.flagsNow.Store(&defaults)
	shipped, _ := ceilings.Parse(nil)
	c.ceilingsNow.Store(shipped)
	usual := observability.DefaultConfig()
	c.atStart = Settings{Metrics: usual.Metrics, Tracing: usual.Tracing}
	return c
}

// start takes what there is; from then on refresh takes every change.
func (c *configs) start() {
	c.mu.Lock()
	c.started = true
	c.mu.Unlock()
	c.refresh()
}

// refresh takes what changed.
func (c *configs) refresh() {
	if c.take() {
		c.mu.Lock()
		flagged := c.flagged
		c.mu.Unlock()
		flagged()
	}
}

// take reads all ConfigMaps and says whether the flags or the ceilings changed.
func (c *configs) take() (changed bool) {
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
			data[cm.Name] = map[string]string{} // it is there, and says nothing
		}
	}
	c.trust.set(bundles)
	for name, apply := range map[string]func(map[string]string, bool){
		configLogging: c.logging, configObservability: c.observability,
		configFeatures:         func(d map[string]string, _ bool) { c.features(d); changed = true },
		ceilings.ConfigMapName: func(d map[string]string, _ bool) { changed = c.ceilings(d) || changed },
	} {
		now, there := data[name]
		before, again := c.seen[name]
		if c.there[name] && !there && !c.missing[name] {
			c.missing[name] = true
			c.log.Error("a ConfigMap is gone; what it said stays in force until it is back or the adapter starts anew", "configMap", name)
		}
		if there {
			c.there[name], c.missing[name] = true, false
		}
		if again && (c.missing[name] || maps.Equal(before, now)) {
			continue
		}
		c.seen[name] = now
		apply(now, again)
	}
	return changed
}

// logging sets the level.
func (c *configs) logging(data map[string]string, _ bool) {
	if c.level == nil {
		return
	}
	level, err := levelOf(data, c.usual)
	if err != nil {
		c.log.Error("the log level stays as it was: the ConfigMap cannot be understood", "configMap", configLogging, "error", err)
		return
	}
	if before := c.level.Level(); before != level {
		c.level.Set(level)
		c.log.Info("the log level changed", "from", before.String(), "to", level.String())
	}
}

// levelOf is the level of loglevel.adapter, else that of zap-logger-config,
// else the usual.
func levelOf(data map[string]string, usual slog.Level) (slog.Level, error) {
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
		return usual, nil
	}
	// Zap counts from debug, -1, in ones; what is above error is error here.
	return min(slog.Level(level)*4, slog.LevelError), nil
}

// observability is read once: what it says is built into the process by then.
func (c *configs) observability(data map[string]string, again bool) {
	if again {
		c.log.Warn("a ConfigMap changed; it takes effect at the next restart", "configMap", configObservability)
		return
	}
	cfg, err := observability.NewFromMap(data)
	if err != nil {
		c.log.Error("Knative's defaults are in force: the ConfigMap cannot be understood", "configMap", configObservability, "error", err)
		return
	}
	c.atStart.Metrics, c.atStart.Tracing, c.atStart.Profiling = cfg.Metrics, cfg.Tracing, cfg.Runtime.ProfilingEnabled()
}

func (c *configs) features(data map[string]string) {
	flags, err := feature.NewFlagsConfigFromMap(data)
	if err != nil {
		c.log.Error("the features stay as they were: the ConfigMap cannot be understood", "configMap", configFeatures, "error", err)
		return
	}
	c.flagsNow.Store(&flags)
}

// ceilings takes new ones. A ConfigMap that was there and is gone changes
// nothing: its deletion must not lift the ceilings.
func (c *configs) ceilings(data map[string]string) (changed bool) {
	config, err := ceilings.Parse(data)
	if err != nil {
		c.log.Error("the ceilings stay as they were: the ConfigMap cannot be understood", "configMap", ceilings.ConfigMapName, "error", err)
		return false
	}
	c.ceilingsNow.Store(config)
	return true
}

// flags are those in force; they are not changed.
func (c *configs) flags() feature.Flags { return *c.flagsNow.Load() }

// onFlags calls f after every change of the flags or the ceilings, instead of what was called
// before.
func (c *configs) onFlags(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flagged = f
}

// settings are those in force, after start.
func (c *configs) settings() Settings {
	s := c.atStart
	s.StrictTransport = c.flags().IsStrictTransportEncryption()
	return s
}
