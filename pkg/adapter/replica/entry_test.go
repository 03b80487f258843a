package replica_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/replicatest"
)

// owned runs a member over the log until own returns.
func owned(t *testing.T, log replica.Log, own func(tenure *replica.Tenure), more ...func(*replica.Config)) *view {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	v := &view{disk: &disk{}, check: func(uint64, string) {}}
	cfg := replica.Config{
		Member: "a", Members: []string{"a", "b", "c"}, Log: log, View: v, Silence: silence,
		Own: func(_ context.Context, tenure *replica.Tenure) {
			defer cancel()
			own(tenure)
		},
	}
	for _, change := range more {
		change(&cfg)
	}
	if err := replica.New(cfg).Run(ctx); err != nil {
		t.Error(err)
	}
	return v
}

// refusing answers the next appends with these errors.
type refusing struct {
	replica.Log
	errs    []error
	largest int
}

func (l *refusing) Append(ctx context.Context, epoch int64, seq uint64, data []byte, wall time.Time) (bool, error) {
	l.largest = max(l.largest, len(data))
	if len(l.errs) > 0 {
		err := l.errs[0]
		l.errs = l.errs[1:]
		if err != nil {
			return false, err
		}
	}
	return l.Log.Append(ctx, epoch, seq, data, wall)
}

func memory() *replicatest.Memory {
	return replicatest.NewMemory(rand.New(rand.NewPCG(1, 2)), replicatest.Faults{})
}

// A batch of a call of 16 MiB was one entry of the log, which etcd refused for good. It was repeated for 3 s, and then
// deposed the owner.
func TestAppend_LargeBatchIsAccepted(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		large := bytes.Repeat([]byte("0123456789abcdef"), 17<<16)
		log := &refusing{Log: memory().Member()}
		v := owned(t, log, func(tenure *replica.Tenure) {
			for _, batch := range [][]byte{[]byte("1"), large, []byte("2")} {
				if err := tenure.Append(batch); err != nil || !tenure.Valid() {
					t.Error(err)
				}
			}
			if err := tenure.Append(make([]byte, replica.MaxBatch+1)); !errors.Is(err, replica.ErrTooLarge) || !tenure.Valid() {
				t.Error(err)
			}
		})
		if at := v.Applied(); at != 139 || v.applied[137] != string(large) || v.applied[138] != "2" || log.largest != replica.MaxEntry {
			t.Errorf("the view is at %d; an entry has up to %d bytes", at, log.largest)
		}
	})
}

// What the log never takes is refused at once, and this member goes on as the owner.
func TestAppend_RefusedForGood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := &refusing{Log: memory().Member(), errs: []error{replica.ErrTooLarge, nil, replica.ErrTooLarge}}
		v := owned(t, log, func(tenure *replica.Tenure) {
			begun := time.Now()
			if err := tenure.Append([]byte("1")); !errors.Is(err, replica.ErrTooLarge) || errors.Is(err, replica.ErrUnknown) {
				t.Error(err)
			}
			if err := tenure.Append([]byte("a batch of a few parts")); !errors.Is(err, replica.ErrTooLarge) {
				t.Error("its second part was refused:", err)
			}
			if err := tenure.Append([]byte("2")); err != nil || !tenure.Valid() || time.Since(begun) > time.Second {
				t.Error(err, time.Since(begun))
			}
		}, func(c *replica.Config) { c.EntryBytes = 15 })
		if at := v.Applied(); at != 2 || v.applied[1] != "2" {
			t.Errorf("the view is at %d: %q", at, v.applied)
		}
	})
}

// After an attempt whose outcome is unknown, the answer that another member owns the group does not say that nothing was
// changed: the entry may have been added, and removed from the log since. A part that is not the last one changes nothing.
func TestAppend_FencedAfterUnknown(t *testing.T) {
	t.Parallel()
	lost := errors.New("no answer")
	for name, test := range map[string]struct {
		errs []error
		want error
	}{
		"fenced":                        {[]error{replica.ErrFenced}, replica.ErrNotOwner},
		"unknown, then fenced":          {[]error{nil, nil, lost, replica.ErrFenced}, replica.ErrUnknown},
		"unknown, fenced, not the last": {[]error{nil, lost, replica.ErrFenced}, replica.ErrNotOwner},
	} {
		synctest.Test(t, func(t *testing.T) {
			owned(t, &refusing{Log: memory().Member(), errs: test.errs}, func(tenure *replica.Tenure) {
				if err := tenure.Append([]byte("three parts of it!")); !errors.Is(err, test.want) {
					t.Errorf("%s: %v, want %v", name, err, test.want)
				}
			}, func(c *replica.Config) { c.EntryBytes = 12 })
		})
	}
}

