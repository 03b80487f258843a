package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/client-go/util/workqueue"

	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	listers "github.com/reschedule-dev/reschedule/pkg/client/listers/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/printable"
)

const (
	// statusInterval is the shortest time between two reports of an object.
	statusInterval = 30 * time.Second
	// statusRound is a little longer: an object whose phase comes a moment earlier
	// than in the previous round must not wait for the next one.
	statusRound = statusInterval + time.Second
	// statusPhases spread the objects over that time.
	statusPhases = 30
	// slowRefusal is how long a patch that fails may take, as behind a webhook that hangs. After it the reports
	// of its namespace pause: each would make all others wait.
	slowRefusal, hungPause = kube.CallTimeout / 2, 2 * time.Minute
)

// reporter writes the counts of sources into their status, round by round. In a
// round each object has a phase by its uid; a phase without objects costs no wake-up.
type reporter struct {
	lister  listers.RescheduleSourceLister
	refusal func(types.UID) string // why an object has no memory, "": it has
	patch   kube.StatusPatcher
	limit   flowcontrol.RateLimiter
	log     *slog.Logger
	seed    maphash.Seed
	sent    map[types.UID]time.Time // when an object was reported last, while that is recent

	changedWatches workqueue.TypedDelayingInterface[cache.ObjectName]

	mu   sync.Mutex
	hung map[string]time.Time // by namespace: until when it pauses
}

func newReporter(lister listers.RescheduleSourceLister, refusal func(types.UID) string, patch kube.StatusPatcher, log *slog.Logger) *reporter {
	return &reporter{
		lister: lister, refusal: refusal, patch: patch, log: log, seed: maphash.MakeSeed(), sent: map[types.UID]time.Time{},
		hung:           map[string]time.Time{},
		changedWatches: newNames(),
		limit:          flowcontrol.NewTokenBucketRateLimiter(kube.StatusPerSecond, 1),
	}
}

// run reports until ctx ends.
func (r *reporter) run(ctx context.Context, registry sources.Registry) {
	for ctx.Err() == nil {
		start := time.Now()
		r.forget(start)
		if err := r.round(ctx, registry, start); err != nil && ctx.Err() == nil {
			r.log.Warn("the status of sources was not reported; it is tried again", "error", err)
		}
		wait(ctx, start.Add(statusRound))
	}
}

// round reports each object once, in its phase.
func (r *reporter) round(ctx context.Context, registry sources.Registry, start time.Time) error {
	objects, err := r.lister.List(labels.Everything())
	if err != nil {
		return err
	}
	var phases [statusPhases][]cache.ObjectName
	for _, o := range objects {
		phase := maphash.String(r.seed, string(o.UID)) % statusPhases
		phases[phase] = append(phases[phase], nameOf(o))
	}
	var problems []error
	for i, names := range phases {
		if len(names) == 0 {
			continue
		}
		wait(ctx, start.Add(time.Duration(i)*statusInterval/statusPhases))
		for _, name := range names {
			if err := ctx.Err(); err != nil {
				return err
			}
			err := r.report(ctx, registry, name)
			switch {
			case err == nil:
			case errors.As(err, new(apierrors.APIStatus)), r.pauses(name.Namespace):
				problems = append(problems, err)
			default:
				return err // the API server does not answer: the rest of the round would fail too
			}
		}
	}
	if len(problems) > 1 {
		return fmt.Errorf("%w; and %d more", problems[0], len(problems)-1)
	}
	return errors.Join(problems...)
}

// report writes the object's counts, if its status differs.
func (r *reporter) report(ctx context.Context, registry sources.Registry, name cache.ObjectName) error {
	o, err := find(r.lister, name)
	if o == nil {
		return err
	}
	counts, ok := registry.Counts(string(o.UID))
	p, known := r.promptReport(o, registry)
	if !ok || !known { // a source that was never in force may be refused
		return r.reportPromptly(ctx, registry, name)
	}
	if isReported(&o.Status, &counts, &p) || time.Since(r.sent[o.UID]) < statusInterval || r.pauses(name.Namespace) {
		return nil
	}
	if err := r.limit.Wait(ctx); err != nil {
		return err
	}
	r.sent[o.UID] = time.Now()
	err = r.write(ctx, name, statusPatch(&counts, p.version(o), p.patch(&o.Status)))
	if apierrors.IsConflict(err) {
		r.changed(name)
		return nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("cluster: source %s: %w", name, err)
	}
	return nil
}

