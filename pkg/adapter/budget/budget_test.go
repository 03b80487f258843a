package budget

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

const mib = 1 << 20

// fill lets claims of the sources grow by step in turn until none can, each
// claim up to most, and returns what each source holds.
func fill(b *Budget, sources [][2]string, step, most int64) []int64 {
	held := make([]int64, len(sources))
	for grew := true; grew; {
		grew = false
		for i, s := range sources {
			c := b.Claim(s[0], s[1])
			for c.Held() < most && c.TryGrow(step) {
				held[i] += step
				grew = true
			}
		}
	}
	return held
}

// A source gets at most a quarter of the budget, however many claims it has, so that other sources find memory.
func TestSource_AloneHoldsAQuarterAtMost(t *testing.T) {
	t.Parallel()
	b := New(128 * mib)
	if got := fill(b, [][2]string{{"a", "x"}}, mib/16, mib/16)[0]; got > 32*mib || got < 31*mib {
		t.Errorf("one source holds %d of %d", got, b.Total())
	}
}

// A namespace gets at most half of the budget, so that another namespace has memory for its largest body.
func TestNamespace_HoldsAHalfHoweverManySources(t *testing.T) {
	t.Parallel()
	b := New(128 * mib)
	var sources [][2]string
	for i := range 50 {
		sources = append(sources, [2]string{"a", strconv.Itoa(i)})
	}
	fill(b, sources, mib/16, mib/16)
	if got := b.Used(); got > 64*mib || got < 60*mib {
		t.Errorf("one namespace holds %d of %d", got, b.Total())
	}
	newcomer := b.Claim("b", "x")
	if !newcomer.TryGrow(16 * mib) {
		t.Error("another namespace finds no memory for its largest body")
	}
}

// Greedy sources of one namespace get similar shares, and leave memory for namespaces that come later.
func TestShares_OfManyGreedyOnesAreEqual(t *testing.T) {
	t.Parallel()
	b := New(128 * mib)
	sources := [][2]string{{"alone", "x"}}
	for i := range 10 {
		sources = append(sources, [2]string{"many", strconv.Itoa(i)})
	}
	// The many go first, and take all that they can.
	many := fill(b, sources[1:], mib/64, mib/64)
	alone := fill(b, sources[:1], mib/64, mib/64)[0]
	var sum int64
	for i, n := range many {
		sum += n
		if n < many[0]/2 || n > many[0]*2 {
			t.Errorf("source %d of the many holds %d, the first %d", i, n, many[0])
		}
	}
	if left := b.Total() - sum; alone < left/4-mib {
		t.Errorf("the namespace with one source holds %d, and %d were left", alone, left)
	}
	for _, c := range []string{"new", "newer", "newest"} {
		claim := b.Claim(c, "x")
		if !claim.TryGrow(mib) {
			t.Errorf("namespace %s finds nothing free: %d of %d are held, %d by the many", c, b.Used(), b.Total(), sum)
		}
	}
}

// The oldest claim can always grow to its full size, so that claims which grow side by side do not deadlock.
func TestOldestClaim_GrowsBeyondItsSource(t *testing.T) {
	t.Parallel()
	b := New(128 * mib)
	claims := make([]Claim, 20)
	for i := range claims {
		claims[i] = b.Claim("a", "x")
	}
	for grew := true; grew; {
		grew = false
		for i := range claims {
			grew = claims[i].Held() < 2*mib && claims[i].TryGrow(mib/4) || grew
		}
	}
	for i := range claims {
		for claims[i].Held() < 16*mib {
			if !claims[i].TryGrow(mib / 4) {
				t.Fatalf("claim %d, the oldest, ends at %d", i, claims[i].Held())
			}
		}
		claims[i].Release()
	}
	if b.Used() != 0 || len(b.namespaces) != 0 {
		t.Errorf("%d are held by %d namespaces at the end", b.Used(), len(b.namespaces))
	}
}

// A claim that fits is granted at once, although an older and larger claim waits.
func TestSmallClaim_NeverWaitsBehindALargeOne(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(128 * mib)
		holder := b.Claim("a", "x")
		holder.TryGrow(30 * mib)
		large := b.Claim("a", "x")
		granted := make(chan error, 1)
		go func() { granted <- large.Grow(t.Context(), 16*mib) }()
		synctest.Wait()
		small := b.Claim("a", "x")
		if !small.TryGrow(mib) {
			t.Error("the small one is refused")
		}
		small.Release()
		select {
		case <-granted:
			t.Error("the large one did not wait")
		default:
		}
		holder.Release()
		if err := <-granted; err != nil || large.Held() != 16*mib {
			t.Errorf("the large one got %d in the end: %v", large.Held(), err)
		}
	})
}

// A claim stops waiting when its context ends, and then holds no memory and no place in the queue.
func TestWaitingClaim_GivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(mib)
		holder := b.Claim("a", "x")
		holder.TryGrow(mib)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		late := b.Claim("b", "x")
		if err := late.Grow(ctx, mib/2); !errors.Is(err, context.DeadlineExceeded) || late.Held() != 0 {
			t.Errorf("%v, holds %d", err, late.Held())
		}
		holder.Release()
		if b.waiting.n != 0 || b.Used() != 0 {
			t.Errorf("%d wait, %d are held", b.waiting.n, b.Used())
		}
	})
}