// A changed byte of an entry, in a file of etcd, was applied: a key was lost after the next failover. The member takes a
// copy of another member's view instead.
func TestStandby_DamagedEntryIsNotApplied(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		log := memory()
		whole := owned(t, log.Member(), func(tenure *replica.Tenure) {
			for range 5 {
				if err := tenure.Append([]byte("x")); err != nil {
					t.Error(err)
				}
			}
		})
		if err := whole.Flush(); err != nil {
			t.Error(err)
		}
		log.Damage(3)
		ctx, cancel := context.WithCancel(t.Context())
		v := &view{disk: &disk{}, check: func(_ uint64, data string) {
			if data != "x" {
				t.Errorf("it applied %q", data)
			}
		}}
		g := replica.New(replica.Config{
			Member: "b", Members: []string{"a", "b", "c"}, Log: log.Member(), View: v, Silence: silence, Own: func(context.Context, *replica.Tenure) {},
			Copy: func(context.Context, bool, func()) error {
				if at := v.Applied(); at != 2 {
					t.Errorf("it copies at %d", at)
				}
				return v.copyFrom(whole, 0)
			},
		})
		time.AfterFunc(5*time.Second, cancel)
		if err := g.Run(ctx); err != nil || v.Applied() != 5 {
			t.Error(err, v.Applied())
		}
	})
}

// swallowing adds the n-th entry, loses the answer, and gives none for a minute.
type swallowing struct {
	replica.Log
	n      int
	silent time.Time
}

func (l *swallowing) Append(ctx context.Context, epoch int64, seq uint64, data []byte, wall time.Time) (added bool, err error) {
	if l.n--; l.n == 0 {
		l.silent = time.Now().Add(time.Minute)
	} else if time.Now().Before(l.silent) {
		return false, errors.New("no answer")
	}
	if added, err = l.Log.Append(ctx, epoch, seq, data, wall); l.n == 0 {
		return false, errors.New("no answer")
	}
	return added, err
}

// An owner that was cut off in the middle of a batch of several parts read on behind its own parts: it took its log for
// damaged, and copied a whole view; or it joined its last part to what an earlier owner had left of a batch.
func TestAppend_CutWithinABatch(t *testing.T) {
	t.Parallel()
	const batch = "1111111222222233333"
	for name, test := range map[string]struct {
		leftover bool
		n        int
		want     []string
	}{
		"the middle part has no answer": {false, 2, []string{"next"}},
		"the last part has no answer":   {false, 3, []string{batch, "next"}},
		"a batch was left before":       {true, 3, []string{batch, "next"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			log := memory()
			small := func(c *replica.Config) { c.EntryBytes = 12 }
			if test.leftover {
				owned(t, &refusing{Log: log.Member(), errs: []error{nil, replica.ErrFenced}}, func(tenure *replica.Tenure) {
					if err := tenure.Append([]byte("AAAAAAABBBBBBBCCCCCCC")); !errors.Is(err, replica.ErrNotOwner) {
						t.Errorf("%s: the earlier owner: %v", name, err)
					}
				}, small)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var applied []string
			tenures := 0
			cfg := replica.Config{
				Member: "b", Members: []string{"a", "b", "c"}, Log: &swallowing{Log: log.Member(), n: test.n}, Silence: silence,
				View: &view{disk: &disk{}, check: func(_ uint64, data string) { applied = append(applied, data) }},
				Own: func(_ context.Context, tenure *replica.Tenure) {
					if tenures++; tenures == 1 {
						_ = tenure.Append([]byte(batch))
						time.Sleep(2 * time.Minute)
						return
					}
					if err := tenure.Append([]byte("next")); err != nil {
						t.Errorf("%s: %v", name, err)
					}
					cancel()
				},
				Copy: func(context.Context, bool, func()) error {
					cancel()
					t.Errorf("%s: it copies a view", name)
					return nil
				},
			}
			small(&cfg)
			if err := replica.New(cfg).Run(ctx); err != nil || !slices.Equal(applied, test.want) {
				t.Errorf("%s: %v; it applied %q, want %q", name, err, applied, test.want)
			}
		})
	}
}
