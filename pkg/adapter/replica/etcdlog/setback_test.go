package etcdlog_test

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

// A member whose disk went back to an earlier state ends with an error that says so. etcd panicked with a dump of all
// goroutines.
func TestMember_DiskWentBack(t *testing.T) {
	t.Parallel()
	peers, dirs, servers := map[string]string{}, map[string]string{}, map[string]*etcdlog.Server{}
	for _, name := range []string{"a", "b", "c"} {
		peers[name], dirs[name] = free(t), t.TempDir()
	}
	start := func(name, dir string, stopped func(error)) {
		s, err := etcdlog.Start(etcdlog.Options{Dir: dir, Group: "g", Member: name, Peers: peers, Connections: connections(), Log: slog.New(slog.DiscardHandler), Stopped: stopped})
		if err != nil {
			t.Fatal(err)
		}
		servers[name] = s
	}
	for name, dir := range dirs {
		start(name, dir, func(error) {})
	}
	for _, s := range servers {
		<-s.Ready()
	}
	lead := leader(servers)
	back := map[string]string{"a": "b", "b": "c", "c": "a"}[lead]
	earlier := t.TempDir()
	servers[back].Close()
	if err := os.CopyFS(earlier, os.DirFS(dirs[back])); err != nil {
		t.Fatal(err)
	}
	start(back, dirs[back], func(error) {})
	<-servers[back].Ready()
	for n := range uint64(20) {
		if err := servers[lead].Entries().Mark(t.Context(), "a", n); err != nil {
			t.Fatal(err)
		}
	}
	for tick := time.Tick(10 * time.Millisecond); ; <-tick { // it has promised to keep them
		if marks, err := servers[back].Entries().Marks(t.Context()); err != nil {
			t.Fatal(err)
		} else if marks["a"] == 19 {
			break
		}
	}
	servers[back].Close()
	why := make(chan error, 1)
	start(back, earlier, func(err error) { why <- err })
	if err := <-why; !errors.Is(err, replica.ErrSetBack) || strings.Contains(err.Error(), "\n") {
		t.Errorf("it ends with: %v", err)
	}
	for _, s := range servers {
		s.Close()
	}
}
