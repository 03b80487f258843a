package ceilings

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// The keys of the ConfigMap.
const (
	keyMaxPending   = "max-pending"
	keyMaxBytes     = "max-bytes"
	keyMaxInFlight  = "max-in-flight"
	keyMaxPerSecond = "max-per-second"
	keyMaxTimeout   = "max-timeout"
	keyMinDelay     = "min-delay"
	keyMaxStarts    = "max-starts"
	// keyMaxStartsOfAll is not a key of one namespace.
	keyMaxStartsOfAll = "max-starts-of-all"

	keyDefaultMaxPending   = "default-max-pending"
	keyDefaultMaxBytes     = "default-max-bytes"
	keyDefaultMaxInFlight  = "default-max-in-flight"
	keyDefaultMaxPerSecond = "default-max-per-second"
	keyDefaultTimeout      = "default-timeout"

	keyNamespaces = "namespaces"
	// keyExample documents the keys, as in all of Knative's ConfigMaps.
	keyExample = "_example"
)

// maxPending is what JSON carries exactly everywhere, as in the CRD.
const maxPending = 1<<53 - 1

// fields read the values of the keys.
var fields = map[string]func(c *Ceilings, value string) error{
	keyMaxPending:   func(c *Ceilings, v string) error { return integer(&c.MaxPending, v, 0, maxPending) },
	keyMaxBytes:     func(c *Ceilings, v string) error { return quantity(&c.MaxBytes, v) },
	keyMaxInFlight:  func(c *Ceilings, v string) error { return integer(&c.MaxInFlight, v, 0, math.MaxInt32) },
	keyMaxPerSecond: func(c *Ceilings, v string) error { return integer(&c.MaxPerSecond, v, 0, math.MaxInt32) },
	keyMaxTimeout:   func(c *Ceilings, v string) error { return span(&c.MaxTimeout, v) },
	keyMinDelay:     func(c *Ceilings, v string) error { return span(&c.MinDelay, v) },
	keyMaxStarts:    func(c *Ceilings, v string) error { return integer(&c.MaxStarts, v, 0, math.MaxInt32) },

	keyMaxStartsOfAll: func(c *Ceilings, v string) error { return integer(&c.MaxStartsOfAll, v, 0, math.MaxInt32) },

	keyDefaultMaxPending:   func(c *Ceilings, v string) error { return integer(&c.Default.MaxPending, v, 1, maxPending) },
	keyDefaultMaxBytes:     func(c *Ceilings, v string) error { return quantity(&c.Default.MaxBytes, v) },
	keyDefaultMaxInFlight:  func(c *Ceilings, v string) error { return integer(&c.Default.MaxInFlight, v, 1, math.MaxInt32) },
	keyDefaultMaxPerSecond: func(c *Ceilings, v string) error { return integer(&c.Default.MaxPerSecond, v, 0, math.MaxInt32) },
	keyDefaultTimeout: func(c *Ceilings, v string) error {
		err := span(&c.Default.Timeout, v)
		if err == nil && c.Default.Timeout == 0 {
			err = errors.New("must be more than 0")
		}
		return err
	},
}

// Keys are all keys, sorted.
func Keys() []string {
	return append(slices.Sorted(maps.Keys(fields)), keyNamespaces)
}

// Parse reads the data of a ConfigMap. Its error names every key at fault.
func Parse(data map[string]string) (*Config, error) {
	c := &Config{all: Shipped, namespaces: map[string]Ceilings{}}
	errs := set(&c.all, "", data, keyNamespaces, keyExample)
	if text, named := data[keyNamespaces]; named {
		errs = append(errs, c.override(text)...)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("%s: %w", ConfigMapName, err)
	}
	return c, nil
}

// set reads the values of the keys; where stands before a key in errors.
func set(c *Ceilings, where string, data map[string]string, others ...string) (errs []error) {
	for _, key := range slices.Sorted(maps.Keys(data)) {
		read, known := fields[key]
		if !known {
			if !slices.Contains(others, key) {
				errs = append(errs, fmt.Errorf("%s%.64s: is not a key; the keys are %s", where, key, strings.Join(Keys(), ", ")))
			}
			continue
		}
		if err := read(c, strings.TrimSpace(data[key])); err != nil {
			errs = append(errs, fmt.Errorf("%s%s: %.64q %w", where, key, data[key], err))
		}
	}
	return errs
}

