// Package controller is the operator: what is done about a ConfigWatcher.
//
// It works in a process that always runs, and in a process that was started for one event.
// So everything that must last is in the status.
package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1 "github.com/reschedule-dev/reschedule/sdk/examples/config-watcher/api/v1"
)

// ConfigWatcherReconciler restarts the pods that a ConfigWatcher selects when
// its ConfigMap has changed, after its rolloutDelay.
type ConfigWatcherReconciler struct {
	client.Client
	Recorder events.EventRecorder
}

// SetupWithManager runs the reconciler for each ConfigWatcher that changes, and for the
// ConfigWatchers of a ConfigMap that changes.
func (r *ConfigWatcherReconciler) SetupWithManager(mgr ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(mgr).
		For(&v1.ConfigWatcher{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(r.watchersOf)).
		Complete(r)
}

// watchersOf are the ConfigWatchers of a ConfigMap.
func (r *ConfigWatcherReconciler) watchersOf(ctx context.Context, configMap client.Object) []reconcile.Request {
	var watchers v1.ConfigWatcherList
	if err := r.List(ctx, &watchers, client.InNamespace(configMap.GetNamespace())); err != nil {
		log.FromContext(ctx).Error(err, "Listing ConfigWatchers", "configMap", client.ObjectKeyFromObject(configMap))
		return nil
	}
	var requests []reconcile.Request
	for _, w := range watchers.Items {
		if w.Spec.ConfigMap == configMap.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&w)})
		}
	}
	return requests
}

// Reconcile notes a change of the ConfigMap in the status, and restarts the pods
// when its time has come. The status is written before pods are deleted: a run
// that ends in between is taken up by the next one, which leaves alone the pods
// that were made anew.
func (r *ConfigWatcherReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	watcher := &v1.ConfigWatcher{}
	if err := r.Get(ctx, req.NamespacedName, watcher); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !watcher.DeletionTimestamp.IsZero() {
		return ctrl.Result{}, nil
	}
	found := ""
	configMap := &corev1.ConfigMap{}
	switch err := r.Get(ctx, types.NamespacedName{Namespace: req.Namespace, Name: watcher.Spec.ConfigMap}, configMap); {
	case err == nil:
		found = hash(configMap)
	case !apierrors.IsNotFound(err):
		return ctrl.Result{}, fmt.Errorf("reading ConfigMap %s: %w", watcher.Spec.ConfigMap, err)
	}

	before := watcher.Status.DeepCopy()
	observe(watcher, found, time.Now())
	if err := r.update(ctx, watcher, before); err != nil {
		return ctrl.Result{}, err
	}
	pending := watcher.Status.Pending
	if found == "" || pending == nil {
		return ctrl.Result{}, nil
	}
	if left := time.Until(pending.RestartAt.Time); left > 0 {
		return ctrl.Result{RequeueAfter: left}, nil
	}

	pods, err := r.restart(ctx, watcher)
	if err != nil {
		r.Recorder.Eventf(watcher, configMap, corev1.EventTypeWarning, "RestartFailed", "Restart", "%v", err)
		return ctrl.Result{}, err
	}
	if pods > 0 {
		r.Recorder.Eventf(watcher, configMap, corev1.EventTypeNormal, "RestartedPods", "Restart",
			"ConfigMap %s has changed; pods restarted: %d", watcher.Spec.ConfigMap, pods)
	}
	before = watcher.Status.DeepCopy()
	restarted(watcher, pods, time.Now())
	return ctrl.Result{}, r.update(ctx, watcher, before)
}

// update writes the status if it has changed. A run that read an old object gets a
// conflict, and is tried again.
func (r *ConfigWatcherReconciler) update(ctx context.Context, watcher *v1.ConfigWatcher, before *v1.ConfigWatcherStatus) error {
	if equality.Semantic.DeepEqual(before, &watcher.Status) {
		return nil
	}
	if err := r.Status().Update(ctx, watcher); err != nil {
		return fmt.Errorf("writing the status: %w", err)
	}
	return nil
}

