package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/bench/peers/judge"
	"golang.org/x/sync/errgroup"
)

const (
	killCallers = 8
	bound       = 150 * time.Second // after the last start, within which what was acknowledged must come
	slow        = "slow/"           // begins keys that are scheduled again while they run
)

func killTakes(key string) time.Duration {
	if strings.HasPrefix(key, slow) {
		return 300 * time.Millisecond
	}
	return 20 * time.Millisecond
}

// killed is what the rounds found.
type killed struct {
	judge.Verdict
	lane
}

func (k *killed) late(p float64) time.Duration { return judge.Percentile(k.Late, p) }
func (k *killed) start() time.Duration {
	return judge.Percentile(slices.Sorted(slices.Values(k.starts)), 0.5)
}

// lane is what callers did in some rounds, and what came.
type lane struct {
	lives   []*judge.Life
	runs    map[string][]*judge.Run
	starts  []time.Duration // each until the peer took calls
	refused int             // calls that failed while nothing was killed
}

// kill schedules, cancels and schedules again, kills all processes of the peer in mid-work and starts them, so many
// times. The rounds are in lanes with data of their own, side by side.
func (p *peer) kill(dir string, size sizes, seed uint64) (k killed, _ error) {
	lanes := make([]*lane, max(p.lanes, 1))
	var group errgroup.Group
	for i := range lanes {
		group.Go(func() (err error) {
			lanes[i], err = p.lane(filepath.Join(dir, fmt.Sprint("lane", i)), size.kills/len(lanes), rand.New(rand.NewPCG(seed, uint64(i))))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return k, err
	}
	k.runs = map[string][]*judge.Run{}
	for i, l := range lanes {
		for _, life := range l.lives {
			runs := l.runs[life.Key]
			life.Key = fmt.Sprintf("lane %d, %s", i, life.Key)
			k.runs[life.Key] = runs
		}
		k.lives, k.starts, k.refused = append(k.lives, l.lives...), append(k.starts, l.starts...), k.refused+l.refused
	}
	k.Verdict = judge.Of(k.lives, k.runs)
	for _, l := range k.Missing[:min(len(k.Missing), 10)] {
		log.Printf("%s: lost: %+v", p.name, *l)
		for _, r := range k.runs[l.Key] {
			log.Printf("it came: %+v", *r)
		}
	}
	return k, nil
}

func (p *peer) lane(dir string, rounds int, random *rand.Rand) (l *lane, _ error) {
	l = new(lane)
	return l, p.on(dir, killTakes, func(h *host, s *sink) error {
		for round := range rounds {
			made, refused, err := p.round(h, s, random, round)
			if err != nil {
				return err
			}
			l.lives = append(l.lives, made...)
			if l.refused += len(refused); l.refused > 0 && l.refused == len(refused) {
				log.Printf("%s: the first refused call, in round %d: %v", p.name, round, refused[0])
			}
			if !s.quiet() {
				return errors.New("a delivery is still open after its worker was killed")
			}
			began := time.Now()
			if err := h.up(p); err != nil {
				return err
			}
			l.starts = append(l.starts, time.Since(began))
		}
		until(bound, func() bool {
			for _, life := range l.lives {
				if life.Scheduled && !life.Cancelling && !life.Replacing && !s.done(life.Key, life.Again) {
					time.Sleep(100 * time.Millisecond)
					return false
				}
			}
			return true
		})
		time.Sleep(3 * time.Second) // for what should not come
		h.kill()
		s.quiet()
		l.runs = s.runs
		return nil
	})
}

// round lets callers work until all processes are killed, and returns what they did and which calls failed before that.
func (p *peer) round(h *host, s *sink, random *rand.Rand, number int) (lives []*judge.Life, refused []error, _ error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range killCallers {
		c, err := p.connect(h)
		if err != nil {
			return nil, nil, err
		}
		dice := rand.New(rand.NewPCG(random.Uint64(), 0))
		wg.Go(func() {
			defer c.close()
			for n := 0; !stopped(stop); n++ {
				l := &judge.Life{Key: fmt.Sprintf("Repo/%08x/%d-%d-%d", dice.Uint32(), number, i, n)}
				err := live(l, c, s, dice, stop)
				mu.Lock()
				lives = append(lives, l)
				if err != nil && !stopped(stop) {
					refused = append(refused, err)
				}
				mu.Unlock()
				pause(stop, time.Duration(dice.IntN(20))*time.Millisecond)
			}
		})
	}
	time.Sleep(time.Duration(300+random.IntN(700)) * time.Millisecond)
	close(stop) // just before, so that no call is taken for a refused one
	h.kill()
	wg.Wait()
	return lives, refused, nil
}

// live is the life of one key: one in five is cancelled, one in ten is scheduled again while it runs.
func live(l *judge.Life, c client, s *sink, dice *rand.Rand, stop chan struct{}) error {
	in := func(from, to int) time.Time {
		return time.Now().Add(time.Duration(from+dice.IntN(to-from)) * time.Millisecond).Truncate(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	kind := dice.IntN(10)
	switch kind {
	case 0:
		l.Key, l.Slow, l.At = slow+l.Key, true, in(20, 100)
	case 1, 2:
		l.At = in(300, 1500)
	default:
		l.At = in(20, 1500)
	}
	if err := c.schedule(ctx, l.Key, l.At, newData()); err != nil {
		return err
	}
	l.Scheduled, l.Due = true, l.At
	switch kind {
	case 0:
		for end := time.Now().Add(1500 * time.Millisecond); ; pause(stop, 5*time.Millisecond) {
			if _, running := s.first(l.Key); running {
				break
			}
			if stopped(stop) || time.Now().After(end) {
				return nil
			}
		}
		began, due := time.Now(), in(50, 51)
		l.Replacing = true
		if err := c.schedule(ctx, l.Key, due, newData()); err != nil {
			return err
		}
		l.Again, l.Replaced, l.Due, l.Replacing = began, time.Now(), due, false
	case 1, 2:
		pause(stop, time.Duration(dice.IntN(100))*time.Millisecond)
		l.Cancelling = true
		if err := c.cancel(ctx, l.Key); err != nil {
			return err
		}
		l.Cancelled = time.Now()
	}
	return nil
}

func stopped(stop chan struct{}) bool {
	select {
	case <-stop:
		return true
	default:
		return false
	}
}

func pause(stop chan struct{}, d time.Duration) {
	select {
	case <-stop:
	case <-time.After(d):
	}
}