// At most maxWaiting claims for bytes wait. One more, and a claim for more than the whole budget, gets ErrFull at
// once. Any number waits for a turn.
func TestWaitingClaims_AreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := New(mib)
		holder := b.Claim("a", "x")
		holder.TryGrow(mib)
		if err := holder.Grow(t.Context(), mib+1); !errors.Is(err, ErrFull) {
			t.Errorf("more than there is: %v", err)
		}
		ended := make(chan error, maxWaiting)
		for range maxWaiting {
			go func() {
				c := b.Claim("b", "x")
				err := c.Grow(t.Context(), 1)
				c.Release()
				ended <- err
			}()
		}
		synctest.Wait()
		c := b.Claim("c", "x")
		if err := c.Grow(t.Context(), 1); !errors.Is(err, ErrFull) {
			t.Errorf("with %d waiting: %v", maxWaiting, err)
		}
		holder.Release()
		for range maxWaiting {
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		}
		all := NewTurns(1, 1, 0)
		turn, _ := all.Take(t.Context(), "a", "x")
		for range maxWaiting + 1 {
			go func() {
				c, err := all.Take(t.Context(), "b", "x")
				c.Release()
				ended <- err
			}()
		}
		synctest.Wait()
		turn.Release()
		for range maxWaiting + 1 {
			if err := <-ended; err != nil {
				t.Fatal(err)
			}
		}
	})
}

// Random claims never exceed the total or the share of a namespace, and the sums of each level equal the claims.
func TestRandomClaims_KeepTheSums(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	if s := os.Getenv("BUDGET_SEED"); s != "" {
		seed, _ = strconv.ParseUint(s, 10, 64)
	}
	random := rand.New(rand.NewPCG(seed, 0))
	b := New(64 * mib)
	claims := make([]Claim, 200)
	for i := range claims {
		claims[i] = b.Claim(fmt.Sprint(random.IntN(5)), fmt.Sprint(random.IntN(4)))
	}
	for range 100_000 {
		c := &claims[random.IntN(len(claims))]
		before, had := c.Held(), len(b.namespaces)
		switch n := random.Int64N(mib); random.IntN(4) {
		case 0:
			c.Release()
		case 1:
			c.Shrink(n)
		default:
			allowed, ns := b.Allows(c.namespace, n), b.namespaces[c.namespace]
			first := ns == nil || ns.sources[c.name] == nil // of the source
			if ok := c.TryGrow(n); ok && n > 0 && !allowed {
				t.Fatalf("seed %d: a namespace that may not take %d got it", seed, n)
			} else if !ok && allowed && first {
				t.Fatalf("seed %d: a namespace may take %d, and its source that holds nothing did not get it", seed, n)
			} else if ok != (c.Held() == before+n) {
				t.Fatalf("seed %d: granted %v, from %d to %d by %d", seed, ok, before, c.Held(), n)
			} else if ns := b.namespaces[c.namespace]; ok && n > 0 && len(b.namespaces) == had && ns.held > n && ns.held > b.total/2 {
				t.Fatalf("seed %d: a namespace holds %d", seed, ns.held)
			}
		}
		if b.used < 0 || b.used > b.total {
			t.Fatalf("seed %d: %d are held", seed, b.used)
		}
	}
	var sum int64
	for i := range claims {
		sum += claims[i].Held()
	}
	var shares, inSources int64
	for _, ns := range b.namespaces {
		shares += ns.held
		for _, s := range ns.sources {
			inSources += s.held
		}
	}
	if sum != b.used || shares != sum || inSources != sum {
		t.Errorf("seed %d: claims hold %d, namespaces %d, sources %d, used is %d", seed, sum, shares, inSources, b.used)
	}
	for i := range claims {
		claims[i].Release()
	}
	if b.used != 0 || len(b.namespaces) != 0 {
		t.Errorf("seed %d: %d left in %d namespaces", seed, b.used, len(b.namespaces))
	}
}

// A claim that is held for long gives way to a namespace that was refused and holds less, and only one does. Without
// that the first namespaces kept all, and a newcomer found nothing for ever.
func TestRenew_GivesWayToWhoHoldsLess(t *testing.T) {
	t.Parallel()
	b := New(8)
	var claims []*Claim
	for i, name := range []string{"a", "a", "a", "b", "b", "c", "d", "e"} {
		c := b.Claim(name, strconv.Itoa(i))
		if !c.TryGrow(1) {
			t.Fatalf("claim %d is refused", i)
		}
		claims = append(claims, &c)
	}
	renewed := func() (namespaces string) {
		for _, c := range claims {
			if c.Renew() {
				namespaces += c.namespace
			}
		}
		return namespaces
	}
	if got := renewed(); got != "aaabbcde" {
		t.Errorf("%s renewed their claims, and none was refused", got)
	}
	newcomer := b.Claim("f", "x")
	if newcomer.TryGrow(1) {
		t.Fatal("a newcomer found something")
	}
	if got := renewed(); got != "aabbcde" {
		t.Errorf("%s renewed their claims after a newcomer was refused", got)
	}
	if !newcomer.TryGrow(1) {
		t.Error("the newcomer finds nothing still")
	}
	for range 2 { // one with as many as the rest would have gets nothing
		second := b.Claim("f", "y")
		second.TryGrow(1)
		if got := renewed(); got != "aabbcde" {
			t.Errorf("%s renewed their claims", got)
		}
	}
}
