package store

import (
	"fmt"
	"strconv"
	"strings"
)

// MarkCount is how many marks a watch has, and their bytes by [Mark.Size]. It is the scope
// of a state of its own, which changes in the batch that changes marks: so a start need not
// read all of them.
type MarkCount struct {
	Watch        uint64
	Marks, Bytes int64
}

const countScope = "c|"

// Scope is the scope of the state.
func (c MarkCount) Scope() string {
	return fmt.Sprintf("%s%016x|%d|%d", countScope, c.Watch, c.Marks, c.Bytes)
}

// MarkCount reads such a state; false for another one.
func (s *WatchState) MarkCount() (c MarkCount, ok bool) {
	rest, ok := strings.CutPrefix(s.Scope, countScope)
	parts := strings.Split(rest, "|")
	if !ok || len(parts) != 3 {
		return MarkCount{}, false
	}
	var errs [3]error
	c.Watch, errs[0] = strconv.ParseUint(parts[0], 16, 64)
	c.Marks, errs[1] = strconv.ParseInt(parts[1], 10, 64)
	c.Bytes, errs[2] = strconv.ParseInt(parts[2], 10, 64)
	return c, errs == [3]error{} && c.Marks >= 0 && c.Bytes >= 0
}
