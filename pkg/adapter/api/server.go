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
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler:                      h,
		ReadHeaderTimeout:            10 * time.Second,
		ReadTimeout:                  time.Minute,
		WriteTimeout:                 writeTimeout,
		IdleTimeout:                  2 * time.Minute,
		MaxHeaderBytes:               64 << 10,
		DisableGeneralOptionsHandler: true, // OPTIONS * is answered as any unknown path
	}
}
