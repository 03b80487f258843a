package group

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store/storetest"
)

// trio is a group of three members over a log in memory.
type trio struct {
	t       *testing.T
	log     *replicatest.Memory
	disks   [3]*vfs.MemFS
	members [3]*trioMember
	owned   chan *store.DB
}

type trioMember struct {
	view   *store.View
	group  *replica.Group
	cancel context.CancelFunc
	ended  chan struct{}
}

func newTrio(t *testing.T) *trio {
	g := &trio{t: t, log: replicatest.NewMemory(rand.New(rand.NewPCG(1, 2)), replicatest.Faults{}), owned: make(chan *store.DB)}
	for i := range g.disks {
		g.disks[i] = vfs.NewCrashableMem()
	}
	g.start()
	return g
}

func healthOf(v *store.View) *health {
	h := &health{view: &view{}}
	h.view.current.Store(v)
	return h
}

func (g *trio) start() {
	for i, name := range []string{"a", "b", "c"} {
		view, err := store.OpenView(store.Options{Dir: "data", FS: g.disks[i], Fatal: func(err error) { g.t.Errorf("%s: fatal: %v", name, err) }})
		if err != nil {
			g.t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		m := &trioMember{view: view, cancel: cancel, ended: make(chan struct{})}
		m.group = replica.New(replica.Config{
			Member: name, Members: []string{"a", "b", "c"}, Log: g.log.Member(), View: view, Silence: 600 * time.Millisecond,
			Own: func(ctx context.Context, tenure *replica.Tenure) {
				db, err := view.Own(tenureLog{tenure, healthOf(view)})
				if err != nil {
					if ctx.Err() == nil {
						g.t.Errorf("%s: owning: %v", name, err)
					}
					return
				}
				select {
				case g.owned <- db:
				case <-ctx.Done():
				}
				<-ctx.Done()
				if err := db.Close(); err != nil {
					g.t.Errorf("%s: closing: %v", name, err)
				}
			},
		})
		go func() {
			defer close(m.ended)
			if err := m.group.Run(ctx); err != nil {
				g.t.Errorf("%s: %v", name, err)
			}
		}()
		g.members[i] = m
	}
}

// end ends all members. lose: their machines lose power.
func (g *trio) end(lose bool) {
	for i, m := range g.members {
		crashed := g.disks[i].CrashClone(vfs.CrashCloneCfg{})
		m.cancel()
		<-m.ended
		if err := m.view.Close(); err != nil {
			g.t.Error(err)
		}
		if lose {
			g.disks[i] = crashed
		}
	}
}

// A group of three is a store: its promises hold when all machines lose power.
func TestReplicated_StoreConforms(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) (store.Store, func(bool) store.Store) {
		g := newTrio(t)
		t.Cleanup(func() {
			g.end(false)
			for i, disk := range g.disks {
				if g.members[i].view.Applied() == 0 {
					continue // it was ended before it had heard anything
				}
				r, err := store.Verify(store.Options{Dir: "data", FS: disk})
				if err != nil || !r.Clean() {
					t.Errorf("not clean: %+v, %v", r, err)
				}
			}
		})
		return <-g.owned, func(kill bool) store.Store {
			g.end(kill)
			g.start()
			return <-g.owned
		}
	})
}

// A store whose tenure ended changes nothing, and says so.
func TestReplicated_DeposedStoreRefuses(t *testing.T) {
	t.Parallel()
	log := &brokenLog{err: store.ErrNotOwner}
	view, err := store.OpenView(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := view.Own(log); !errors.Is(err, store.ErrNotOwner) {
		t.Fatal(err)
	}
	log.view, log.err = view, nil
	db, err := view.Own(log)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []error{store.ErrNotOwner, store.ErrUnknown} {
		log.err = want
		applied := view.Applied()
		if err := db.Purge("s"); !errors.Is(err, want) {
			t.Error(err, want)
		}
		if _, err := db.Apply(false); !errors.Is(err, store.ErrNotOwner) {
			t.Error("a barrier:", err)
		}
		if view.Applied() != applied {
			t.Error("the view has changed")
		}
	}
	if err := errors.Join(db.Close(), view.Close()); err != nil {
		t.Fatal(err)
	}
}

// A change that is in the log is made, also when the store ends before its caller has waited.
func TestReplicated_MadeBeforeTheEnd(t *testing.T) {
	t.Parallel()
	view, err := store.OpenView(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: func(err error) { t.Errorf("fatal: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	db, err := view.Own(&brokenLog{view: view})
	if err != nil {
		t.Fatal(err)
	}
	commit, err := db.Apply(false, store.Change{Source: "s", Key: "k", New: &schedule.Entry{Revision: 1, Occurrence: 1}})
	if err = errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	if err := commit.Wait(); err != nil {
		t.Errorf("the change is in the log: %v", err)
	}
	if err := view.Close(); err != nil {
		t.Fatal(err)
	}
}

// brokenLog appends to the view, or fails.
type brokenLog struct {
	view *store.View
	err  error
}

func (l *brokenLog) Append(batch []byte) error {
	if l.err != nil {
		return l.err
	}
	return l.view.Apply(l.view.Applied()+1, batch)
}

func (l *brokenLog) Valid() bool { return l.err == nil }

// MostDisks implements store.Log.
func (*brokenLog) MostDisks(func(store.Disk) bool) bool { return true }

// Full implements store.Log.
func (*brokenLog) Full() bool { return false }
