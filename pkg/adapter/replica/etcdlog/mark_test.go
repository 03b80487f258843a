package etcdlog

import "testing"

// A mark without an answer came true after the mark that followed: an empty view was marked with what the view before had.
func TestMark_LateOne(t *testing.T) {
	t.Parallel()
	s := alone(t, t.TempDir())
	defer s.Close() // else etcd ends the process once the directory is removed
	log := s.log("")
	mark := func(seq uint64) {
		if err := log.Mark(t.Context(), "a", seq); err != nil {
			t.Fatal(err)
		}
	}
	mark(7)
	before := log.marked
	mark(0)
	if done, _, err := log.markAfter(t.Context(), before, "a", 9); done || err != nil { // it was on its way
		t.Error(done, err)
	}
	log.marked = before // as after an attempt whose outcome is unknown
	mark(3)
	if marks, err := log.Marks(t.Context()); err != nil || marks["a"] != 3 {
		t.Error(marks, err)
	}
}
