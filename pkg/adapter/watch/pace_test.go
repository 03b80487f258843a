package watch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Without a time for all, keys come ten a second and within ten minutes; with one, spread over it.
func TestPace_TenASecond(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var p pace
		for i := range 10 {
			if got, want := p.delay("k", nil), time.Duration(i+1)*100*time.Millisecond; got != want {
				t.Fatalf("key %d waits %v, want %v", i, got, want)
			}
		}
		late := 0
		for i := range 20_000 {
			got := p.delay(fmt.Sprint(i), nil)
			if got < 0 || got > resyncMost {
				t.Fatalf("key %d waits %v", i, got)
			}
			if got > resyncMost/2 {
				late++
			}
		}
		if late < 9_000 || late > 11_000 {
			t.Errorf("%d of 20,000 come in the second half of the time", late)
		}
		time.Sleep(2 * resyncMost)
		if got := p.delay("k", nil); got != resyncEvery {
			t.Errorf("the first key of a later resync waits %v", got)
		}
		if got := p.delay("k", new(time.Duration)); got != 0 {
			t.Errorf("over no time: %v", got)
		}
	})
}
