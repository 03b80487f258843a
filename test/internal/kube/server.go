package kube

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// Server is a running kube-apiserver with its etcd.
type Server struct {
	*Cluster

	dir       string // of everything it keeps
	assets    string
	pki       *pki
	token     string // the administrator's
	port      int
	etcd, api *Process
	etcdURL   string
}

// Start builds what is not built yet and starts a server that keeps its data,
// keys and logs in dir.
func Start(ctx context.Context, dir string) (*Server, error) {
	bin, err := Assets(ctx)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, assets: bin, token: rand.Text()}
	if s.pki, err = newPKI(dir); err != nil {
		return nil, fmt.Errorf("kube: keys and certificates: %w", err)
	}
	tokens := fmt.Sprintf("%s,admin,admin,system:masters\n", s.token)
	if err := os.WriteFile(s.pki.path("tokens.csv"), []byte(tokens), 0o600); err != nil {
		return nil, fmt.Errorf("kube: %w", err)
	}
	if s.port, err = harness.FreePort(); err != nil {
		return nil, err
	}
	if s.Cluster, err = Connect(&rest.Config{
		Host: "https://127.0.0.1:" + strconv.Itoa(s.port), BearerToken: s.token,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.pki.ca},
	}); err != nil {
		return nil, fmt.Errorf("kube: clients: %w", err)
	}
	if err := s.startEtcd(ctx); err != nil {
		return nil, errors.Join(err, s.Stop(ctx))
	}
	if err := s.StartAPI(ctx); err != nil {
		return nil, errors.Join(err, s.Stop(ctx))
	}
	return s, nil
}

// lazyCollector makes etcd and kube-apiserver collect garbage less often. A fifth of kube-apiserver's processor time was
// garbage collection, and its heap is small here.
var lazyCollector = []string{"GOGC=400"}

func (s *Server) startEtcd(ctx context.Context) error {
	client, err := harness.FreePort()
	if err != nil {
		return err
	}
	peer, err := harness.FreePort()
	if err != nil {
		return err
	}
	s.etcdURL = "http://127.0.0.1:" + strconv.Itoa(client)
	peerURL := "http://127.0.0.1:" + strconv.Itoa(peer)
	s.etcd, err = Launch(filepath.Join(s.dir, "etcd.log"), lazyCollector, filepath.Join(s.assets, "etcd"),
		"--data-dir", s.etcdDir(), "--unsafe-no-fsync", "--log-level", "warn",
		"--listen-client-urls", s.etcdURL, "--advertise-client-urls", s.etcdURL,
		"--listen-peer-urls", peerURL, "--initial-advertise-peer-urls", peerURL, "--initial-cluster", "default="+peerURL)
	if err != nil {
		return err
	}
	return s.etcd.Until(ctx, func(ctx context.Context) error { return get(ctx, http.DefaultClient, s.etcdURL+"/health") })
}

// KeepState copies what etcd has now into dir. Meanwhile etcd stands still, so what is copied is what kill -9 would leave.
func (s *Server) KeepState(dir string) error {
	if err := syscall.Kill(s.etcd.PID(), syscall.SIGSTOP); err != nil {
		return fmt.Errorf("kube: %w", err)
	}
	err := os.CopyFS(dir, os.DirFS(s.etcdDir()))
	return errors.Join(err, syscall.Kill(s.etcd.PID(), syscall.SIGCONT))
}

// PutBack makes a copy of KeepState the state of etcd, as an administrator does: the API server is restarted.
func (s *Server) PutBack(ctx context.Context, dir string) error {
	s.StopAPI()
	s.etcd.Kill()
	if err := os.RemoveAll(s.etcdDir()); err != nil {
		return fmt.Errorf("kube: %w", err)
	}
	if err := os.Rename(dir, s.etcdDir()); err != nil {
		return fmt.Errorf("kube: %w", err)
	}
	if err := s.startEtcd(ctx); err != nil {
		return err
	}
	return s.StartAPI(ctx)
}

// Advance makes the API server n versions older than the next change.
func (s *Server) Advance(ctx context.Context, n int) error {
	for range n {
		if err := s.askEtcd(ctx, "put", `{"key":"L3Rlc3Q="}`, &struct{}{}); err != nil { // /test
			return err
		}
	}
	return nil
}

func (s *Server) etcdDir() string { return filepath.Join(s.dir, "etcd") }

// StartAPI starts the API server after [Server.StopAPI], on the same port and
// with the same data, and returns when it is ready.
func (s *Server) StartAPI(ctx context.Context) error {
	var err error
	s.api, err = Launch(filepath.Join(s.dir, "kube-apiserver.log"), lazyCollector, filepath.Join(s.assets, "kube-apiserver"),
		"--etcd-servers", s.etcdURL, "--bind-address", "127.0.0.1", "--secure-port", strconv.Itoa(s.port),
		"--tls-cert-file", s.pki.path("apiserver.crt"), "--tls-private-key-file", s.pki.path("apiserver.key"),
		"--token-auth-file", s.pki.path("tokens.csv"), "--authorization-mode", "RBAC",
		"--service-account-issuer", Issuer,
		"--service-account-key-file", s.pki.path("sa.pub"), "--service-account-signing-key-file", s.pki.path("sa.key"),
		"--service-cluster-ip-range", serviceRange, "--endpoint-reconciler-type", "none", "--profiling=false")
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(s.Config)
	if err != nil {
		return fmt.Errorf("kube: %w", err)
	}
	return s.api.Until(ctx, func(ctx context.Context) error { return get(ctx, client, s.Config.Host+"/readyz") })
}

// StopAPI ends the API server and leaves its data.
func (s *Server) StopAPI() {
	// It has nothing to lose, and would wait for every watch to end.
	s.api.Kill()
}

// Compact has etcd forget all changes so far. A watch from before them gets 410 Gone once
// the API server has been restarted, which remembers the last ones by itself.
func (s *Server) Compact(ctx context.Context) error {
	var at struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := s.askEtcd(ctx, "range", `{"key":"AA=="}`, &at); err != nil {
		return err
	}
	return s.askEtcd(ctx, "compaction", fmt.Sprintf(`{"revision":%q,"physical":true}`, at.Header.Revision), &struct{}{})
}

func (s *Server) askEtcd(ctx context.Context, what, body string, answer any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.etcdURL+"/v3/kv/"+what, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("kube: etcd: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("kube: etcd: %s: %s", what, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(answer)
}

// Stop ends both. What they said is in the files of dir.
func (s *Server) Stop(ctx context.Context) error {
	if s.api != nil {
		s.StopAPI()
	}
	if s.etcd == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, Patience)
	defer cancel()
	return s.etcd.Terminate(ctx)
}

// Log is the end of what both said.
func (s *Server) Log() string { return s.etcd.Log() + "\n" + s.api.Log() }

func get(ctx context.Context, client *http.Client, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, resp.Status)
	}
	return nil
}