// write patches the object, and makes its namespace pause if that hangs.
func (r *reporter) write(ctx context.Context, name cache.ObjectName, patch []byte) error {
	limited, cancel := context.WithTimeout(ctx, kube.CallTimeout)
	defer cancel()
	began := time.Now()
	err := r.patch(limited, name, patch)
	if now := time.Now(); err != nil && ctx.Err() == nil && now.Sub(began) >= slowRefusal {
		r.mu.Lock()
		r.hung[name.Namespace] = now.Add(hungPause)
		r.mu.Unlock()
	}
	return err
}

// pauses reports that the patches of a namespace hang. The next round after the pause reports it.
func (r *reporter) pauses(namespace string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	until, ok := r.hung[namespace]
	if ok && !time.Now().Before(until) {
		delete(r.hung, namespace)
		return false
	}
	return ok
}

// isReported reports whether a status has these counts, and the rest.
func isReported(s *v1alpha1.RescheduleSourceStatus, c *sources.Counts, p *promptReport) bool {
	same := func(have *int64, n int64) bool { return have != nil && *have == n }
	return same(s.Pending, c.Pending) && same(s.InFlight, c.InFlight) && same(s.Retrying, c.Retrying) &&
		s.NextDueAt.Equal(nextDueAt(c.NextDueAt)) && s.OldestDueAt.Equal(oldestDueAt(c.OldestDueAt)) &&
		s.Deliveries != nil && *s.Deliveries == deliveriesOf(c) &&
		equality.Semantic.DeepEqual(s.Watch, p.watch) && equality.Semantic.DeepEqual(s.Watched, p.watched) &&
		s.Refused == p.refused && isWorkloadReported(s.Scale, p.workload)
}

// deliveriesOf is what the status says of deliveries.
func deliveriesOf(c *sources.Counts) v1alpha1.DeliveriesStatus {
	d := v1alpha1.DeliveriesStatus(c.Delivering)
	d.Message = printable.Line(d.Message)
	return d
}

// oldestDueAt converts an instant for the status: in seconds.
func oldestDueAt(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return &metav1.Time{Time: t.UTC().Truncate(time.Second)}
}

// nextDueAt converts an instant for the status: in seconds, rounded up like all due
// times, so that the key is due at that instant; nil for the zero time.
func nextDueAt(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	if whole := t.Truncate(time.Second); whole.Before(t) {
		t = whole.Add(time.Second)
	}
	return &metav1.Time{Time: t.UTC()}
}

// statusPatch always has the counts: null removes an instant. Of the rest it has what
// changed.
func statusPatch(c *sources.Counts, version patchedVersion, rest promptPatch) []byte {
	var patch struct {
		Metadata patchedVersion `json:"metadata,omitzero"`
		Status   struct {
			Pending     int64             `json:"pending"`
			NextDueAt   *metav1.Time      `json:"nextDueAt"`
			OldestDueAt *metav1.Time      `json:"oldestDueAt"`
			InFlight    int64             `json:"inFlight"`
			Retrying    int64             `json:"retrying"`
			Deliveries  map[string]string `json:"deliveries"`
			promptPatch
		} `json:"status"`
	}
	patch.Metadata = version
	s := &patch.Status
	s.Pending, s.InFlight, s.Retrying = c.Pending, c.InFlight, c.Retrying
	s.NextDueAt, s.OldestDueAt = nextDueAt(c.NextDueAt), oldestDueAt(c.OldestDueAt)
	d := deliveriesOf(c)
	// Each of them, so that the patch replaces an older message by none.
	s.Deliveries = map[string]string{"status": d.Status, "reason": d.Reason, "message": d.Message}
	s.promptPatch = rest
	return marshal(patch)
}

func marshal(patch any) []byte {
	raw, err := json.Marshal(patch)
	if err != nil { // it has numbers, texts and an instant
		panic(err)
	}
	return raw
}

// forget drops reports that are no longer recent.
func (r *reporter) forget(now time.Time) {
	for uid, at := range r.sent {
		if now.Sub(at) >= statusInterval {
			delete(r.sent, uid)
		}
	}
}

// wait returns at the instant, or when ctx ends.
func wait(ctx context.Context, until time.Time) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
