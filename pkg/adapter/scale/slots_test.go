package scale

import (
	"slices"
	"testing"
	"testing/synctest"
)

// Starts are bounded by namespace and over all, and namespaces take turns.
func TestSlots_NamespacesTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSlots()
		granted := make(chan *slot, 100)
		names := map[*slot]string{}
		ask := func(namespace, name string) *slot {
			w := &slot{namespace: namespace, most: 2, mostAll: 3}
			w.granted = func() { granted <- w }
			names[w] = name
			s.ask(w)
			return w
		}
		var a []*slot
		for _, name := range []string{"a1", "a2", "a3", "a4"} {
			a = append(a, ask("a", name))
		}
		b1 := ask("b", "b1")
		ask("b", "b2")
		c1 := ask("c", "c1")
		next := func() (got []string) {
			synctest.Wait()
			for len(granted) > 0 {
				got = append(got, names[<-granted])
			}
			slices.Sort(got)
			return got
		}
		if got := next(); !slices.Equal(got, []string{"a1", "a2", "b1"}) {
			t.Errorf("first granted %v", got)
		}
		s.release(a[3]) // it waited
		s.release(a[0])
		if got := next(); len(got) != 1 {
			t.Errorf("one released, granted %v", got)
		}
		s.release(b1)
		s.release(a[1])
		s.release(a[1]) // again
		if got := next(); len(got) != 2 {
			t.Errorf("two released, granted %v", got)
		}
		if !s.holds(c1) {
			t.Error("the third namespace had no turn")
		}
	})
}
