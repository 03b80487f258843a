package reschedulesource

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	appsv1ac "k8s.io/client-go/applyconfigurations/apps/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"knative.dev/pkg/logging"

	"github.com/reschedule-dev/reschedule/pkg/reconciler/reschedulesource/resources"
)

// fieldManager owns the fields of the adapter's StatefulSet that the controller applies.
const fieldManager = "reschedule-controller"

type adapterKeyInContext struct{}

// WithAdapter makes the scaler of this context apply the adapter's StatefulSet too,
// before it scales it.
func WithAdapter(ctx context.Context, wanted *appsv1ac.StatefulSetApplyConfiguration) context.Context {
	return context.WithValue(ctx, adapterKeyInContext{}, wanted)
}

// installer applies the adapter's StatefulSet, where the installation cannot hold one.
// It is used by one worker.
type installer struct {
	kube     kubernetes.Interface
	recorder record.EventRecorder
	wanted   *appsv1ac.StatefulSetApplyConfiguration
	// seen is the version of the object that the last apply returned, or refused to
	// change. That object is not applied again: only a change of it is.
	seen string
}

// apply returns the adapter as it is after a server-side apply; now is the adapter in
// memory, nil if there is none. Fields that the manifest does not have are left as they
// are, and so is the number of replicas.
func (i *installer) apply(ctx context.Context, namespace string, now *appsv1.StatefulSet) (*appsv1.StatefulSet, error) {
	if now != nil && now.ResourceVersion == i.seen {
		return now, nil
	}
	// The garbage collector removes the adapter with the controller. Its claim stays.
	owner, err := i.kube.AppsV1().Deployments(namespace).Get(ctx, resources.ControllerName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the controller's Deployment, which owns the adapter: %w", err)
	}
	i.wanted.WithNamespace(namespace)
	i.wanted.OwnerReferences = []metav1ac.OwnerReferenceApplyConfiguration{
		*metav1ac.OwnerReference().WithAPIVersion("apps/v1").WithKind("Deployment").WithName(owner.Name).WithUID(owner.UID),
	}
	made, err := i.kube.AppsV1().StatefulSets(namespace).Apply(ctx, i.wanted, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if apierrors.IsInvalid(err) && now != nil {
		i.seen = now.ResourceVersion
		logging.FromContext(ctx).Errorf("The adapter stays as it is, because the API server refuses the change: %v. %s", err, recreate)
		i.recorder.Eventf(now, corev1.EventTypeWarning, "AdapterNotApplied", "The adapter stays as it is: %v. %s", err, recreate)
		return now, nil
	}
	if err != nil {
		return nil, fmt.Errorf("applying the adapter's StatefulSet: %w", err)
	}
	i.seen = made.ResourceVersion
	if now == nil || now.Generation != made.Generation {
		i.recorder.Eventf(made, corev1.EventTypeNormal, "AdapterApplied", "Applied the StatefulSet of version %s", made.Labels["app.kubernetes.io/version"])
	}
	return made, nil
}

const recreate = "The volume's size and class, the selector, the governing Service and the pod management cannot be changed: " +
	"set ADAPTER_VOLUME_SIZE and ADAPTER_STORAGE_CLASS back, or delete the StatefulSet with --cascade=orphan, and it is made again around its pod"
