package replica_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// A member that finds a claim of another format ends, and names both numbers. It has applied no entry of that log: neither
// where the claim was there before, nor where it comes meanwhile, nor after a release.
func TestGroup_AnotherFormatIsRefused(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]struct {
		before, released bool
	}{"before": {before: true}, "released": {true, true}, "meanwhile": {}} {
		synctest.Test(t, func(t *testing.T) {
			log := memory()
			own, other, v := log.Member(), log.Member(), undamaged()
			claim := func() {
				foreign := replica.Owner{Member: "b", Claim: "b/1", Clock: "b", Format: replica.Format + 1}
				epoch, err := other.Claim(t.Context(), replica.State{}, foreign, time.Now())
				if err == nil {
					_, err = other.Append(t.Context(), epoch, 1, []byte("of another form"), time.Now())
				}
				if err == nil && when.released {
					err = other.Release(t.Context(), epoch, replica.Owner{Clock: "b", Format: replica.Format + 1}, time.Now())
				}
				if err != nil {
					t.Error(name, err)
				}
			}
			if when.before {
				claim()
				own = other // it has received what the process before it wrote
			} else {
				time.AfterFunc(silence/2, claim)
			}
			g := replica.New(replica.Config{Member: "a", Members: []string{"a", "b", "c"}, Log: own, View: v, Silence: silence})
			err := g.Run(t.Context())
			if both := fmt.Sprintf("format %d, and this program has format %d", replica.Format+1, replica.Format); !errors.Is(err, replica.ErrFormat) || !strings.Contains(err.Error(), both) {
				t.Errorf("%s: %v", name, err)
			}
			if v.Applied() != 0 {
				t.Errorf("%s: it has applied an entry", name)
			}
			if err := replica.Replay(t.Context(), other, v); !errors.Is(err, replica.ErrFormat) || v.Applied() != 0 {
				t.Errorf("%s: a back-up of the stopped member: %v", name, err)
			}
		})
	}
}