// override reads the ceilings of named namespaces.
func (c *Config) override(text string) (errs []error) {
	var named map[string]map[string]scalar
	if err := yaml.UnmarshalStrict([]byte(text), &named); err != nil {
		return []error{fmt.Errorf("%s: is not a map of namespaces to keys and values: %w", keyNamespaces, err)}
	}
	for _, namespace := range slices.Sorted(maps.Keys(named)) {
		where := keyNamespaces + "." + namespace
		if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
			errs = append(errs, fmt.Errorf("%.128s: is not the name of a namespace: %s", where, problems[0]))
			continue
		}
		if _, set := named[namespace][keyMaxStartsOfAll]; set {
			errs = append(errs, fmt.Errorf("%s.%s: applies to all namespaces together: set it outside %s", where, keyMaxStartsOfAll, keyNamespaces))
			continue
		}
		own := c.all
		errs = append(errs, set(&own, where+".", plain(named[namespace]))...)
		c.namespaces[namespace] = own
	}
	return errs
}

// scalar is a string, or the text of what else stands in its place.
type scalar string

// UnmarshalYAML implements yaml.Unmarshaler.
func (s *scalar) UnmarshalYAML(unmarshal func(any) error) error {
	if unmarshal((*string)(s)) == nil { // numbers too, as they are written
		return nil
	}
	var other any
	if err := unmarshal(&other); err != nil {
		return err
	}
	text, err := yaml.Marshal(other)
	*s = scalar(text)
	return err
}

// errNoKey is the error of a file that was emptied or cut, maybe.
var errNoKey = errors.New("it holds no key; for the shipped values of all of them write the manifest of a ConfigMap with data: {}")

// ParseFile reads a file with a manifest of the ConfigMap, or with its data alone.
// A file without any key is refused, unless it is a manifest with that kind.
func ParseFile(text []byte) (*Config, error) {
	var head struct {
		Kind string `yaml:"kind"`
	}
	if err := yaml.Unmarshal(text, &head); err != nil || head.Kind == "" {
		return parseData(text) // its error names the fault
	}
	var manifest struct {
		APIVersion string            `yaml:"apiVersion"`
		Kind       string            `yaml:"kind"`
		Metadata   any               `yaml:"metadata"`
		Data       map[string]scalar `yaml:"data"`
	}
	if err := yaml.UnmarshalStrict(text, &manifest); err != nil {
		return nil, fmt.Errorf("the manifest of a ConfigMap: %w", err)
	}
	if manifest.APIVersion != "v1" || manifest.Kind != "ConfigMap" {
		return nil, fmt.Errorf("kind: is %s %s, not v1 ConfigMap", manifest.APIVersion, manifest.Kind)
	}
	if manifest.Data == nil {
		return nil, errNoKey
	}
	return Parse(plain(manifest.Data))
}

// parseData reads the data of a ConfigMap as YAML. The namespaces may be a map
// in place of a text with a map.
func parseData(text []byte) (*Config, error) {
	var values map[string]scalar
	if err := yaml.UnmarshalStrict(text, &values); err != nil {
		return nil, fmt.Errorf("it is not YAML of keys and values: %w", err)
	}
	if len(values) == 0 {
		return nil, errNoKey
	}
	return Parse(plain(values))
}

func plain(values map[string]scalar) map[string]string {
	data := make(map[string]string, len(values))
	for key, value := range values {
		data[key] = string(value)
	}
	return data
}

func integer[T int32 | int64](to *T, value string, least, most int64) error {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < least || n > most {
		return fmt.Errorf("is not a whole number from %d to %d", least, most)
	}
	*to = T(n)
	return nil
}

func quantity(to *int64, value string) error {
	q, err := resource.ParseQuantity(value)
	if err != nil || q.Sign() < 0 {
		return errors.New("is not a quantity of bytes such as 2Gi, from 0")
	}
	*to = q.Value()
	return nil
}

func span(to *time.Duration, value string) error {
	d, err := v1alpha1.ParseDuration(value)
	if err != nil {
		return errors.New("is not a duration such as 1h or PT1H, from 0 to 100 years")
	}
	*to = d
	return nil
}
