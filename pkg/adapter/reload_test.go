package adapter

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

const oneSource = `apiVersion: sources.reschedule.dev/v1alpha1
kind: RescheduleSource
metadata: {name: a, namespace: ns}
spec: {sink: {uri: http://127.0.0.1:1}}
`

// A reload that hangs does not keep the adapter from ending.
func TestStop_IsHeardWhileAReloadHangs(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "sources.yaml")
	if err := os.WriteFile(file, []byte(oneSource), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	reload, ready, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	cfg := Config{SourcesFile: file, DataDir: filepath.Join(dir, "data"), Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0",
		Fatal: func(err error) { t.Errorf("fatal: %v", err) }}
	var metrics string
	go func() {
		ended <- Run(ctx, cfg, reload, func(a *Adapter) {
			metrics = "http://" + a.AdminAddr() + "/metrics"
			close(ready)
		})
	}()
	<-ready
	if text := get(t, metrics); !strings.Contains(text, "reschedule_storage_corrupt_total 0") {
		t.Error("there is no metric of corrupt places")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(file, 0o600); err != nil { // opening it waits for a writer
		t.Fatal(err)
	}
	reload <- struct{}{}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	w, err := os.OpenFile(file, os.O_WRONLY, 0) // the reload ends too
	if err != nil {
		t.Fatal(err)
	}
	w.Close()
}

func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