// restart deletes the pods that are older than the change, so that their
// controllers make new ones, and returns how many there were.
func (r *ConfigWatcherReconciler) restart(ctx context.Context, watcher *v1.ConfigWatcher) (int, error) {
	if len(watcher.Spec.PodSelector) == 0 { // which the API server refuses
		return 0, reconcile.TerminalError(errors.New("an empty podSelector would select every pod"))
	}
	var pods corev1.PodList
	if err := r.List(ctx, &pods, client.InNamespace(watcher.Namespace), client.MatchingLabels(watcher.Spec.PodSelector)); err != nil {
		return 0, fmt.Errorf("listing the pods: %w", err)
	}
	deleted := 0
	var errs []error
	for _, pod := range pods.Items {
		if !stale(&pod, watcher.Status.Pending.ChangedAt.Time) {
			continue
		}
		err := r.Delete(ctx, &pod, client.Preconditions{UID: &pod.UID})
		switch {
		case err == nil:
			deleted++
		case !apierrors.IsNotFound(err) && !apierrors.IsConflict(err): // else it went by itself
			errs = append(errs, fmt.Errorf("deleting pod %s: %w", pod.Name, err))
		}
	}
	return deleted, errors.Join(errs...)
}

// stale reports whether a pod has what was there before the change, and will be
// made anew. The API server tells times of creation in whole seconds: one of
// the same second counts as older.
func stale(pod *corev1.Pod, changedAt time.Time) bool {
	return pod.CreationTimestamp.Time.Before(changedAt) &&
		pod.DeletionTimestamp.IsZero() &&
		pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed &&
		metav1.GetControllerOf(pod) != nil
}

// observe writes into the status what is so now: found is the hash of the
// ConfigMap, "" if there is none.
//
// A change that is taken back is a change like any other, as there may be pods
// that were started in between.
func observe(watcher *v1.ConfigWatcher, found string, now time.Time) {
	status := &watcher.Status
	switch {
	case found == "":
	case status.ConfigHash == "": // seen for the first time
		status.ConfigHash = found
	case status.Pending == nil && found != status.ConfigHash:
		status.Pending = &v1.PendingRestart{
			ConfigHash: found,
			ChangedAt:  metav1.NewMicroTime(now),
			RestartAt:  metav1.NewMicroTime(now.Add(watcher.Spec.RolloutDelay.Duration)),
		}
	case status.Pending != nil && found != status.Pending.ConfigHash:
		status.Pending.ConfigHash = found
		status.Pending.ChangedAt = metav1.NewMicroTime(now)
	}

	ready := metav1.Condition{Type: v1.Ready, ObservedGeneration: watcher.Generation}
	switch {
	case found == "":
		ready.Status, ready.Reason = metav1.ConditionFalse, v1.ConfigMapNotFound
		ready.Message = "There is no ConfigMap " + watcher.Spec.ConfigMap
	case status.Pending != nil:
		ready.Status, ready.Reason = metav1.ConditionFalse, v1.RestartPending
		ready.Message = "ConfigMap " + watcher.Spec.ConfigMap + " has changed; its pods will be restarted"
	default:
		ready.Status, ready.Reason = metav1.ConditionTrue, v1.UpToDate
		ready.Message = "The pods have ConfigMap " + watcher.Spec.ConfigMap + " as it is"
	}
	meta.SetStatusCondition(&status.Conditions, ready)
	status.ObservedGeneration = watcher.Generation
}

// restarted writes into the status that the pending change has reached the pods.
func restarted(watcher *v1.ConfigWatcher, pods int, now time.Time) {
	status := &watcher.Status
	found := status.Pending.ConfigHash
	status.ConfigHash, status.Pending = found, nil
	if pods > 0 {
		status.Restarts++
		status.LastRestart = &metav1.Time{Time: now}
	}
	observe(watcher, found, now)
}

// hash is short, and another one for another content.
func hash(configMap *corev1.ConfigMap) string {
	content, _ := json.Marshal([]any{configMap.Data, configMap.BinaryData}) // strings and bytes only
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:8])
}
