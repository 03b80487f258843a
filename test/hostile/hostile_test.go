package hostile

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// attacked is an adapter in the memory of its pod, a neighbour and attackers.
type attacked struct {
	*harness.Adapter
	*neighbour
	attackers *attackers
	order     order
}

// onlyTheRate leaves of the shipped ceilings the deliveries a second: the attacks must be
// survived without the others, and no part of the adapter bounds this one.
const onlyTheRate = "{max-pending: 0, max-bytes: 0, max-in-flight: 0, max-timeout: 0s}\n"

// evil are the namespaces of the attackers.
var evil = []string{"evil-1", "evil-2", "evil-3", "evil-4", "evil-5"}

// newAttacked starts an adapter as process says, with its data in the directory, with the sources of the attacks in the
// first n namespaces of evil, and the neighbour's.
func newAttacked(t *testing.T, process harness.Process, data string, n int, attacks ...string) *attacked {
	t.Helper()
	s := &attacked{neighbour: newNeighbour(t), attackers: newAttackers(t)}
	manifests := []string{s.neighbour.manifest()}
	for _, namespace := range evil[:n] {
		for _, attack := range attacks {
			for _, source := range assaults[attack].sources {
				manifests = append(manifests, source.manifest(namespace, attack, s.attackers.sinks))
			}
		}
	}
	file := filepath.Join(t.TempDir(), "sources.yaml")
	must(t, os.WriteFile(file, []byte(strings.Join(manifests, "---\n")), 0o600))
	secure, err := harness.FreeAddress()
	must(t, err)
	config := filepath.Join(t.TempDir(), "ceilings.yaml")
	must(t, os.WriteFile(config, []byte(onlyTheRate), 0o600))
	s.Adapter = process.Start(t, harness.Flags(file, data, "--config", config, "--tls-listen", secure, "--tls-dir", certified(t))...)
	s.url, s.admin = s.URL+"/good/neighbour", s.Admin
	s.order = order{Attacks: attacks, Namespaces: evil[:n], URL: s.URL, Admin: s.Admin, TLS: "https://" + secure}
	return s
}

// live is the neighbour's life before, during and after the attack. It returns
// what the attackers were answered, and the most memory that the adapter took.
func (s *attacked) live(t *testing.T, quiet, attack, after time.Duration) (answers tally, peak int64) {
	t.Helper()
	s.phase(t, "quiet", quiet)
	s.attackers.attack(t, s.order)
	s.phase(t, "attack", attack)
	// Attackers that get no processor on a busy machine have more time, until all attacks have landed.
	for enough := time.Now().Add(4 * deadline); time.Now().Before(enough) && len(s.attackers.soFar(t).missed(s.order.Attacks)) > 0; {
		s.neighbour.live(t.Context(), "attack", time.Second)
	}
	s.alive(t)
	s.neighbour.abreast(t)
	answers = s.attackers.cease(t)
	for _, attack := range answers.missed(s.order.Attacks) {
		t.Errorf("the attack %q did not reach the adapter, so that it proves nothing: none of %q in %v", attack, assaults[attack].lands, answers[attack])
	}
	s.alive(t)
	s.phase(t, "after", after)
	s.alive(t)
	s.neighbour.judge(t)
	peak = s.PeakMemory(t)
	t.Logf("the attackers were answered %s; the adapter took at most %d MiB", answers, peak>>20)
	return answers, peak
}

// phase is one of the neighbour's, and what the adapter computed in it.
func (s *attacked) phase(t *testing.T, name string, lasts time.Duration) {
	t.Helper()
	start, before := time.Now(), s.ProcessorTime(t)
	s.neighbour.live(t.Context(), name, lasts)
	if s.Verdict() == "" {
		s.phases[name].processors = float64(s.ProcessorTime(t)-before) / float64(time.Since(start))
	}
}

