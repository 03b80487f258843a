//go:build faults

package replicated

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// startApart starts a group whose members are on machines of their own, and whose sink works
// so long on each delivery.
func startApart(t *testing.T, hold time.Duration) (*group, *network) {
	t.Helper()
	g := prepare(t, func(*group) {})
	g.hold = hold
	n := g.separate()
	g.launchAll()
	g.put(g.key(), time.Hour) // there is an owner
	return g, n
}

// startOnDisks starts a group whose members have file systems of their own.
func startOnDisks(t *testing.T, hold time.Duration) (g *group, disks [3]string) {
	t.Helper()
	g = startWith(t, func(g *group) {
		g.hold = hold
		for i := range disks {
			disks[i] = g.disk(i)
		}
	})
	return g, disks
}

// refuses demands that a member without the others says so, in time: changes and reads.
func (g *group) refuses(i int, key string) {
	g.t.Helper()
	for method, body := range map[string]string{http.MethodPut: `{"delay":"1h"}`, http.MethodGet: ""} {
		ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
		begun := time.Now()
		r, err := harness.Do(ctx, method, g.members[i].URL+"/tests/s/schedules/"+key, body, g.headers...)
		cancel()
		took := time.Since(begun)
		if err != nil || r.Status != http.StatusServiceUnavailable || r.Header.Get("Retry-After") == "" || took > 8*time.Second {
			g.t.Errorf("%s at %s after %s: %v %v", method, name(i), took, r, err)
		}
	}
}

// ends waits until the member's process ends by itself.
func ends(t *testing.T, a *harness.Adapter) {
	t.Helper()
	select {
	case <-a.Exited():
	case <-time.After(harness.Patience):
		t.Fatalf("it goes on:\n%s", a.Log())
	}
}

// comesBack starts a member that callers avoid, until one of the others may be lost.
func (g *group) comesBack(i int) {
	g.t.Helper()
	g.launch(i)
	g.ready(i)
	g.setAvoided(-1)
	key := g.key()
	g.put(key, time.Hour)
	g.kill((i + 1) % 3)
	g.put(g.key(), time.Hour)
	g.known(i, key)
}

// killOwner kills the owner with -9 and starts it again, while the others go on.
func (g *group) killOwner(what string) {
	g.t.Helper()
	i := g.owner()
	begun := time.Now()
	g.kill(i)
	g.recovery(what, begun)
	g.launch(i)
	g.pass(2 * time.Second)
}

// An owner that is cut off from the others, also in one direction, delivers nothing and
// answers 503, although callers and the sink reach it. The others go on.
func TestOwner_CutOff(t *testing.T) {
	g, n := startApart(t, 300*time.Millisecond)
	stop := g.write()
	for what, filter := range map[string]string{"both ways": cutOff, "it hears nothing": hearsNothing, "it is not heard": isNotHeard} {
		g.pass(time.Second)
		i := g.owner()
		g.setAvoided(i)
		begun := time.Now()
		n.filter(i, filter)
		g.recovery("the owner is cut off, "+what, begun)
		g.refuses(i, g.key())
		last := g.newestFrom(n.hosts[i]).Sub(begun)
		t.Logf("its last delivery began after %s", last.Round(time.Millisecond))
		if last > time.Second {
			t.Error("it delivers")
		}
		n.heal(i)
		healed := time.Now()
		key := g.key()
		g.put(key, time.Hour)
		g.rejoins(i, key)
		t.Logf("it answers again %s after the cut was healed", time.Since(healed).Round(time.Millisecond))
		g.setAvoided(-1)
	}
	stop()
	g.settled()
}

// rejoins waits until the member answers for the group again.
func (g *group) rejoins(i int, key string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), harness.Patience)
	defer cancel()
	for {
		r, err := harness.Do(ctx, http.MethodGet, g.members[i].URL+"/tests/s/schedules/"+key, "", g.headers...)
		if err == nil && r.Status == http.StatusOK {
			return
		}
		if ctx.Err() != nil || err == nil && r.Status != http.StatusServiceUnavailable {
			g.t.Fatalf("%s does not know %s: %v %v", name(i), key, r, err)
		}
	}
}

