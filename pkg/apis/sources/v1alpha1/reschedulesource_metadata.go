package v1alpha1

import (
	"slices"
	"strconv"
)

// MaxLabels bounds the labels of a source. The API server does not: an author may write a
// hundred thousand of them, which take eight times their text in memory.
const MaxLabels = 64

// tooManyLabels stand for any number of labels above MaxLabels. No selector selects them.
var tooManyLabels = func() map[string]string {
	all := make(map[string]string, MaxLabels+1)
	for i := range MaxLabels + 1 {
		all["too-many-"+strconv.Itoa(i)] = ""
	}
	return all
}()

// TrimMetadata drops the metadata that no program reads, of an object that is kept in memory. Its
// author may write as much of it as an object may have. Labels above MaxLabels stay
// too many, so that Validate refuses the object.
func (s *RescheduleSource) TrimMetadata() {
	s.Annotations, s.ManagedFields, s.OwnerReferences = nil, nil, nil
	s.Finalizers = OwnFinalizers(s.Finalizers)
	if len(s.Labels) > MaxLabels {
		s.Labels = tooManyLabels
	}
}

// OwnFinalizers returns ScaleFinalizer if it is one of them.
func OwnFinalizers(all []string) []string {
	if slices.Contains(all, ScaleFinalizer) {
		return []string{ScaleFinalizer}
	}
	return nil
}

// TooManyLabels returns labels above MaxLabels, for an object whose labels are not kept.
func TooManyLabels() map[string]string { return tooManyLabels }
