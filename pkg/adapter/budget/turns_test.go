package budget

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// Namespaces take turns, and so do the sources of a namespace, so that a flood delays only itself.
func TestTurns_AFloodWaitsForItself(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := NewTurns(1, 1, TurnWait)
		turn, err := all.Take(t.Context(), "flood", "a")
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		ended := make(chan string)
		wait := func(namespace, source string) {
			go func() {
				turn, err := all.Take(t.Context(), namespace, source)
				if err != nil {
					t.Error(err)
				}
				ended <- namespace + "/" + source
				turn.Release()
			}()
			synctest.Wait()
		}
		for range 3 {
			wait("flood", "a")
		}
		wait("flood", "b")
		wait("quiet", "c")
		turn.Release()
		for range 5 {
			order = append(order, <-ended)
		}
		if want := []string{"flood/a", "quiet/c", "flood/b", "flood/a", "flood/a"}; !slices.Equal(order, want) {
			t.Errorf("%v, want %v", order, want)
		}
		synctest.Wait()
		if all.total-all.used != 1 || all.waiting.n != 0 || len(all.waiting.below) != 0 {
			t.Errorf("at the end: %+v", all)
		}
	})
}

// A wait ends with its context or after TurnWait, and uses no turn.
func TestTurns_GivingUpCostsNoTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := NewTurns(2, 2, TurnWait)
		one, _ := all.Take(t.Context(), "n", "a")
		two, _ := all.Take(t.Context(), "n", "a")
		gone, hangUp := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		go func() {
			_, err := all.Take(gone, "n", "b")
			errs <- err
		}()
		synctest.Wait()
		hangUp()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		start := time.Now()
		if _, err := all.Take(t.Context(), "n", "b"); !errors.Is(err, ErrFull) || time.Since(start) != TurnWait {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		one.Release()
		two.Release()
		if all.total-all.used != 2 || all.waiting.n != 0 {
			t.Errorf("at the end: %+v", all)
		}
	})
}

// Without a limit of its own, a wait is as long as its context.
func TestTurns_WaitsForItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := NewTurns(1, 1, 0)
		if _, err := all.Take(t.Context(), "n", ""); err != nil {
			t.Fatal(err)
		}
		cause, start := errors.New("the watch has ended"), time.Now()
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Hour, cause)
		defer cancel()
		if _, err := all.Take(ctx, "n", ""); !errors.Is(err, cause) || time.Since(start) != time.Hour {
			t.Errorf("%v after %s", err, time.Since(start))
		}
	})
}

// There are never more callers at a time than turns, and no turn is lost when callers give up.
func TestTurns_NeverMoreAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := NewTurns(3, 3, TurnWait)
		going, most := make(chan struct{}, 3), make(chan struct{})
		for i := range 200 {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*time.Millisecond)
				defer cancel()
				turn, err := all.Take(ctx, fmt.Sprint(i%5), fmt.Sprint(i%3))
				if err == nil {
					select {
					case going <- struct{}{}:
					default:
						t.Error("more than three go on")
					}
					time.Sleep(time.Duration(i%7) * time.Millisecond)
					<-going
					turn.Release()
				}
				most <- struct{}{}
			}()
		}
		for range 200 {
			<-most
		}
		if all.total-all.used != 3 || all.waiting.n != 0 {
			t.Errorf("at the end: %+v", all)
		}
	})
}

// A caller who passes its turn on lets the others go first, and computes on after
// them.
func TestTurn_PassLetsOthersGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := NewTurns(1, 1, TurnWait)
		long, err := all.Take(t.Context(), "flood", "a")
		if err != nil {
			t.Fatal(err)
		}
		if err := long.Pass(t.Context()); err != nil || all.total-all.used != 0 {
			t.Fatalf("alone: %v, %d free", err, all.total-all.used)
		}
		short := make(chan struct{})
		go func() {
			turn, err := all.Take(t.Context(), "quiet", "b")
			if err != nil {
				t.Error(err)
			}
			close(short)
			turn.Release()
		}()
		synctest.Wait()
		if err := long.Pass(t.Context()); err != nil {
			t.Fatal(err)
		}
		select {
		case <-short:
		default:
			t.Error("the other caller still waits")
		}
		gone, hangUp := context.WithCancel(t.Context())
		hangUp()
		other := make(chan *Claim)
		go func() {
			turn, _ := all.Take(t.Context(), "quiet", "b")
			other <- turn
		}()
		synctest.Wait()
		if err := long.Pass(gone); !errors.Is(err, context.Canceled) {
			t.Errorf("passed on after its caller hung up: %v", err)
		}
		long.Release() // it is over already
		turn := <-other
		if turn.Release(); all.total-all.used != 1 || all.waiting.n != 0 {
			t.Errorf("at the end: %+v", all)
		}
	})
}

// A namespace has its share of the turns at most, and the others are free for the next one, also
// while that namespace waits.
func TestTurns_LimitANamespace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		all := NewTurns(4, 2, 0)
		came := make(chan string, 10)
		ctx, hangUp := context.WithCancel(t.Context())
		defer hangUp()
		take := func(namespace string) *Claim {
			turn := all.Claim(namespace, "")
			go func() {
				if turn.Grow(ctx, 1) == nil {
					came <- namespace
				}
			}()
			synctest.Wait()
			return &turn
		}
		want := func(names ...string) {
			t.Helper()
			synctest.Wait()
			for _, name := range names {
				select {
				case got := <-came:
					if got != name {
						t.Errorf("%s has a turn, want %s", got, name)
					}
				default:
					t.Errorf("%s has no turn", name)
				}
			}
			if len(came) > 0 {
				t.Errorf("%s has a turn too", <-came)
			}
		}
		a1, a2, _ := take("a"), take("a"), take("a")
		want("a", "a")
		b1 := take("b")
		c1 := take("c")
		want("b", "c")
		take("d")
		want()
		b1.Release() // a waits for longer, and has its share
		want("d")
		c1.Release()
		want()
		a1.Release()
		want("a")
		a2.Release()
		hangUp()
		synctest.Wait()
		if all.total-all.used != 2 || len(all.namespaces) != 2 || all.waiting.n != 0 { // a and d have one each
			t.Errorf("at the end: %+v", all)
		}
	})
}
