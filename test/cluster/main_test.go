package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

// server is the API server of all tests.
var server *kube.Server

// scratch is a directory of all tests, which stays when one fails.
var scratch string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	dir, err := os.MkdirTemp("", "reschedule-cluster-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	scratch = dir
	if err := environment(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := harness.Main(m, func(string) (func() error, error) {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Minute) // a cold build among it
		defer cancel()
		var err error
		if server, err = kube.Start(ctx, dir); err != nil {
			return nil, err
		}
		if err := install(ctx); err != nil {
			return nil, errors.Join(err, server.Stop(ctx))
		}
		return func() error {
			started.stop()
			return server.Stop(context.Background())
		}, nil
	})
	if code != 0 {
		fmt.Fprintln(os.Stderr, "logs are kept in", dir)
		return code
	}
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// install is what the cluster's administrator does.
func install(ctx context.Context) error {
	if err := server.InstallEventing(ctx); err != nil {
		return err
	}
	if err := server.ApplyDir(ctx, "../../config"); err != nil {
		return err
	}
	return server.AggregateRoles(ctx)
}
