package watch

import (
	"fmt"
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Each meeting of a mark and an object has one outcome.
func TestDecide_Table(t *testing.T) {
	t.Parallel()
	mark := func(uid string, hash uint64, keys ...string) *store.Mark {
		return &store.Mark{Object: "ops/a", UID: uid, Hash: hash, Keys: keys}
	}
	own := func(uid string, hash uint64) *observed {
		return &observed{path: "ops/a", uid: uid, hash: hash, own: true, targets: []target{{key: "W/ops/a", uid: uid}}}
	}
	of := func(uid string, hash uint64, keys ...string) *observed {
		s := &observed{path: "ops/a", uid: uid, hash: hash}
		for _, key := range keys {
			s.targets = append(s.targets, target{key: key, uid: "of " + key})
		}
		return s
	}
	for name, c := range map[string]struct {
		before *store.Mark
		now    *observed
		gone   bool
		want   string // verb, targets, mark stored, mark removed, marks more
	}{
		"new":                        {nil, own("u", 1), false, "add [{W/ops/a u}] true false 1"},
		"the same":                   {mark("u", 1), own("u", 1), false, " [] false false 0"},
		"changed":                    {mark("u", 1), own("u", 2), false, "update [{W/ops/a u}] true false 0"},
		"made again":                 {mark("u", 1), own("v", 1), false, "add [{W/ops/a v}] true false 0"},
		"deleted":                    {mark("u", 1), own("u", 1), true, "delete [{W/ops/a u}] false true -1"},
		"deleted without a mark":     {nil, own("u", 1), true, "delete [{W/ops/a u}] false false 0"},
		"a stranger":                 {nil, of("u", 1), false, " [] false false 0"},
		"a stranger is deleted":      {nil, of("u", 1), true, "delete [] false false 0"},
		"adopted":                    {nil, of("u", 1, "x"), false, "add [{x of x}] true false 1"},
		"other owners":               {mark("u", 1, "x", "y"), of("u", 2, "y", "z"), false, "update [{y of y} {z of z} {x }] true false 0"},
		"other owners, nothing else": {mark("u", 1, "x"), of("u", 1, "y"), false, "update [{y of y} {x }] true false 0"},
		"no owner any more":          {mark("u", 1, "x"), of("u", 2), false, "update [{x }] false true -1"},
		"deleted with other owners":  {mark("u", 1, "x"), of("u", 2, "y"), true, "delete [{y of y} {x }] false true -1"},
	} {
		d := decide("W", c.before, c.now, c.gone)
		targets := make([]string, len(d.targets))
		for i, t := range d.targets {
			targets[i] = "{" + t.key + " " + t.uid + "}"
		}
		if got := fmt.Sprint(d.verb, " ", targets, " ", d.mark != nil, " ", d.remove, " ", d.more); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// A row is stored and read without a loss.
func TestRow_RoundTrip(t *testing.T) {
	t.Parallel()
	for _, w := range []row{
		{resource: 7, selector: "a=b,c!=d", version: "9", complete: true},
		{resource: 7, partial: true, version: relisting},
		{resource: 1 << 63, namespace: "ops", selector: "x in (a,b)", version: "9"},
	} {
		if got, ok := parseRow(w.state()); !ok || got != w {
			t.Errorf("%+v became %+v, %t", w, got, ok)
		}
	}
	for _, scope := range []string{"", "?", "n|x", "n|xyz|ops|", revisionScope} {
		if got, ok := parseRow(store.WatchState{Watch: 1, Scope: scope}); ok {
			t.Errorf("%q was read as %+v", scope, got)
		}
	}
}
