// Command expiry is one operator in two forms: it deletes ConfigMaps that carry
// the label expires-after, such as expires-after=20m, when they are that old.
//
// Reconcile (reconcile.go) is the operator. `expiry resident` calls it the way
// every operator does, from an informer and a work queue in memory, and so has
// to run all the time (resident.go). `expiry serverless` calls it from an HTTP
// handler behind a RescheduleSource, and runs only while there is something to
// do (serverless.go). docs/scale-to-zero.md says what that saves.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	forms := map[string]func(context.Context, kubernetes.Interface) error{"resident": resident, "serverless": serverless}
	var run func(context.Context, kubernetes.Interface) error
	if len(os.Args) == 2 {
		run = forms[os.Args[1]]
	}
	if run == nil {
		log.Fatal("expiry: say which form is to run: expiry resident, or expiry serverless")
	}
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatalf("expiry: this runs in a pod: %v", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatalf("expiry: %v", err)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer cancel()
	if err := run(ctx, client); err != nil {
		log.Fatalf("expiry: %v", err)
	}
}
