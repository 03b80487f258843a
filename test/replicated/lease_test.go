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
	others := func(sig syscall.Signal) {
		for j, a := range g.members {
			if j == i {
				continue
			}
			if err := a.Signal(sig); err != nil {
				t.Fatal(err)
			}
		}
	}
	others(syscall.SIGSTOP)
	g.members[i].AwaitLog(t, "lease of the shard has ended")
	others(syscall.SIGCONT)
	stop()
	g.settled()
}