// alive ends the test when the adapter ended by itself.
func (s *attacked) alive(t *testing.T) {
	t.Helper()
	how := s.Verdict()
	if how == "" {
		return
	}
	for _, phase := range phases {
		if f := s.neighbour.phases[phase]; f != nil {
			t.Logf("%-6s %s", phase, f)
		}
	}
	log := s.Log()
	t.Fatalf("the adapter ended by itself: %s, having taken %d MiB; its log ends with\n%s", how, s.PeakMemory(t)>>20, log[max(0, len(log)-2000):])
}

// certified is a directory with a certificate.
func certified(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, text := range certs.Own().Files() {
		must(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return dir
}

// The lengths of the phases of one attack by itself.
const (
	quietFor  = time.Second
	attackFor = 8 * time.Second
	shortly   = 3 * time.Second // for an attack that is at its worst at once
	afterFor  = time.Second
)

// One way to harm by itself, from as many namespaces as it takes to end an adapter that does not bound it.
func TestNeighbour_IsNotHarmed(t *testing.T) {
	for attack, by := range map[string]struct {
		namespaces int
		lasts      time.Duration
	}{
		"replies": {1, attackFor},
		"large":   {5, 2 * largeAfter},
		"hang":    {1, attackFor},
		"secured": {2, attackFor},
		"lists":   {3, attackFor},
		"idle":    {5, attackFor},
		"bodies":  {1, attackFor},
		"streams": {5, attackFor},
		"trickle": {1, shortly},
		"rows":    {1, shortly},
	} {
		t.Run(attack, func(t *testing.T) {
			newAttacked(t, harness.Pod(), t.TempDir(), by.namespaces, attack).live(t, quietFor, by.lasts, afterFor)
		})
	}
}

// A sink that asks for its keys again at once gets the deliveries a second of its namespace, and no more.
func TestLoop_IsBoundedByTheCeiling(t *testing.T) {
	s := newAttacked(t, harness.Pod(), t.TempDir(), 1, "loop")
	start := time.Now()
	answers, _ := s.live(t, quietFor, shortly, afterFor)
	n, most := answers["loop"][delivered], int((time.Since(start).Seconds()+1)*float64(ceilings.Shipped.MaxPerSecond))
	if n == 0 || n > most {
		t.Errorf("%d deliveries of the attackers, of at most %d", n, most)
	}
}

// What a tenant keeps on the disk does not keep another from calling.
func TestNeighbour_HasSpaceOnTheDisk(t *testing.T) {
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=220m"); err != nil {
		t.Fatalf("this test needs a small disk of its own: mount: %v", err)
	}
	t.Cleanup(func() {
		must(t, syscall.Unmount(disk, syscall.MNT_DETACH))
	})
	// The disk is memory: it must not count.
	process := harness.Pod()
	process.Memory = 0
	s := newAttacked(t, process, filepath.Join(disk, "data"), 2, "fill")
	for n := 0; ; n++ {
		r, err := harness.Do(t.Context(), http.MethodPost, s.URL+"/"+evil[0]+"/fill/schedules", items("before", 8*n, 8, `,"delay":"24h"`+large))
		if err != nil || n > 1000 {
			t.Fatalf("the disk does not become full: %v", err)
		}
		if r.Status >= 400 || bytes.Contains(r.Body, []byte(`"status":507`)) || bytes.Contains(r.Body, []byte(`"status":429`)) {
			break
		}
	}
	s.live(t, quietFor, attackFor, afterFor)
}

// The work for an event ends when its sender has hung up.
func TestExpression_EndsWithItsRequest(t *testing.T) {
	s := newAttacked(t, harness.Pod(), t.TempDir(), 1, "expression")
	s.live(t, quietFor, attackFor, afterFor)
	before := s.ProcessorTime(t)
	select {
	case <-time.After(3 * time.Second):
	case <-s.Exited():
	}
	// Nothing is due, and there are no calls.
	used := s.ProcessorTime(t) - before
	t.Logf("%s of a processor in the 3 s after the last request", used)
	if used > 300*time.Millisecond {
		t.Errorf("the adapter computes on: %s of a processor in the 3 s after the last request", used)
	}
}
