// Package knative is the cluster as the adapter sees it.
package knative
