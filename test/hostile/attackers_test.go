package hostile

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const asAttackers = "HOSTILE_ATTACKERS"

// order is what the attackers are told: which attacks, by whom, on what.
type order struct {
	Attacks         []string
	Namespaces      []string
	URL, Admin, TLS string
}

// tally counts answers and failures by attack.
type tally map[string]map[string]int

func (t tally) add(attack, what string, n int) {
	if t[attack] == nil {
		t[attack] = map[string]int{}
	}
	t[attack][what] += n
}

// missed are the attacks that left nothing that only the adapter can have left.
func (t tally) missed(attacks []string) []string {
	return slices.DeleteFunc(slices.Clone(attacks), func(attack string) bool {
		return slices.ContainsFunc(assaults[attack].lands, func(what string) bool { return t[attack][what] > 0 })
	})
}

func (t tally) String() string {
	out, _ := json.Marshal(t) // keys are sorted
	return string(out)
}

// attackers are a process of its own, of low priority, with sinks
// that misbehave as long as the attack lasts and are content afterwards.
type attackers struct {
	sinks addresses
	in    io.WriteCloser
	lines chan string
}

func newAttackers(t *testing.T) *attackers {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	cmd := exec.Command("nice", "-n", "10", self)
	if *lasts >= soak { // their machines are not the adapter's, so they get what nothing else wants
		cmd = exec.Command("chrt", "--idle", "0", self)
	}
	cmd.Env = append(os.Environ(), asAttackers+"=1", "GOMAXPROCS=1")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	g := &attackers{in: in, lines: make(chan string)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			g.lines <- lines.Text()
		}
		close(g.lines)
		_ = cmd.Wait() // killed, or its input ended
	}()
	t.Cleanup(func() {
		_ = g.in.Close()
		_ = cmd.Process.Kill()
		for range g.lines { // there is no other reader
		}
		<-done
	})
	must(t, json.Unmarshal([]byte(g.says(t)), &g.sinks))
	return g
}

// says is the next line that the attackers print.
func (g *attackers) says(t *testing.T) string {
	t.Helper()
	select {
	case line, ok := <-g.lines:
		if ok {
			return line
		}
		t.Fatal("the attackers ended")
	case <-time.After(60 * time.Second):
		t.Fatal("the attackers hang")
	}
	return ""
}

// attack starts the attacks. It returns once they are under way.
func (g *attackers) attack(t *testing.T, o order) {
	t.Helper()
	line, err := json.Marshal(o)
	if err == nil {
		_, err = fmt.Fprintf(g.in, "%s\n", line)
	}
	must(t, err)
	if said := g.says(t); said != "attacking" {
		t.Fatalf("the attackers say %q", said)
	}
}

// soFar returns what the attacks were answered, and cease ends them first.
func (g *attackers) soFar(t *testing.T) tally { return g.ask(t, "answers") }
func (g *attackers) cease(t *testing.T) tally { return g.ask(t, "stop") }

func (g *attackers) ask(t *testing.T, what string) (answers tally) {
	t.Helper()
	_, err := fmt.Fprintln(g.in, what)
	must(t, err)
	must(t, json.Unmarshal([]byte(g.says(t)), &answers))
	return answers
}

// attack is the attackers' program: it prints the addresses of its sinks, attacks as the orders on
// its input say, until the next order, stop, or the input's end, and prints its answers.
func attack(in io.Reader, out io.Writer) int {
	sinks := newSinks()
	defer sinks.close()
	line, _ := json.Marshal(sinks.addresses) // strings
	fmt.Fprintln(out, string(line))
	w := &runningOrder{sinks: sinks, answers: tally{}}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		if line != "answers" {
			w.end()
		}
		if line == "stop" || line == "answers" {
			w.mu.Lock()
			for attack, n := range sinks.taken() {
				w.answers.add(attack, delivered, n)
			}
			fmt.Fprintln(out, w.answers)
			w.mu.Unlock()
			continue
		}
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			fmt.Fprintln(os.Stderr, "attackers:", err)
			return 1
		}
		w.begin(o)
		fmt.Fprintln(out, "attacking")
	}
	w.end()
	return 0
}

// runningOrder is one order that is carried out.
type runningOrder struct {
	sinks *sinks
	stop  func()
	all   sync.WaitGroup

	mu      sync.Mutex
	answers tally
}
