// Command webapp is what a ConfigWatcher is for: a program that reads its
// configuration when it starts, and never again.
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	greeting := []byte(os.Getenv("GREETING") + "\n")
	server := http.Server{Addr: ":8080", ReadHeaderTimeout: 10 * time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Write(greeting)
	})}
	go func() { log.Fatal(server.ListenAndServe()) }()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	<-ctx.Done()
}