// While a follower is cut off, calls at it are answered 503 in time, and the others go on. It
// catches up afterwards.
func TestFollower_CutOff(t *testing.T) {
	g, n := startApart(t, 100*time.Millisecond)
	stop := g.write()
	g.pass(time.Second)
	i := (g.owner() + 1) % 3
	known := g.key()
	g.put(known, time.Hour)
	g.known(i, known) // its connection to the owner is there
	g.setAvoided(i)
	g.pass(200 * time.Millisecond) // calls at it end
	n.filter(i, cutOff)
	g.refuses(i, known)
	n.heal(i)
	key := g.key()
	g.put(key, time.Hour)
	g.rejoins(i, key)
	g.setAvoided(-1)
	g.pass(time.Second)
	stop()
	g.settled()
}

// A network that loses a tenth of the packets between members loses no schedule, and the
// group goes on without its owner.
func TestGroup_LossyNetwork(t *testing.T) {
	g, n := startApart(t, 100*time.Millisecond)
	for i := range g.members {
		n.filter(i, loses)
	}
	stop := g.write()
	g.pass(8 * time.Second)
	g.killOwner("kill -9 of the owner in a network that loses packets")
	stop()
	g.settled()
}

// An owner whose disk hangs gives the group up within 3 s, and does no harm when the disk
// goes on.
func TestOwner_DiskHangs(t *testing.T) {
	g, disks := startOnDisks(t, 300*time.Millisecond)
	stop := g.write()
	for range 2 {
		g.pass(time.Second)
		i := g.owner()
		g.setAvoided(i)
		begun := time.Now()
		command(t, "fsfreeze", "--freeze", disks[i])
		func() {
			defer command(t, "fsfreeze", "--unfreeze", disks[i])
			g.recovery("the disk of the owner hangs", begun)
			g.refuses(i, g.key())
			g.pass(time.Second)
		}()
		key := g.key()
		g.put(key, time.Hour)
		g.rejoins(i, key)
		g.setAvoided(-1)
	}
	stop()
	g.settled()
}

// diskFails is what a member logs as an error whose disk takes nothing any more, and which ends.
var diskFails = []string{"no space left on device", "input/output error", "writeAt failed", `"level":"fatal"`}

// An owner whose disk is full ends, and says why. The others go on, and it comes back when
// there is space. Until it ends, within a second, it may answer 507.
func TestOwner_DiskFull(t *testing.T) {
	g, disks := startOnDisks(t, 0)
	g.errors = diskFails
	stop := g.write()
	g.pass(time.Second)
	i := g.owner()
	full := g.members[i]
	g.mayBeFull()
	g.setAvoided(i)
	ballast := filepath.Join(disks[i], "ballast")
	fill(t, ballast)
	begun := time.Now()
	g.recovery("the disk of the owner is full", begun)
	ends(t, full)
	full.AwaitLog(t, "no space left on device")
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	g.comesBack(i)
	stop()
	g.settled()
}

