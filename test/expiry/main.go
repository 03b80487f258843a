// Command expiry is the operator that bench/scaletozero measures, in two forms. It
// deletes ConfigMaps with the label expires-after, such as expires-after=20m, at that
// age. The variable RESOURCE names another kind.
//
// Reconcile (reconcile.go) is the operator. `expiry resident` calls it in the usual way,
// from an informer and a work queue in memory, and so must run all the time
// (resident.go). `expiry serverless` calls it from an HTTP handler behind a
// RescheduleSource, and has to run only while there is something to do (serverless.go).
// docs/scale-to-zero.md has what that saves.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/rest"
)

// ready is the line of the log by which bench/scaletozero knows that it takes work.
const ready = "ready"

func main() {
	forms := map[string]func(context.Context, kind) error{"resident": resident, "serverless": serverless}
	var run func(context.Context, kind) error
	if len(os.Args) == 2 {
		run = forms[os.Args[1]]
	}
	if run == nil {
		log.Fatal("expiry: name the form to run: expiry resident, or expiry serverless")
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatalf("expiry: this runs in a pod: %v", err)
	}
	of, err := kindOf(config)
	if err != nil {
		log.Fatalf("expiry: %v", err)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	if err := run(ctx, of); err != nil {
		log.Fatalf("expiry: %v", err)
	}
}
