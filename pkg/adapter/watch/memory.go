package watch

import (
	"errors"
	"fmt"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
)

// memory is what a source remembers of namespaces, in bytes. A few are a part of its watch: a source that watches one
// namespace is never refused because others watch many.
type memory struct {
	claim budget.Claim
	bytes int64
}

const (
	// freeBytes are the bytes that are not counted.
	freeBytes = 1 << 10
	// nameBytes is what the name of a namespace takes in memory beside its text.
	nameBytes = 64
	// partBytes is what a watch of one namespace takes that waits until it may open.
	partBytes = 8 << 10
)

// grow adds n bytes, which may be less than none, or returns why the source may not have them.
func (s *memory) grow(n int64) error {
	if more := max(0, s.bytes+n-freeBytes) - s.claim.Held(); !s.claim.TryGrow(more) {
		return errMemory
	}
	s.shrink(-n)
	return nil
}

func (s *memory) shrink(n int64) {
	s.bytes -= n
	s.claim.Shrink(s.claim.Held() - max(0, s.bytes-freeBytes))
}

// overShare is the error of a source whose namespace has its share of what watches may take. It waits for more.
type overShare struct{ detail string }

func (e *overShare) Error() string { return e.detail }

var (
	errWatches = &overShare{"the sources of this namespace have their share of the watches that the adapter may open: it waits for a free one"}
	errMemory  = &overShare{"the sources of this namespace have their share of the memory for namespaces that are watched: " +
		"select fewer namespaces, watch fewer kinds, or ask the administrator for more memory"}
)

// errPartWatches is errWatches for a watch of one of many namespaces.
func (r *resource) errPartWatches() error {
	return &overShare{fmt.Sprintf("%s, or give service account %s a ClusterRole to list and watch %s, so that one watch serves all namespaces",
		errWatches.detail, r.s.account().Name, r.served.Name())}
}

func isOverShare(err error) bool {
	_, is := errors.AsType[*overShare](err)
	return is
}
