package adapter

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A standalone adapter watches nothing: it says so, and counts nothing.
func TestResync_Standalone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "sources.yaml")
	if err := os.WriteFile(file, []byte(oneSource), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	address, ended := make(chan string, 1), make(chan error, 1)
	cfg := Config{SourcesFile: file, DataDir: filepath.Join(dir, "data"), Listen: "127.0.0.1:0", AdminListen: "127.0.0.1:0",
		Fatal: func(err error) { t.Errorf("fatal: %v", err) }}
	go func() {
		ended <- Run(ctx, cfg, nil, func(a *Adapter) { address <- "http://" + a.Addr() + "/ns/a" })
	}()
	at := <-address
	answer, err := http.Post(at+"/resync", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusPreconditionFailed || !strings.Contains(string(body), "spec.watch") {
		t.Errorf("%d %s %v", answer.StatusCode, body, err)
	}
	if text := get(t, at); !strings.Contains(text, `"watched":0`) {
		t.Error(text)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
