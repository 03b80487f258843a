package api

import (
	"net/http"
	"time"
)

// writeTimeout is how long a request may take, with its answer.
const writeTimeout = 2 * time.Minute

// Server returns a server for h with the bounds that a public port needs; the
// caller listens and shuts down.
//
// A connection that sends nothing, or half a request, ends after these: 10 s for
// the headers, 60 s for a whole request (16 MiB at 280 kB/s), and 2 minutes
// from its headers to the last byte of the answer, so that a client which
// does not read holds its answer no longer. An idle connection is kept for 2 minutes, longer than the 90 s after
// which Go's own client gives one up: who closes first must not be the server,
// or a request under way meets a closed connection.
// Headers may have 64 KiB: a CloudEvent in binary mode has its attributes there.
// A connection of HTTP/2 may have 16 requests under way, whose bodies share a
// window of 64 KiB: what arrives before a handler reads it is in no budget.
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       time.Minute,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       2 * time.Minute,
		MaxHeaderBytes:    64 << 10,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          16,
			MaxReceiveBufferPerConnection: 64 << 10,
			MaxReceiveBufferPerStream:     64 << 10,
			MaxReadFrameSize:              16 << 10,
			SendPingTimeout:               30 * time.Second, // a peer that is gone holds its streams no longer
			PingTimeout:                   15 * time.Second,
		},
		DisableGeneralOptionsHandler: true, // OPTIONS * is answered as any unknown path
	}
}
