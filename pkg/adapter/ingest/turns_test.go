package ingest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestTurns_ANamespaceThatFloodsWaitsForItself(t *testing.T) {
	t.Parallel()
	// However many requests of one namespace wait, another one's is the next but
	// one; and within a namespace the sources take turns.
	synctest.Test(t, func(t *testing.T) {
		all := &turns{free: 1}
		done, err := all.take(t.Context(), time.Hour, "flood", "a")
		if err != nil {
			t.Fatal(err)
		}
		var order []string
		ended := make(chan string)
		wait := func(namespace, source string) {
			go func() {
				done, err := all.take(t.Context(), time.Hour, namespace, source)
				if err != nil {
					t.Error(err)
				}
				ended <- namespace + "/" + source
				done()
			}()
			synctest.Wait()
		}
		for range 3 {
			wait("flood", "a")
		}
		wait("flood", "b")
		wait("quiet", "c")
		done()
		for range 5 {
			order = append(order, <-ended)
		}
		if want := []string{"flood/a", "quiet/c", "flood/b", "flood/a", "flood/a"}; !slices.Equal(order, want) {
			t.Errorf("%v, want %v", order, want)
		}
		synctest.Wait()
		if all.free != 1 || !all.waiting.empty() || len(all.waiting.below) != 0 {
			t.Errorf("at the end: %+v", all)
		}
	})
}

func TestTurns_WhoGivesUpIsNotInTheWay(t *testing.T) {
	t.Parallel()
	// A wait ends with its context, and after its time; neither costs a turn.
	synctest.Test(t, func(t *testing.T) {
		all := &turns{free: 2}
		one, _ := all.take(t.Context(), time.Hour, "n", "a")
		two, _ := all.take(t.Context(), time.Hour, "n", "a")
		gone, hangUp := context.WithCancel(t.Context())
		errs := make(chan error, 2)
		go func() {
			_, err := all.take(gone, time.Hour, "n", "b")
			errs <- err
		}()
		synctest.Wait()
		hangUp()
		if err := <-errs; !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
		start := time.Now()
		if _, err := all.take(t.Context(), maxWait, "n", "b"); !errors.Is(err, errNoTurn) || time.Since(start) != maxWait {
			t.Errorf("%v after %s", err, time.Since(start))
		}
		one()
		two()
		if all.free != 2 || !all.waiting.empty() {
			t.Errorf("at the end: %+v", all)
		}
	})
}

func TestTurns_NeverMoreAtATime(t *testing.T) {
	t.Parallel()
	// Whoever comes, gives up or ends: no more go on than may, and no turn is lost.
	synctest.Test(t, func(t *testing.T) {
		all := &turns{free: 3}
		going, most := make(chan struct{}, 3), make(chan struct{})
		for i := range 200 {
			go func() {
				done, err := all.take(t.Context(), time.Duration(i)*time.Millisecond, fmt.Sprint(i%5), fmt.Sprint(i%3))
				if err == nil {
					select {
					case going <- struct{}{}:
					default:
						t.Error("more than three go on")
					}
					time.Sleep(time.Duration(i%7) * time.Millisecond)
					<-going
					done()
				}
				most <- struct{}{}
			}()
		}
		for range 200 {
			<-most
		}
		if all.free != 3 || !all.waiting.empty() {
			t.Errorf("at the end: %+v", all)
		}
	})
}