// An owner whose disk fails (fsync returns EIO, or the device's ENOSPC) ends, and says why: what
// the disk did not take is not acknowledged. The others go on. With a new disk it is a member again.
func TestOwner_DiskFails(t *testing.T) {
	var disks, below [3]string
	g := startWith(t, func(g *group) {
		g.errors = diskFails
		for i := range disks {
			disks[i], below[i] = g.weakDisk(i)
		}
	})
	stop := g.write()
	g.pass(time.Second)
	i := g.owner()
	failing := g.members[i]
	g.setAvoided(i)
	ballast := filepath.Join(below[i], "ballast")
	fill(t, ballast)
	begun := time.Now()
	g.recovery("the disk of the owner fails", begun)
	ends(t, failing)
	t.Logf("it ended after %s", time.Since(begun).Round(time.Millisecond))
	log := failing.AwaitLog(t, `"level":"fatal"`)
	if !strings.Contains(log, "input/output error") && !strings.Contains(log, "no space left on device") {
		t.Errorf("it does not say why:\n%s", log)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	command(t, "umount", disks[i])
	mountNew(t, image(below[i], i), disks[i])
	g.comesBack(i)
	stop()
	g.settled()
}

// While the disk of the owner is nearly full another member owns the group, and no process
// ends: new keys are taken. While the disks of all are, the owner stays, and says 507.
func TestOwner_DiskNearlyFull(t *testing.T) {
	g, disks := startOnDisks(t, 100*time.Millisecond)
	stop := g.write()
	g.pass(time.Second)
	i := g.owner()
	g.leave(i, disks[i], 1.1, 1.3) // less than is shared by namespaces, more than the reserve
	begun := time.Now()
	next := g.owner()
	for next == i && time.Since(begun) < harness.Patience {
		next = g.owner()
	}
	if next == i {
		t.Fatal("it still owns the group")
	}
	t.Logf("another member owns the group after %s", time.Since(begun).Round(time.Millisecond))
	g.members[i].AwaitLog(t, "its disk is nearly full")
	g.recovery("the disk of the owner is nearly full", begun)
	g.pass(time.Second)
	if g.owner() == i {
		t.Error("it owns the group again")
	}
	stop()
	g.settled()
	for k, disk := range disks {
		if k != i {
			leave(t, filepath.Join(disk, "ballast"), 10<<20)
		}
	}
	owner := g.owner()
	url := g.members[owner].URL + "/tests/s/schedules/"
	refused := 0
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); { // the members compare disks each second
		r, err := harness.Do(t.Context(), http.MethodPut, url+g.key(), `{"delay":"1h"}`)
		// On a busy machine its lease may end, and it owns the group again a moment later.
		if err != nil || r.Status != http.StatusInsufficientStorage && r.Status != http.StatusServiceUnavailable {
			t.Fatalf("%v %v", r, err)
		}
		if r.Status == http.StatusInsufficientStorage {
			refused++
		}
	}
	if refused == 0 {
		t.Error("no call was answered 507")
	}
	if now := g.owner(); now != owner {
		t.Errorf("the group went from %s to %s, whose disk is nearly full too", name(owner), name(now))
	}
	for _, k := range []int{i, (i + 1) % 3} { // a majority
		if err := os.Remove(filepath.Join(disks[k], "ballast")); err != nil {
			t.Fatal(err)
		}
	}
	begun = time.Now()
	g.mayBeFull()
	g.put(g.key(), 0)
	t.Logf("a new key is taken %s after two disks have space again", time.Since(begun).Round(time.Millisecond))
	begun = time.Now()
	for g.owner() == (i+2)%3 && time.Since(begun) < harness.Patience {
	}
	if g.owner() == (i+2)%3 {
		t.Error("no member with space owns the group")
	}
	g.settled()
}

