package kube

import (
	"sync"

	authn "k8s.io/api/authentication/v1"
	authz "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// codecs read and write the kinds that the adapter uses, and no others. The
// scheme of client-go has the kinds of every API group and doubled the size of
// the process.
var codecs = sync.OnceValue(func() runtime.NegotiatedSerializer {
	scheme := runtime.NewScheme()
	for group, kinds := range map[schema.GroupVersion][]runtime.Object{
		corev1.SchemeGroupVersion:   {&corev1.ConfigMap{}, &corev1.ConfigMapList{}, &corev1.Event{}},
		authn.SchemeGroupVersion:    {&authn.TokenReview{}, &authn.TokenRequest{}},
		authz.SchemeGroupVersion:    {&authz.SubjectAccessReview{}},
		v1alpha1.SchemeGroupVersion: {&v1alpha1.RescheduleSource{}, &v1alpha1.RescheduleSourceList{}},
	} {
		scheme.AddKnownTypes(group, kinds...)
		metav1.AddToGroupVersion(scheme, group)
	}
	return rest.CodecFactoryForGeneratedClient(scheme, serializer.NewCodecFactory(scheme)).WithoutConversion()
})
