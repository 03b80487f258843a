package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/diagridio/go-etcd-cron/api"
	"github.com/diagridio/go-etcd-cron/cron"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// daprEngine is the engine of Dapr's scheduler, go-etcd-cron, on an etcd in its process, as Dapr has it. Two HTTP calls
// stand for the scheduler's gRPC, and a POST to the sink for its stream to a sidecar.
var daprEngine = &peer{
	name:     "Dapr's scheduler engine",
	settings: "defaults, one replica on an embedded etcd, which syncs each write; failed jobs are retried each second; kills in 5 lanes side by side, each with 8 callers and 10 rounds; a key that is scheduled again is deleted first",
	notes: map[string]string{
		"lost":          "its client deletes a job before it schedules the key again, since this release does not start with a replaced job (fixed in v0.12.3). A key that a kill took in between is not counted.",
		"twice at once": "one key in ten is scheduled again while it runs. Its client deletes the job first, and the new job may run next to the old run.",
	},
	lanes: 5, // a start waits for the lease of the process that was killed: 20 s
	version: func() (string, error) {
		engine, err := moduleVersion("github.com/diagridio/go-etcd-cron")
		if err != nil {
			return "", err
		}
		etcd, err := moduleVersion("go.etcd.io/etcd/server/v3")
		return "go-etcd-cron " + engine + ", etcd " + etcd, err
	},
	start: func(h *host) error {
		err := h.serve("dapr-engine", h.addr("api"), h.addr("clients"), h.addr("peers"), filepath.Join(h.dir, "data"), h.sink)
		return errors.Join(err, ready("the engine", func() bool { return answers("http://" + h.addr("api") + "/ready") }))
	},
	connect: func(h *host) (client, error) {
		if h.state == nil {
			h.state = new(sync.Map)
		}
		return &daprClient{newCaller(h.addr("api")), h.state.(*sync.Map)}, nil
	},
}

type daprClient struct {
	*caller
	known *sync.Map // keys that were scheduled
}

// A job's name may have no slash.
func (c *daprClient) path(key string) string { return "/jobs/" + strings.ReplaceAll(key, "/", ":") }

// schedule deletes an earlier job of the key first: with one that was replaced, v0.12.0 panics at each later start.
// Releases from v0.12.3 on do not.
func (c *daprClient) schedule(ctx context.Context, key string, at time.Time, data string) error {
	if _, again := c.known.LoadOrStore(key, true); again {
		if err := c.cancel(ctx, key); err != nil {
			return err
		}
	}
	_, err := c.call(http.MethodPut, c.path(key)+"?at="+at.UTC().Format(time.RFC3339Nano), []byte(data))
	return err
}

func (c *daprClient) cancel(_ context.Context, key string) error {
	_, err := c.call(http.MethodDelete, c.path(key), nil)
	return err
}

func daprServer(args []string) error {
	addr, clients, peers, dir, sink := args[0], args[1], args[2], args[3], args[4]
	ctx, config := context.Background(), embed.NewConfig()
	config.Dir, config.LogLevel = dir, "error"
	config.ListenClientUrls, config.AdvertiseClientUrls = httpURLs(clients), httpURLs(clients)
	config.ListenPeerUrls, config.AdvertisePeerUrls = httpURLs(peers), httpURLs(peers)
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		return err
	}
	<-etcd.Server.ReadyNotify()
	conn, err := clientv3.New(clientv3.Config{Endpoints: []string{clients}})
	if err != nil {
		return err
	}
	d, slots := newDeliverer(sink), make(chan struct{}, workers)
	engine, err := cron.New(cron.Options{Client: conn, Namespace: "bench", ID: "scheduler-0", TriggerFn: func(r *api.TriggerRequest, end func(*api.TriggerResponse)) {
		go func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			result := api.TriggerResponseResult_SUCCESS
			var data wrapperspb.StringValue
			if r.GetPayload().UnmarshalTo(&data) != nil || d.deliver(ctx, strings.ReplaceAll(r.GetName(), ":", "/"), []byte(data.GetValue())) != nil {
				result = api.TriggerResponseResult_FAILED
			}
			end(&api.TriggerResponse{Result: result})
		}()
	}})
	if err != nil {
		return err
	}
	http.HandleFunc("GET /ready", func(w http.ResponseWriter, _ *http.Request) {
		if !engine.IsElected() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	})
	http.HandleFunc("PUT /jobs/{name}", func(w http.ResponseWriter, r *http.Request) {
		at, data := r.FormValue("at"), new(anypb.Any)
		text, err := io.ReadAll(r.Body)
		err = errors.Join(err, data.MarshalFrom(wrapperspb.String(string(text))))
		answer(w, errors.Join(err, engine.Add(r.Context(), r.PathValue("name"), &api.Job{DueTime: &at, Payload: data, FailurePolicy: &api.FailurePolicy{
			Policy: &api.FailurePolicy_Constant{Constant: &api.FailurePolicyConstant{Interval: durationpb.New(time.Second)}},
		}})))
	})
	http.HandleFunc("DELETE /jobs/{name}", func(w http.ResponseWriter, r *http.Request) {
		answer(w, engine.Delete(r.Context(), r.PathValue("name")))
	})
	failed := make(chan error, 2)
	go func() { failed <- http.ListenAndServe(addr, nil) }() //nolint:gosec // its only callers are on this machine
	go func() { failed <- engine.Run(ctx) }()
	return fmt.Errorf("the engine has ended: %w", <-failed)
}

func answer(w http.ResponseWriter, err error) {
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

func httpURLs(addr string) []url.URL { return []url.URL{{Scheme: "http", Host: addr}} }
