package kube

import "strings"

// RefusedAsImmutable reports whether the API server, or kubectl, refused the change of a StatefulSet in the words that
// docs/upgrade.md quotes: the present words, or the words before Kubernetes 1.37.
func RefusedAsImmutable(err error) bool {
	return err != nil && (strings.Contains(err.Error(), "field is immutable") ||
		strings.Contains(err.Error(), "updates to statefulset spec for fields other than"))
}
