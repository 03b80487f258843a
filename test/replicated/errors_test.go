package replicated

import (
	"slices"
	"strings"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// ran is a process of a member.
type ran struct {
	name string
	*harness.Adapter
}

// checkErrors looks for errors in the logs of all processes, also of processes that were killed or
// have ended. The end of a tenure or a lease is no error, nor is what it leaves undone: the next
// owner does it. Of etcd, which logs as JSON, it looks for the end of the process alone: which of its
// errors a group gets over depends on the machine.
func (g *group) checkErrors() {
	g.t.Helper()
	for _, a := range g.ran {
		for line := range strings.Lines(a.Log()) {
			isError := strings.Contains(line, "level=ERROR") || strings.HasPrefix(line, `{"level":"fatal"`) || strings.HasPrefix(line, `{"level":"panic"`) || strings.HasPrefix(line, "panic:")
			if isError && !slices.ContainsFunc(g.errors, func(part string) bool { return strings.Contains(line, part) }) {
				g.t.Errorf("%s logged an error: %s", a.name, line)
			}
		}
	}
}
