package replicated

import (
	"syscall"
	"testing"
	"time"
)

// An owner whose log takes no change says that its lease has ended, and delivers again later.
func TestOwner_LogsTheEndOfItsLease(t *testing.T) {
	g := start(t)
	stop := g.write()
	g.pass(time.Second)
	i := g.owner()
	for j, a := range g.members {
		if j != i {
			if err := a.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
		}
	}
	g.members[i].AwaitLog(t, "lease of the shard has ended")
	for j, a := range g.members {
		if j != i {
			if err := a.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
		}
	}
	stop()
	g.settled()
}
