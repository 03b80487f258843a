package adapter

import (
	"io"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// administer serves probes and metrics, without schedules and secrets.
func (a *Adapter) administer() error {
	mux := http.NewServeMux()
	say := func(w http.ResponseWriter, code int, text string) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text+"\n") // a prober that went away
	}
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if a.ready.Load() && a.host.Ready() {
			say(w, http.StatusOK, "ok")
		} else {
			say(w, http.StatusServiceUnavailable, "not ready")
		}
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(newSharedGatherer(a.telemetry.registry), promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	for path, profile := range map[string]http.HandlerFunc{"": pprof.Index, "profile": pprof.Profile, "trace": pprof.Trace, "symbol": pprof.Symbol} {
		mux.HandleFunc("GET /debug/pprof/"+path, func(w http.ResponseWriter, r *http.Request) {
			if !a.profiling.Load() {
				http.NotFound(w, r)
				return
			}
			profile(w, r)
		})
	}
	// A client that does not read its answer holds a slot for metrics for a bounded time;
	// a profile has its own time on top.
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 8 << 10}
	var err error
	if a.admin, err = a.listen(a.cfg.AdminListen, server, a.connections.admin); err == nil {
		a.answer(a.admin)
	}
	return err
}
