package sink

import (
	"errors"
	"testing"
)

// The cache keeps the values in use and stays bounded.
func TestCache_KeepsUsedValuesBounded(t *testing.T) {
	t.Parallel()
	gone := map[int]bool{}
	built := map[int]int{}
	c := cache[int, int]{limit: 3, evicted: func(v int) { gone[v] = true }}
	get := func(k int) {
		v, err := c.get(k, func() (int, error) { built[k]++; return k, nil })
		if v != k || err != nil {
			t.Fatalf("%d: %d %v", k, v, err)
		}
	}
	for k := 1; k <= 100; k++ {
		get(0) // in use all the time
		get(k)
		if n := len(c.young) + len(c.old); n > 6 {
			t.Fatalf("%d entries", n)
		}
	}
	if built[0] != 1 || gone[0] || !gone[1] {
		t.Errorf("built %d times, gone %v, %v", built[0], gone[0], gone[1])
	}
	c.weight = func(k int) int { return 1 + k/1000 }
	for k := 2000; k < 2010; k++ { // each takes all of the limit
		if get(k); len(c.young) != 1 || len(c.old) > 3 || k > 2000 && len(c.old) != 1 {
			t.Errorf("%d heavy values, and %d older ones", len(c.young), len(c.old))
		}
	}
	c.weight = nil
	if _, err := c.get(-1, func() (int, error) { return 0, errors.New("x") }); err == nil {
		t.Error("no error")
	}
	if get(-1); built[-1] != 1 {
		t.Error("an error was kept")
	}
	get(0)
	if c.clear(); !gone[0] || len(c.young)+len(c.old) != 0 {
		t.Error("not cleared")
	}
}
