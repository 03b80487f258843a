package listener

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"time"
)

// Endpoint is an address that is listened on, and the server of its connections.
type Endpoint struct {
	server   *http.Server
	listener net.Listener
	log      *slog.Logger
}

// Open listens for a server, within the limits of the connections. What connects waits
// until [Endpoint.Serve] is called.
func (c *Connections) Open(address string, server *http.Server) (*Endpoint, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	return c.Over(l, server), nil
}

// Over is Open with a listener that listens already.
func (c *Connections) Over(l net.Listener, server *http.Server) *Endpoint {
	server.ErrorLog = slog.NewLogLogger(c.cfg.Log.Handler(), slog.LevelDebug)
	server.ConnContext = c.Context
	server.Handler = Handler(c.logPanics(server.Handler))
	return &Endpoint{server, c.Listen(l), c.cfg.Log}
}

// logPanics is h, whose panics are in the log as errors, one a second at most: a client may be able to repeat its
// call. A panic ends its connection: its client only sees that no answer came, and the server's own line is among the
// lines about broken connections, which clients cause.
func (c *Connections) logPanics(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			broken := recover()
			if broken == nil {
				return
			}
			if err, _ := broken.(error); !errors.Is(err, http.ErrAbortHandler) { // a handler ends its connection by it
				c.logPanic(r, broken)
			}
			panic(http.ErrAbortHandler)
		}()
		h.ServeHTTP(w, r)
	})
}

// logPanic is called while the handler panics: the stack is the handler's.
func (c *Connections) logPanic(r *http.Request, broken any) {
	leftOut, ok := c.panics.Next(time.Now())
	if !ok {
		return
	}
	path := r.URL.Path[:min(len(r.URL.Path), loggedPath)]
	c.cfg.Log.Error("a call was cut off by a defect of this program: please report this line", "address", c.cfg.Name, "method", r.Method, "path", path, "panic", broken, "stack", string(debug.Stack()), "linesLeftOut", leftOut)
}

// loggedPath bounds the bytes of a path in the log: a client chooses it.
const loggedPath = 256

// Addr is the address that is listened on.
func (e *Endpoint) Addr() net.Addr { return e.listener.Addr() }

// Serve answers until the server is shut down, over TLS if the server has a configuration
// for it.
func (e *Endpoint) Serve() {
	serve := e.server.Serve
	if e.server.TLSConfig != nil {
		serve = func(l net.Listener) error { return e.server.ServeTLS(l, "", "") }
	}
	if err := serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
		e.log.Error("a server ended", "address", e.Addr(), "error", err)
	}
}

// Shutdown lets requests under way end until ctx does; what hangs is cut off then.
func (e *Endpoint) Shutdown(ctx context.Context) {
	if err := e.server.Shutdown(ctx); err != nil {
		e.Close()
	}
}

// Close cuts off what is under way.
func (e *Endpoint) Close() { _ = e.server.Close() }
