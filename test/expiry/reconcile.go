package main

import (
	"context"
	"fmt"
	"log"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// label is on every object that expires, and says after how long.
const label = "expires-after"

// expiry deletes objects of a kind that are old enough. Its get reads live, or from a cache.
type expiry struct{ kind }

// Reconcile handles one object, NAMESPACE/NAME. After an error it runs again after a
// back-off. With a duration above zero it is done for now, and runs again after it.
func (e expiry) Reconcile(ctx context.Context, key string) (again time.Duration, err error) {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	if err != nil {
		return 0, err
	}
	object, err := e.get(ctx, namespace, name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading %s: %w", key, err)
	}
	text, expires := object.GetLabels()[label]
	if !expires {
		return 0, nil
	}
	after, err := time.ParseDuration(text)
	if err != nil { // another try would fail too; a change of the label wakes us
		log.Printf("%s: label %s: %v", key, label, err)
		return 0, nil
	}
	if left := time.Until(object.GetCreationTimestamp().Add(after)); left > 0 {
		return left, nil
	}
	// Only this version: the label may have changed since, or the object may be another one.
	uid, version := object.GetUID(), object.GetResourceVersion()
	err = e.remove(ctx, namespace, name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &version}})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("deleting %s: %w", key, err)
	}
	return 0, nil
}
