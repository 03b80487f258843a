package main

import (
	"cmp"
	"context"
	"log"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"
)

// serverless runs Reconcile for each delivery of a RescheduleSource, which keeps the keys
// and their times when this process ends. It reads each object when it is due: there is no
// cache to fill.
func serverless(ctx context.Context, of kind) error {
	listener, err := net.Listen("tcp", ":"+cmp.Or(os.Getenv("PORT"), "8080")) // PORT is set by Knative
	if err != nil {
		return err
	}
	server := http.Server{Handler: expiry{of}, ReadHeaderTimeout: 10 * time.Second}
	log.Print(ready)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done(): // scaled to zero: the deliveries in flight may finish
		return server.Shutdown(context.Background())
	}
}

// ServeHTTP takes a delivery and answers with its outcome.
func (e expiry) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	key, err := url.PathUnescape(r.Header.Get("Ce-Reschedulekey")) // headers of CloudEvents are percent-encoded
	if err != nil || key == "" {
		http.Error(rw, "this is not a delivery of a RescheduleSource", http.StatusBadRequest)
		return
	}
	again, err := e.Reconcile(r.Context(), key)
	log.Printf("key=%s again=%s err=%v", key, again, err)
	switch {
	case err != nil:
		http.Error(rw, err.Error(), http.StatusServiceUnavailable)
	case again > 0:
		rw.Header().Set("Reschedule-After", again.String())
		rw.WriteHeader(http.StatusNoContent)
	default:
		rw.WriteHeader(http.StatusNoContent)
	}
}
