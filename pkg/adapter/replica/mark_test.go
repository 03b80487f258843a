package replica_test

import (
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// flushing calls during while it flushes.
type flushing struct {
	*view
	during func()
}

func (v flushing) Flush() error {
	v.during()
	return v.view.Flush()
}

// A view was emptied for a copy while the one before was flushed, whose mark was written afterwards. A start during the
// copy took the empty view for a disk that went back, and the member joined anew without need.
func TestMark_OfAViewThatWasEmptied(t *testing.T) {
	t.Parallel()
	log, v := memory().Member(), undamaged("x", "y")
	var g *replica.Group
	empty := func() {
		if err := g.Empty(t.Context(), func() error { v.lose(); return nil }); err != nil {
			t.Error(err)
		}
	}
	for step, during := range []func(){func() {}, empty, func() {}} {
		g = replica.New(replica.Config{Member: "a", Log: log, View: flushing{v, during}})
		marked, err := g.Mark(t.Context())
		marks, failed := log.Marks(t.Context())
		if want := []uint64{2, 0, 0}[step]; marks["a"] != want || failed != nil || marked != want || (err != nil) != (step == 1) {
			t.Errorf("step %d: the mark is %d of a view at %d: %v", step, marks["a"], v.Applied(), err)
		}
	}
}