// Where the disk of one follower has no space, the group goes on. Where both followers' have none, growth is answered 507
// by an owner with space, and the rest goes on: no process ends. It heals with one of the disks. A follower whose disk is
// really full ends, and is a member again once there is space, however often it was started before.
func TestFollowers_DiskNearlyFull(t *testing.T) {
	g, disks := startOnDisks(t, 0)
	stop := g.write()
	owner := g.owner()
	one, other := (owner+1)%3, (owner+2)%3
	g.leave(one, disks[one], 0.25, 0.5)
	g.pass(3 * time.Second) // no call is answered 507
	stop()
	url := g.members[owner].URL + "/tests/s/schedules/"
	kept, due := g.key(), g.key()
	g.put(kept, 24*time.Hour)
	g.forget(kept)
	g.mayBeFull()
	g.put(due, 6*time.Second)
	g.leave(other, disks[other], 0.25, 0.5) // not even a small namespace may grow, and deliveries go on
	ctx, cancel := context.WithTimeout(t.Context(), harness.Patience)
	defer cancel()
	for refused := 0; refused < 20; {
		r, err := harness.Do(ctx, http.MethodPut, url+g.key(), `{"delay":"1h"}`)
		if err != nil || refused > 0 && r.Status < 300 {
			t.Fatal(refused, r, err)
		}
		if r.Status == http.StatusInsufficientStorage {
			refused++
		}
	}
	if r, err := harness.Do(ctx, http.MethodDelete, url+kept, ""); err != nil || r.Status >= 300 {
		t.Error("DELETE:", r, err)
	}
	g.settled()
	for i, a := range g.members {
		select {
		case <-a.Exited():
			t.Errorf("%s has ended", name(i))
		default:
		}
	}
	if err := os.Remove(filepath.Join(disks[other], "ballast")); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	g.put(g.key(), 0)
	t.Logf("a new key is taken %s after a follower has space again", time.Since(begun).Round(time.Millisecond))
	g.errors = diskFails
	stop = g.write()
	g.setAvoided(one)
	for n, running := 0, true; running; n++ { // it frees a part at first
		fill(t, filepath.Join(disks[one], fmt.Sprint("ballast", n)))
		select {
		case <-g.members[one].Exited():
			running = false
		case <-time.After(time.Second):
			running = n < 60
		}
	}
	ends(t, g.members[one])
	for range 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		out, _ := exec.CommandContext(ctx, program, g.flags(one)...).CombinedOutput()
		cancel()
		t.Logf("started with a full disk, it said:\n%s", out)
	}
	files, err := filepath.Glob(filepath.Join(disks[one], "ballast*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	g.comesBack(one)
	stop()
	g.settled()
}

// leave writes a file until the member says that what is free of its disk is between these parts of the reserve.
func (g *group) leave(i int, disk string, least, most float64) {
	t := g.t
	t.Helper()
	end := time.Now().Add(harness.Patience)
	for {
		m := g.members[i]
		r, err := harness.Do(t.Context(), http.MethodGet, m.Admin+"/metrics", "")
		if err != nil {
			t.Fatal(err)
		}
		now, reserve := gauge(string(r.Body), "reschedule_storage_free_bytes"), gauge(string(r.Body), "reschedule_storage_reserve_bytes")
		if part := float64(now) / float64(reserve); part > least && part < most {
			t.Logf("%s has %d MB free, a reserve of %d MB, and really %d MB free; the log takes %s", name(i), now>>20, reserve>>20, really(t, disk)>>20, command(t, "du", "-sm", filepath.Join(disk, "log")))
			return
		}
		if time.Now().After(end) {
			t.Fatal(name(i), "has", now, "free, of a reserve of", reserve)
		}
		leave(t, filepath.Join(disk, "ballast"), really(t, disk)-now+int64(float64(reserve)*(least+most)/2))
		<-time.After(200 * time.Millisecond)
	}
}

// gauge is the value of a metric, whatever its labels are.
func gauge(metrics, name string) int64 {
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, name) {
			value, _ := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndex(line, " ")+1:]), 64)
			return int64(value)
		}
	}
	return 0
}

// really is how many bytes the file system has free.
func really(t testing.TB, dir string) int64 {
	t.Helper()
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		t.Fatal(err)
	}
	return int64(s.Bavail) * s.Bsize
}

// leave writes a file until so many bytes are free.
func leave(t testing.TB, path string, free int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	size := info.Size() + really(t, filepath.Dir(path)) - free
	if err = f.Truncate(size); err == nil {
		err = syscall.Fallocate(int(f.Fd()), 0, 0, size)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// fill writes a file until there is no space.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size >= 4<<10; size /= 2 {
		for {
			if _, err := f.Write(make([]byte, size)); err != nil {
				break
			}
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}
