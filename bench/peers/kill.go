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

// life is what a caller did with one key, and what was acknowledged.
type life struct {
	key        string
	at         time.Time // the first time asked for
	scheduled  bool      // acknowledged
	again      time.Time // when the second call to schedule began, if it was acknowledged: then a run must begin after it
	due        time.Time // the newest acknowledged time
	cancelling bool      // a cancel was called for
	cancelled  time.Time // when it was acknowledged, if so
}

// verdict is what the rounds found.
type verdict struct {
	scheduled                           int // acknowledged keys
	lost, early, atOnce, afterCancel    int // keys
	repeats                             int // deliveries after one that was answered
	refused                             int // calls that failed while nothing was killed
	p50, p99, latest, starts, mostEarly time.Duration
}

// judge compares what was acknowledged with what came.
func judge(lives []*life, runs map[string][]*run) (v verdict) {
	var late []time.Duration
	for _, l := range lives {
		all := slices.SortedFunc(slices.Values(runs[l.key]), func(a, b *run) int { return a.began.Compare(b.began) })
		early, atOnce, after := false, false, false
		var until, done time.Time // the last end of an earlier run; when the run began that was answered, and had to come
		answered := false
		for _, r := range all {
			if r.began.Before(l.at) {
				early, v.mostEarly = true, max(v.mostEarly, l.at.Sub(r.began))
			}
			atOnce = atOnce || r.began.Before(until)
			after = after || !l.cancelled.IsZero() && l.cancelled.Before(l.at) && r.began.After(l.cancelled)
			if answered && !strings.HasPrefix(l.key, slow) {
				v.repeats++
			}
			answered = answered || r.answered
			if done.IsZero() && r.answered && !r.began.Before(l.again) {
				done = r.began
			}
			if r.ended.After(until) {
				until = r.ended
			}
		}
		v.early += count(early)
		v.atOnce += count(atOnce)
		v.afterCancel += count(after)
		if !l.scheduled {
			continue
		}
		v.scheduled++
		if l.cancelling {
			continue
		}
		if done.IsZero() {
			v.lost++
			if v.lost <= 5 {
				log.Printf("lost: %+v, %d deliveries", *l, len(all))
				for _, r := range all {
					log.Printf("  %+v", *r)
				}
			}
		} else {
			late = append(late, done.Sub(l.due))
		}
	}
	slices.Sort(late)
	v.p50, v.p99, v.latest = percentile(late, 0.5), percentile(late, 0.99), percentile(late, 1)
	return v
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

// killed schedules, cancels and schedules again, kills all processes of the peer in mid-work and starts them, so many
// times. The rounds are in lanes with data of their own, side by side.
func (p *peer) killed(dir string, size sizes, seed uint64) (verdict, error) {
	lanes := make([]*lane, max(p.lanes, 1))
	var group errgroup.Group
	for i := range lanes {
		group.Go(func() (err error) {
			lanes[i], err = p.lane(filepath.Join(dir, fmt.Sprint("lane", i)), size.kills/len(lanes), rand.New(rand.NewPCG(seed, uint64(i))))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return verdict{}, err
	}
	all := &lane{runs: map[string][]*run{}}
	for i, l := range lanes {
		for _, life := range l.lives {
			key := fmt.Sprintf("%s of lane %d", life.key, i)
			all.runs[key], life.key = l.runs[life.key], key
		}
		all.lives, all.starts, all.refused = append(all.lives, l.lives...), append(all.starts, l.starts...), all.refused+l.refused
	}
	v := judge(all.lives, all.runs)
	slices.Sort(all.starts)
	v.refused, v.starts = all.refused, percentile(all.starts, 0.5)
	return v, nil
}

// lane is what callers did in some rounds, and what came.
type lane struct {
	lives   []*life
	runs    map[string][]*run
	starts  []time.Duration // each until the peer took calls
	refused int             // calls that failed while nothing was killed
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
				return errors.New("a delivery goes on after its worker was killed")
			}
			began := time.Now()
			if err := h.up(p); err != nil {
				return err
			}
			l.starts = append(l.starts, time.Since(began))
		}
		until(bound, func() bool {
			for _, life := range l.lives {
				if life.scheduled && !life.cancelling && !s.done(life.key, life.again) {
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
func (p *peer) round(h *host, s *sink, random *rand.Rand, number int) (lives []*life, refused []error, _ error) {
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
				l := &life{key: fmt.Sprintf("Repo/%08x/%d-%d-%d", dice.Uint32(), number, i, n)}
				err := l.live(c, s, dice, stop)
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
	time.Sleep(time.Duration(500+random.IntN(1000)) * time.Millisecond)
	close(stop) // just before, so that no call is taken for a refused one
	h.kill()
	wg.Wait()
	return lives, refused, nil
}

// live schedules a key; one in five is cancelled, one in ten is scheduled again while it runs.
func (l *life) live(c client, s *sink, dice *rand.Rand, stop chan struct{}) error {
	in := func(from, to int) time.Time {
		return time.Now().Add(time.Duration(from+dice.IntN(to-from)) * time.Millisecond).Truncate(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	kind := dice.IntN(10)
	switch kind {
	case 0:
		l.key, l.at = slow+l.key, in(20, 100)
	case 1, 2:
		l.at = in(300, 1500)
	default:
		l.at = in(20, 1500)
	}
	if err := c.schedule(ctx, l.key, l.at, newData()); err != nil {
		return err
	}
	l.scheduled, l.due = true, l.at
	switch kind {
	case 0:
		for end := time.Now().Add(1500 * time.Millisecond); ; pause(stop, 5*time.Millisecond) {
			if _, running := s.first(l.key); running {
				break
			}
			if stopped(stop) || time.Now().After(end) {
				return nil
			}
		}
		began, due := time.Now(), in(50, 51)
		if err := c.schedule(ctx, l.key, due, newData()); err != nil {
			return err
		}
		l.again, l.due = began, due
	case 1, 2:
		pause(stop, time.Duration(dice.IntN(100))*time.Millisecond)
		l.cancelling = true
		if err := c.cancel(ctx, l.key); err != nil {
			return err
		}
		l.cancelled = time.Now()
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
