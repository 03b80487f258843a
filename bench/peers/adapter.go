package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const source = `apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: bench, namespace: default}
spec:
  sink: {uri: "http://%s/"}
`

var thisAdapter = &peer{
	name:     "RescheduleSource",
	settings: "defaults",
	version: func() (string, error) {
		if os.Getenv("ADAPTER_BINARY") == "" {
			return "", errors.New("ADAPTER_BINARY is not set: run it with make")
		}
		out, err := exec.Command("git", "describe", "--always", "--dirty").Output()
		return "commit " + strings.TrimSpace(string(out)), err
	},
	start: func(h *host) error {
		file, data, admin := filepath.Join(h.dir, "sources.yaml"), filepath.Join(h.dir, "data"), h.addr("admin")
		if err := errors.Join(os.MkdirAll(data, 0o755), os.WriteFile(file, fmt.Appendf(nil, source, h.sink), 0o644)); err != nil {
			return err
		}
		err := h.run(exec.Command(os.Getenv("ADAPTER_BINARY"), "--standalone", "--sources", file, "--data-dir", data, "--listen", h.addr("api"), "--admin-listen", admin))
		return errors.Join(err, ready("the adapter", func() bool { return answers("http://" + admin + "/readyz") }))
	},
	connect: func(h *host) (client, error) { return &adapterClient{newCaller(h.addr("api"))}, nil },
}

type adapterClient struct{ *caller }

func (c *adapterClient) path(key string) string { return "/default/bench/schedules/" + escaped(key) }

func (c *adapterClient) schedule(_ context.Context, key string, at time.Time, data string) error {
	body := fmt.Appendf(nil, `{"dueAt":"%s","event":{"type":"dev.example.bench","data":"%s"}}`, at.UTC().Format(time.RFC3339Nano), data)
	_, err := c.call(http.MethodPut, c.path(key), body)
	return err
}

func (c *adapterClient) cancel(_ context.Context, key string) error {
	_, err := c.call(http.MethodDelete, c.path(key), nil)
	return err
}
