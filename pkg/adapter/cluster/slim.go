package cluster

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	eventingduckv1 "knative.dev/eventing/pkg/apis/duck/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/capacity"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// slim drops the fields that only writers of an object need.
func slim(o any) (any, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return o, nil //nolint:nilerr // a tombstone is passed on as it is
	}
	m.SetManagedFields(nil)
	annotations := m.GetAnnotations()
	delete(annotations, corev1.LastAppliedConfigAnnotation)
	if len(annotations) == 0 {
		m.SetAnnotations(nil)
	}
	return o, nil
}

// slimConfigMap drops the data of ConfigMaps that are not read.
func slimConfigMap(o any) (any, error) {
	if cm, ok := o.(*corev1.ConfigMap); ok {
		if cm.BinaryData = nil; !isRead(cm) {
			cm.Data = nil
		}
	}
	return slim(o)
}

// maxCertificates bounds the certificates that sources share. There is one for each
// authority that signs the certificates of sinks.
const maxCertificates = 256

// sharedBytes bounds their text. An author may write 256 KiB, and it stays when no source has it any more.
const sharedBytes = 1 << 20

// slimSources drops the parts of the status that the adapter does not read, and keeps
// one copy of certificates that many sources have: with transport encryption they
// are most of an object. What is too large is kept as a stand-in.
type slimSources struct {
	capacity *capacity.Sources // nil: it is not bounded

	mu           sync.Mutex
	certificates map[string]*string
	shared       int // bytes of them
}

func (s *slimSources) slim(o any) (any, error) {
	if source, ok := o.(*v1alpha1.RescheduleSource); ok {
		if s.capacity.Holds(source) {
			return o, nil
		}
		source.TrimMetadata()
		status := &source.Status
		status.Conditions = unresolvedTargets(status)
		status.CloudEventAttributes, status.Annotations = nil, nil
		status.AddressStatus = duckv1.AddressStatus{}
		status.AppliedEventPoliciesStatus = eventingduckv1.AppliedEventPoliciesStatus{}
		s.share(&status.SinkCACerts)
		s.share(&status.DeadLetterSinkCACerts)
		s.share(&source.Spec.Sink.CACerts)
		if d := source.Spec.Delivery; d != nil && d.DeadLetterSink != nil {
			s.share(&d.DeadLetterSink.CACerts)
		}
		return s.capacity.Admit(source), nil
	}
	return slim(o)
}

// unresolvedTargets keeps the conditions for targets that cannot be resolved.
func unresolvedTargets(status *v1alpha1.RescheduleSourceStatus) (kept duckv1.Conditions) {
	for _, t := range []apis.ConditionType{v1alpha1.ConditionSinkProvided, v1alpha1.ConditionDeadLetterSinkResolved} {
		if !isUnresolved(status, t) {
			continue
		}
		c := apis.Condition{Type: t, Status: corev1.ConditionFalse}
		if isGone(status, t) {
			c.Reason = v1alpha1.ReasonNotFound
		}
		kept = append(kept, c)
	}
	return kept
}

// share replaces a text by the first equal one.
func (s *slimSources) share(text **string) {
	if *text == nil || len(**text) > sharedBytes {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	first, ok := s.certificates[**text]
	if !ok {
		if s.certificates == nil || len(s.certificates) >= maxCertificates || s.shared+len(**text) > sharedBytes {
			s.certificates, s.shared = map[string]*string{}, 0
		}
		first = *text
		s.shared += len(*first)
		s.certificates[*first] = first
	}
	*text = first
}
