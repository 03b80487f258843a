// Package features reads Knative's flags, the ConfigMap config-features.
//
// It guarantees that the controller and the adapter take the same values. Knative takes a value
// that it does not know for off: a slip would admit every caller, and delete the identities of
// all sources.
//
// It leaves to others: watching the ConfigMap, and what a slip means for flags that are in force.
package features

import (
	"fmt"
	"slices"

	"knative.dev/eventing/pkg/apis/feature"
)

// read are the flags that are read here, with their values, the strictest one first.
var read = []struct {
	key    string
	values []feature.Flag
}{
	{feature.OIDCAuthentication, []feature.Flag{feature.Enabled, feature.Allowed, feature.Disabled}},
	{feature.TransportEncryption, []feature.Flag{feature.Strict, feature.Permissive, feature.Disabled}},
	{feature.AuthorizationDefaultMode, []feature.Flag{feature.AuthorizationDenyAll, feature.AuthorizationAllowSameNamespace, feature.AuthorizationAllowAll}},
}

// Read returns the flags of the data. Its error names the first value that is none of Knative's; the
// strictest one is in the place of each such value.
func Read(data map[string]string) (feature.Flags, error) {
	flags, err := feature.NewFlagsConfigFromMap(data)
	for _, f := range read {
		if slices.Contains(f.values, flags[f.key]) {
			continue
		}
		if err == nil {
			err = fmt.Errorf("%s: %q is none of %q", f.key, flags[f.key], f.values)
		}
		flags[f.key] = f.values[0]
	}
	return flags, err
}
