package etcdlog

import (
	"context"
	"strconv"

	"go.etcd.io/etcd/client/pkg/v3/transport"
)

// Ended is closed when etcd has ended, which Close does not wait for.
func (s *Server) Ended() <-chan struct{} { return s.ended }

// LogOf returns the log of a case.
func (s *Server) LogOf(n int) *Log { return s.log(strconv.Itoa(n)) }

// AwaitApplied waits until the other members know of a replacement, without TLS.
func AwaitApplied(ctx context.Context, o Options) error {
	return o.awaitApplied(ctx, transport.TLSInfo{})
}
