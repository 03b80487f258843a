package etcdlog

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/etcdserver/api/membership"
)

// appliedTime is how long a start waits for members that do not know of the replacement yet. It takes milliseconds, and
// longer on busy machines.
const appliedTime = 5 * time.Second

// awaitApplied waits until each other member lists this one as a learner, or until ctx ends. One of them has added it, and
// another may not have applied this yet. etcd takes the list from the first that answers: it does not start where this
// member is missing, and starts as the removed member where that is still there.
func (o *Options) awaitApplied(ctx context.Context, info transport.TLSInfo) error {
	calls, err := transport.NewTransport(info, time.Second)
	if err != nil {
		return err
	}
	defer calls.CloseIdleConnections()
	for name := range o.Peers {
		for name != o.Member && !o.isLearnerAt(ctx, calls, name) {
			select {
			case <-ctx.Done():
				return nil // etcd says what is wrong
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

// isLearnerAt reports whether the other member answers, and lists this one as a learner.
func (o *Options) isLearnerAt(ctx context.Context, calls http.RoundTripper, other string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	call, err := http.NewRequestWithContext(ctx, http.MethodGet, o.url(other)+"/members", nil)
	if err != nil {
		return false
	}
	answer, err := calls.RoundTrip(call)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	var members []membership.Member
	err = json.NewDecoder(io.LimitReader(answer.Body, 64<<10)).Decode(&members)
	return err == nil && slices.ContainsFunc(members, func(m membership.Member) bool {
		return m.IsLearner && slices.Contains(m.PeerURLs, o.url(o.Member))
	})
}
