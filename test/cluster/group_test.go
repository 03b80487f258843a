package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// group is a group of three adapters, in place of the single one.
type group struct {
	*programs
	t       *testing.T
	members map[string]*harness.Adapter // the members that run
}

// startGroup ends the single adapter for the time of the test, which is no parallel one.
func (p *programs) startGroup(t *testing.T) *group {
	t.Helper()
	binary := p.path("adapter-replicated")
	if err := harness.Build(binary, "github.com/reschedule-dev/reschedule/cmd/adapter-replicated"); err != nil {
		t.Fatal(err)
	}
	p.adapter.Kill()
	members, err := harness.Process{Binary: binary}.LaunchGroup(func(string) []string {
		return []string{"--kubeconfig", p.config[adapterAccount], "--data-dir", t.TempDir(), "--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0"}
	})
	g := &group{p, t, members}
	t.Cleanup(func() {
		for name, a := range g.members {
			a.Kill()
			if t.Failed() {
				t.Logf("member %s:\n%s", name, tail(a.Log()))
			}
		}
		if err := p.startAdapter(); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	p.adapter = g.members["a"]
	return g
}

// owner is the member that owns the group.
func (g *group) owner() (owner string) {
	g.t.Helper()
	settle(g.t, func() bool {
		for name, a := range g.members {
			ctx, cancel := context.WithTimeout(g.t.Context(), time.Second)
			owns := a.OwnsGroup(ctx)
			cancel()
			if owns {
				owner = name
				return true
			}
		}
		return false
	}, "no member owns the group")
	return owner
}

// Any member takes calls of a group of three; the owner delivers, watches, and writes the
// status. When it is killed the next one does, and misses no change of an object and no
// removal of a source.
func TestGroup_OwnerIsKilled(t *testing.T) {
	p, sink := running(t), newSink(t)
	g := p.startGroup(t)
	o := watched(t, "group")
	o.permit(o.namespace, "websites")
	s := o.source(p, "x", watching(sink, "in", websites))
	removed := o.source(p, "removed", to(sink, "removed"))
	s.watches("True", "")
	o.apply(website, "a", "1")
	o.apply(website, "c", "1")
	key := func(name string) string { return "Website/" + o.namespace + "/" + name }
	sink.Next(t, "in", key("a"))
	sink.Next(t, "in", key("c"))
	for name, a := range g.members {
		p.adapter = a
		s.served()
		s.put("of-"+name, `{"delay":"0s"}`)
		sink.Next(t, "in", "of-"+name)
	}
	removed.served()
	removed.put("later", `{"delay":"1h"}`)
	uid := removed.uid()

	owner := g.owner()
	g.members[owner].Kill()
	killed := time.Now()
	delete(g.members, owner)
	p.adapter = g.members[slices.Sorted(maps.Keys(g.members))[0]]
	removed.delete()
	a := o.apply(website, "a", "2")
	o.apply(website, "b", "1")
	o.delete(o.read(fmt.Sprintf(website, "c", "1")))
	settle(t, func() bool {
		return s.call(s.token, "PUT", harness.KeyPath("after"), `{"delay":"0s"}`).Status < 300
	}, "no member takes a call")
	sink.Next(t, "in", "after")
	t.Logf("the first delivery came %s after the end of the owner", time.Since(killed))
	s.put("later", `{"delay":"1h"}`)
	sink.Find(t, "the update, the addition and the deletion", func([]*harness.Delivery) bool {
		update := slices.ContainsFunc(sink.Of("in", key("a")), func(d *harness.Delivery) bool {
			return strings.Contains(string(d.Body), `"resourceVersion":"`+a.GetResourceVersion()+`"`)
		})
		deletion := slices.ContainsFunc(sink.Of("in", key("c")), func(d *harness.Delivery) bool {
			return d.Attr("type") == "dev.knative.apiserver.ref.delete"
		})
		return update && deletion && len(sink.Of("in", key("b"))) > 0
	})
	next := g.members[g.owner()]
	settle(t, func() bool {
		return slices.ContainsFunc(strings.Split(next.Log(), "\n"), func(line string) bool {
			return strings.Contains(line, "its schedules are purged") && !strings.Contains(line, "by the owner") && strings.Contains(line, uid)
		})
	}, "the next owner does not purge the source that was removed meanwhile")
	// The object's first owner wrote at most the keys that are gone.
	s.until("reported by the next owner", func(o *v1alpha1.RescheduleSource) bool { return o.Status.Pending != nil && *o.Status.Pending == 1 })
	s.watches("True", "")
}
