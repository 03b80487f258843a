package controller

import (
	"net"
	"net/http"

	"github.com/reschedule-dev/reschedule/sdk"
)

// Option is an option of [NewManager] or [Handler]. Handler ignores WithCachedReads and
// WithListener.
type Option func(*options)

type options struct {
	client      *sdk.Client
	cachedReads bool
	listener    net.Listener
	concurrency int
	replicas    bool
	audience    *string
	subjects    []string
	// verify returns nil for a request that is admitted. If verify itself is nil, every
	// request is.
	verify func(*http.Request) error
}

// WithAudience takes events only with a token for this audience, which is the
// sink.audience of the RescheduleSource, and of one of the subjects. Without subjects
// these are the identities of all RescheduleSources in the operator's own namespace. A
// subject is the subject of a token:
//
//	system:serviceaccount:NAMESPACE:ACCOUNT
//
// where ACCOUNT is status.auth.serviceAccountName of a source. Tokens are checked with
// the keys of the API server, which every service account may read. An event without a
// valid token is answered with 401, and an event of another subject with 403, before its
// body is read. While there are no keys the answer is 503, so that the event comes again.
//
// Without this option the operator takes events from every sender that reaches its port.
// So it remembers nothing about them: predicates that compare versions let every update
// pass, as with [WithReplicas], and the error of a run is in the operator's log only.
func WithAudience(audience string, subjects ...string) Option {
	return func(o *options) { o.audience, o.subjects = &audience, subjects }
}

// WithClient lets the operator schedule requests itself: a request that an event of
// another key leads to gets a delivery of its own, under its own key. Requests that a
// source without events enqueues need it.
func WithClient(c *sdk.Client) Option { return func(o *options) { o.client = c } }

// WithCachedReads reads through the cache that a manager usually has. The cache has the
// watched kinds before events are served, and other kinds when they are read first. It
// ends with the process. Field indexes need it.
func WithCachedReads() Option { return func(o *options) { o.cachedReads = true } }

// WithReplicas is for a service that may have more than one replica at a time, and for an
// operator whose keys other programs schedule too. Then nothing is remembered, because
// another replica may have seen an object since: predicates that compare versions let
// every update pass. The context of a run ends when no delivery waits for it any more:
// another replica may have the event by then.
func WithReplicas() Option { return func(o *options) { o.replicas = true } }

// WithListener serves on a listener instead of $PORT, and closes it at the end.
func WithListener(l net.Listener) Option { return func(o *options) { o.listener = l } }

// WithConcurrency is how many requests [Handler] reconciles at once, by default 1. A
// manager's controllers have MaxConcurrentReconciles.
func WithConcurrency(n int) Option { return func(o *options) { o.concurrency = n } }
