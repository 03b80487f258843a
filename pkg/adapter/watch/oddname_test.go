package watch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The API server takes any name without / and % for a Role, of any length, also with control characters. One of
// them stopped all changes of its kind, and the source stayed ready.
func TestOddName_StopsNoOtherObject(t *testing.T) {
	for what, name := range map[string]string{"control": "a\nb", "long": strings.Repeat("n", 505), "none": ""} {
		for _, listed := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, listed %v", what, listed), func(t *testing.T) {
				run(t, own, func(t *testing.T, w *env) {
					if listed {
						w.api.put("Website", "ops/"+name, true)
					}
					w.api.put("Website", "ops/z", true)
					w.start()
					w.deliver()
					w.want("the first list", time.Minute, "add Website/ops/z")
					w.api.put("Website", "ops/"+name, true)
					w.api.put("Website", "ops/z", true)
					w.want("a change beside it", time.Minute, "update Website/ops/z")
					w.api.remove("Website", "ops/"+name)
					w.api.remove("Website", "ops/z")
					w.want("the deletions", time.Minute, "delete Website/ops/z")
					if s := w.status(); s.Status != schedule.WatchTrue || s.Objects != 0 || len(w.warned) == 0 || !contains(w.warned[0], "cannot be used") {
						t.Errorf("%+v, warned %q", s, w.warned)
					}
				})
			})
		}
	}
}

// Whatever an object is like, it costs at most itself: in each way to find keys the changes of the others come.
func TestOddObject_CostsAtMostItself(t *testing.T) {
	owned := func() *schedule.Spec {
		return sourceOf(schedule.WatchResource{Group: "example.com", Version: "v1", Kind: "Website", OwnerGroup: "example.com", OwnerKind: "Website"})
	}
	keyed := func() *schedule.Spec {
		return sourceOf(schedule.WatchResource{Group: "example.com", Version: "v1", Kind: "Website", Key: "[object.metadata.labels.odd, object.metadata.uid]"})
	}
	for what, src := range map[string]func() *schedule.Spec{"own": own, "owner": owned, "key": keyed} {
		for seed := range uint64(8) {
			t.Run(fmt.Sprint(what, seed), func(t *testing.T) {
				run(t, src, func(t *testing.T, w *env) {
					r := rand.New(rand.NewPCG(seed, 1))
					for i := range 12 {
						w.api.put("Website", fmt.Sprintf("ops/%02d", i), true, plainObject(i))
					}
					odd := oddPaths(r, 12)
					put := func(paths []string) {
						for _, path := range paths {
							w.api.put("Website", path, true, oddObject(r))
						}
					}
					put(odd[:6]) // listed
					w.start()
					w.deliver()
					w.settle(time.Minute)
					put(odd) // watched
					for i := range 12 {
						w.api.put("Website", fmt.Sprintf("ops/%02d", i), true)
					}
					checkPlain(t, "updates", keys(w.settle(time.Minute)))
					for _, path := range odd[3:] {
						w.api.remove("Website", path)
					}
					w.api.compact() // a list finds the rest
					w.api.cut()
					for i := range 12 {
						w.api.put("Website", fmt.Sprintf("ops/%02d", i), true)
					}
					checkPlain(t, "updates in a list", keys(w.settle(10*time.Minute)))
					if s := w.status(); s.Status != schedule.WatchTrue {
						t.Errorf("%+v", s)
					}
				})
			})
		}
	}
}

// plainObject gives an object its own key in each of the ways.
func plainObject(i int) func(*object) {
	key := fmt.Sprintf("Website/ops/%02d", i)
	return func(o *object) {
		o.uid = key
		o.labels = map[string]any{"odd": key}
		o.owners = []any{map[string]any{"apiVersion": "example.com/v1", "kind": "Website", "name": fmt.Sprintf("%02d", i), "uid": "u"}}
	}
}

func checkPlain(t *testing.T, what string, got []string) {
	t.Helper()
	for i := range 12 {
		if key := fmt.Sprintf("Website/ops/%02d", i); !slices.ContainsFunc(got, func(k string) bool { return strings.HasSuffix(k, key) }) {
			t.Errorf("%s: %s did not come", what, key)
		}
	}
}

// oddText is a text as an API server may hand it out: any characters, any length.
func oddText(r *rand.Rand) string {
	parts := []string{"", "\x00", "\n", "\u0085", "\u2028", "é", "<", "\xff", "\"", " ", "..", "|", "a", strings.Repeat("n", 300), strings.Repeat("\x01", 9000)}
	var b strings.Builder
	for range r.IntN(4) {
		b.WriteString(parts[r.IntN(len(parts))])
	}
	return b.String()
}

func oddPaths(r *rand.Rand, n int) []string {
	paths := make([]string, n)
	for i := range paths {
		namespace := "ops"
		if r.IntN(3) == 0 {
			namespace = oddText(r)
		}
		paths[i] = namespace + "/" + oddText(r)
	}
	return paths
}

func oddObject(r *rand.Rand) func(*object) {
	return func(o *object) {
		o.uid = oddText(r)
		o.labels = map[string]any{"odd": oddText(r), oddText(r): r.IntN(2)}
		o.owners = []any{
			"no owner", map[string]any{"apiVersion": oddText(r), "kind": oddText(r), "name": oddText(r)},
			map[string]any{"apiVersion": "example.com/v1", "kind": "Website", "name": oddText(r), "uid": oddText(r)},
		}
		o.metadata = map[string]any{"annotations": oddText(r), "generation": oddText(r), "creationTimestamp": oddText(r), "finalizers": []any{oddText(r)}}
	}
}
