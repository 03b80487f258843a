package controller

import (
	"net"
	"net/http"

	"github.com/reschedule-dev/reschedule/sdk"
)

// Option is a choice that [NewManager] or [Handler] is given. WithCachedReads,
// WithResync and WithListener say nothing to Handler.
type Option func(*options)

type options struct {
	client      *sdk.Client
	cachedReads bool
	listener    net.Listener
	concurrency int
	replicas    bool
	resync      *Resync
	audience    *string
	subjects    []string
	// verify is nil for a request whose sender may send events. Where verify itself is
	// nil, the door is open.
	verify func(*http.Request) error
}

// WithAudience takes events only with a token for this audience, which is that of
// sink.audience of the RescheduleSource, and of one of the subjects. Without
// subjects these are the identities of all RescheduleSources of the operator's
// own namespace. A subject is as tokens have it:
//
//	system:serviceaccount:NAMESPACE:ACCOUNT
//
// where ACCOUNT is status.auth.serviceAccountName of a source. Tokens are checked
// with the keys of the API server, which every service account may read. What has
// no good token is answered with 401, and another subject with 403, before anything
// is read of it; while there are no keys the answer is 503, so that the event comes
// again.
//
// Without this option the operator takes events of anyone who reaches its port. So
// it remembers nothing of them: predicates that look for changes let every update
// pass, as with [WithReplicas], and why a run failed is in the operator's log only.
func WithAudience(audience string, subjects ...string) Option {
	return func(o *options) { o.audience, o.subjects = &audience, subjects }
}

// WithClient lets the operator schedule requests itself: a request that an event of
// another key leads to gets a delivery of its own, under its own key. WithResync needs
// it, and so do requests that a source without events enqueues.
func WithClient(c *sdk.Client) Option { return func(o *options) { o.client = c } }

// WithCachedReads reads through the cache that a manager usually has. It is
// filled with what is watched before events are served, with other kinds when
// they are read first, and ends with the process. Field indexes need it.
func WithCachedReads() Option { return func(o *options) { o.cachedReads = true } }

// WithResync lists all objects for every new revision of the service, and now
// and then: those that a resident operator would have in its cache, as
// ctrl.Options.Cache says it. It needs [WithClient].
func WithResync(r Resync) Option { return func(o *options) { o.resync = &r } }

// WithReplicas is for a service that may have more than one replica at a time.
// What a replica remembers of an object is not true any more when another one
// has seen it since, so that nothing is remembered: predicates that look for
// changes let every update pass. So it is when others than the operator schedule
// its keys. The context of a run ends when nobody waits for its answer any more:
// another replica may have the event by then.
func WithReplicas() Option { return func(o *options) { o.replicas = true } }

// WithListener serves there instead of on $PORT. The listener is closed in the
// end.
func WithListener(l net.Listener) Option { return func(o *options) { o.listener = l } }

// WithConcurrency is how many requests [Handler] reconciles at once, 1 by
// default. A manager's controllers have MaxConcurrentReconciles.
func WithConcurrency(n int) Option { return func(o *options) { o.concurrency = n } }
