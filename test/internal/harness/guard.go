package harness

import (
	"io"
	"os/exec"
	"strconv"
)

// guard sees to it that a process does not outlive this one, even when this one
// panics or is killed: a shell waits on a pipe from here, which the kernel
// closes in any case.
type guard struct {
	cmd  *exec.Cmd
	pipe io.Closer
}

func newGuard(pid int) (*guard, error) {
	cmd := exec.Command("sh", "-c", `cat >/dev/null; kill -9 "$0"`, strconv.Itoa(pid))
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &guard{cmd, pipe}, cmd.Start()
}

// dismiss ends the guard of a process that is gone, before its id can be
// another's.
func (g *guard) dismiss() {
	_ = g.cmd.Process.Kill() // it is there until the Wait below
	_ = g.cmd.Wait()         // says that it was killed
	_ = g.pipe.Close()
}
