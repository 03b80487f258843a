package ceilings

import (
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// ConfigMapName is the ConfigMap in the system namespace.
const ConfigMapName = "config-reschedule"

// Ceilings are what one namespace may have, all its sources together; 0 = no
// ceiling.
type Ceilings struct {
	MaxPending   int64
	MaxBytes     int64 // stored, before compression
	MaxInFlight  int32
	MaxPerSecond int32
	MaxTimeout   time.Duration
	// MinDelay raises every shorter wait that is not a retry.
	MinDelay time.Duration
	// MaxStarts bounds the workloads of spec.scale that start at a time. MaxStartsOfAll
	// bounds them in all namespaces together.
	MaxStarts, MaxStartsOfAll int32
	// Default are the limits of a source that names none.
	Default Limits
}

// Limits are the limits of one source.
type Limits struct {
	MaxPending   int64
	MaxBytes     int64 // 0 = none of its own
	MaxInFlight  int32
	MaxPerSecond int32 // 0 = none
	Timeout      time.Duration
}

// Shipped are the values of keys that are absent. They fit the adapter as
// config installs it, with a volume of 10 GiB and memory of 1 GiB: a namespace
// may take a fifth of the volume and of the ten million keys that it holds, half
// of the deliveries, and about a sixth of the deliveries a second that two
// processors make: a sink that answers Reschedule-After: 0s would take all of them.
var Shipped = Ceilings{
	MaxPending:   2_000_000,
	MaxBytes:     2 << 30,
	MaxInFlight:  2048,
	MaxPerSecond: 2000,
	MaxTimeout:   time.Hour,
	// A node starts some ten pods at a time.
	MaxStarts:      10,
	MaxStartsOfAll: 30,
	Default:        none.Default,
}

// none has no ceilings: the limits that a source names are its own.
var none = Ceilings{Default: Limits{MaxPending: 1_000_000, MaxInFlight: 100, Timeout: 10 * time.Minute}}

// Config is what a ConfigMap says. A nil Config has no ceilings.
type Config struct {
	all        Ceilings
	namespaces map[string]Ceilings
}

// For are the ceilings of a namespace.
func (c *Config) For(namespace string) Ceilings {
	if c == nil {
		return none
	}
	if own, named := c.namespaces[namespace]; named {
		return own
	}
	return c.all
}

// Cut is a field of a spec that asks for more than the ceiling allows, or for a
// shorter wait.
type Cut struct {
	Field, Wanted string
	Key, Ceiling  string // of config-reschedule
}

// String says it in words.
func (c Cut) String() string {
	verb := "cut"
	if c.Key == keyMinDelay {
		verb = "raised"
	}
	return fmt.Sprintf("%s: %s is %s to %s (%s)", c.Field, c.Wanted, verb, c.Ceiling, c.Key)
}

// Limits returns the limits in force for a source with that spec, and what was cut of
// the fields that it names. A field that is not valid counts as not named.
func (c Ceilings) Limits(spec *v1alpha1.RescheduleSourceSpec) (Limits, []Cut) {
	limits, cuts := c.Default, []Cut(nil)
	cut := func(field, wanted, key, ceiling string) {
		cuts = append(cuts, Cut{Field: field, Wanted: wanted, Key: key, Ceiling: ceiling})
	}
	named := spec.Limits
	if named == nil {
		named = &v1alpha1.RescheduleSourceLimits{}
	}
	if lower(&limits.MaxPending, named.MaxPending, c.MaxPending) {
		cut("limits.maxPending", number(*named.MaxPending), keyMaxPending, number(c.MaxPending))
	}
	var bytes *int64
	if named.MaxBytes != nil {
		n := named.MaxBytes.Value()
		bytes = &n
	}
	if lower(&limits.MaxBytes, bytes, c.MaxBytes) {
		cut("limits.maxBytes", named.MaxBytes.String(), keyMaxBytes, resource.NewQuantity(c.MaxBytes, resource.BinarySI).String())
	}
	if lower(&limits.MaxInFlight, named.MaxInFlight, c.MaxInFlight) {
		cut("limits.maxInFlight", number(*named.MaxInFlight), keyMaxInFlight, number(c.MaxInFlight))
	}
	// A source without a rate of its own gets none from the ceiling: that holds for the
	// sum of the namespace, and nothing is cut that the source asks for.
	if named.MaxPerSecond != nil {
		limits.MaxPerSecond = *named.MaxPerSecond
	}
	if limits.MaxPerSecond > 0 && lower(&limits.MaxPerSecond, named.MaxPerSecond, c.MaxPerSecond) {
		cut("limits.maxPerSecond", number(*named.MaxPerSecond), keyMaxPerSecond, number(c.MaxPerSecond))
	}
	var timeout *time.Duration
	if spec.Delivery != nil {
		timeout = duration(spec.Delivery.Timeout)
	}
	if lower(&limits.Timeout, timeout, c.MaxTimeout) {
		cut("delivery.timeout", *spec.Delivery.Timeout, keyMaxTimeout, c.MaxTimeout.String())
	}
	if d := duration(spec.Delay); d != nil && *d > 0 && *d < c.MinDelay {
		cut("delay", *spec.Delay, keyMinDelay, c.MinDelay.String())
	}
	if d := duration(spec.MaxInterval); d != nil && *d > 0 && *d < c.MinDelay {
		cut("maxInterval", *spec.MaxInterval, keyMinDelay, c.MinDelay.String())
	}
	return limits, cuts
}

// lower sets the limit to the named value, bounded by the ceiling, and says
// whether the ceiling lowered it. A value of 0 stands for no limit.
func lower[T int32 | int64 | time.Duration](limit, named *T, ceiling T) bool {
	if named != nil {
		*limit = *named
	}
	if ceiling == 0 || *limit != 0 && *limit <= ceiling {
		return false
	}
	*limit = ceiling
	return named != nil
}

func number[T int32 | int64](n T) string { return strconv.FormatInt(int64(n), 10) }

// duration reads what the API server has let in.
func duration(s *string) *time.Duration {
	if s == nil {
		return nil
	}
	d, err := v1alpha1.ParseDuration(*s)
	if err != nil {
		return nil
	}
	return &d
}
