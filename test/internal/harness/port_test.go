package harness

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
)

// A port that one process of the tests was given, and does not listen on yet, is not given to another.
func TestFreePort_OnceForAllProcesses(t *testing.T) {
	const ofParent = "PORT_OF_PARENT"
	if port, err := strconv.Atoi(os.Getenv(ofParent)); err == nil { // the other process
		if give(port) == nil {
			t.Error("the port is given again")
		}
		return
	}
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	other := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$")
	other.Env = append(os.Environ(), ofParent+"="+strconv.Itoa(port))
	if out, err := other.CombinedOutput(); err != nil {
		t.Errorf("%v:\n%s", err, out)
	}
	if give(port) == nil {
		t.Error("this process is given its port again")
	}
}
