package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	restate "github.com/restatedev/sdk-go"
	"github.com/restatedev/sdk-go/server"
)

// restateSends is one restate-server, and a process with a virtual object: delayed calls of its one handler. A client
// remembers the invocation of each key, cancels it and makes another call.
var restateSends = &peer{
	name:     "Restate, delayed calls",
	settings: "defaults, one node: its log is synced",
	version: func() (string, error) {
		if os.Getenv("RESTATE_SERVER") == "" {
			return "", errors.New("RESTATE_SERVER does not name its server, which the npm package @restatedev/restate-server has")
		}
		return programVersion("restate-server", os.Getenv("RESTATE_SERVER"))
	},
	start: func(h *host) error {
		if err := h.serve("restate-object", h.addr("object"), h.sink); err != nil {
			return err
		}
		_, port, _ := strings.Cut(h.addr("fabric"), ":")
		cmd := exec.Command(os.Getenv("RESTATE_SERVER"), "--node-name", "bench", "--base-dir", filepath.Join(h.dir, "data"),
			"--listen-mode", "tcp", "--bind-ip", "127.0.0.1", "--bind-port", port, "--no-logo")
		cmd.Env = append(os.Environ(), "RESTATE_INGRESS__BIND_ADDRESS="+h.addr("ingress"), "RESTATE_ADMIN__BIND_ADDRESS="+h.addr("admin"), "RESTATE_DISABLE_TELEMETRY=true")
		if err := h.run(cmd); err != nil {
			return err
		}
		admin, ingress := newCaller(h.addr("admin")), newCaller(h.addr("ingress"))
		return ready("Restate", func() bool {
			if _, err := admin.call(http.MethodGet, "/health", nil); err != nil {
				return false
			}
			if h.fresh {
				if _, err := admin.call(http.MethodPost, "/deployments", fmt.Appendf(nil, `{"uri":"http://%s"}`, h.addr("object"))); err != nil {
					return false
				}
			}
			_, err := ingress.call(http.MethodPost, "/Timer/probe/run/send?delay=1d", []byte(`""`))
			return err == nil
		})
	},
	connect: func(h *host) (client, error) {
		if h.state == nil {
			h.state = new(sync.Map)
		}
		return &restateClient{newCaller(h.addr("ingress")), newCaller(h.addr("admin")), h.state.(*sync.Map)}, nil
	},
}

type restateClient struct {
	ingress, admin *caller
	invocations    *sync.Map // key to its newest invocation
}

func (c *restateClient) schedule(ctx context.Context, key string, at time.Time, data string) error {
	if err := c.cancel(ctx, key); err != nil {
		return err
	}
	path := "/Timer/" + escaped(key) + "/run/send"
	if wait := time.Until(at); wait > 0 {
		path += fmt.Sprintf("?delay=%dms", wait.Milliseconds()+1)
	}
	answer, err := c.ingress.call(http.MethodPost, path, []byte(`"`+data+`"`))
	if err != nil {
		return err
	}
	var sent struct{ InvocationID string }
	err = json.Unmarshal(answer, &sent)
	c.invocations.Store(key, sent.InvocationID)
	return err
}

func (c *restateClient) cancel(_ context.Context, key string) error {
	id, ok := c.invocations.Load(key)
	if !ok {
		return nil
	}
	_, err := c.admin.call(http.MethodPatch, "/invocations/"+id.(string)+"/cancel", nil)
	if status := c.admin.response.StatusCode(); status == http.StatusConflict || status == http.StatusNotFound {
		err = nil // it is completed
	}
	return err
}

func (c *restateClient) close() {
	c.ingress.close()
	c.admin.close()
}

func restateObject(args []string) error {
	addr, sink := args[0], args[1]
	d := newDeliverer(sink)
	run := func(ctx restate.ObjectContext, data string) (restate.Void, error) {
		return restate.Void{}, d.deliver(ctx, restate.Key(ctx), []byte(data))
	}
	return server.NewRestate().Bind(restate.NewObject("Timer").Handler("run", restate.NewObjectHandler(run))).Start(context.Background(), addr)
}
