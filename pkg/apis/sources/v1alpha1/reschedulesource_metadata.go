package v1alpha1

import "strconv"

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
	s.Annotations, s.ManagedFields, s.OwnerReferences, s.Finalizers = nil, nil, nil, nil
	if len(s.Labels) > MaxLabels {
		s.Labels = tooManyLabels
	}
}

// TooManyLabels returns labels above MaxLabels, for an object whose labels are not kept.
func TooManyLabels() map[string]string { return tooManyLabels }
