// Command cluster runs an API server with this project installed in it, its controller
// and its adapter, for tests that are not in Go. It prints one line of JSON when all of
// them are ready, and ends when its standard input does. With -build it only builds the
// API server and etcd, which takes minutes the first time: more than a test waits.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
	"github.com/reschedule-dev/reschedule/test/internal/kube"
)

const administrator = "administrator"

// ready is what is printed.
type ready struct {
	Kubeconfig string `json:"kubeconfig"` // of an administrator
	Adapter    string `json:"adapter"`    // where sources have their paths
}

func main() {
	build := flag.Bool("build", false, "build the API server and etcd, and end")
	flag.Parse()
	if *build {
		if _, err := kube.Assets(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	dir, err := os.MkdirTemp("", "reschedule-cluster-")
	if err == nil {
		err = errors.Join(run(context.Background(), dir), os.RemoveAll(dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) (err error) {
	server, err := kube.Start(ctx, dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop(ctx)) }()
	if err := install(ctx, server); err != nil {
		return err
	}
	configs := map[string]string{}
	for _, account := range []string{"reschedule-controller", "reschedule-adapter", administrator} {
		if configs[account], err = server.Kubeconfig(ctx, kube.SystemNamespace, account); err != nil {
			return err
		}
	}
	if err := errors.Join(os.Setenv("SYSTEM_NAMESPACE", kube.SystemNamespace), os.Setenv("POD_NAME", "reschedule-adapter-0")); err != nil {
		return err
	}
	controller, err := kube.Launch(filepath.Join(dir, "controller.log"), []string{
		"CONFIG_LOGGING_NAME=config-logging", "CONFIG_OBSERVABILITY_NAME=config-observability", "CONFIG_LEADERELECTION_NAME=config-leader-election",
		"PROFILING_PORT=0",
	}, os.Getenv("CONTROLLER_BINARY"), "-kubeconfig", configs["reschedule-controller"])
	if err != nil {
		return err
	}
	defer controller.Kill()
	adapter, err := harness.Launch("--kubeconfig", configs["reschedule-adapter"], "--data-dir", filepath.Join(dir, "data"),
		"--listen", "127.0.0.1:0", "--admin-listen", "127.0.0.1:0", "--tls-listen", "127.0.0.1:0", "--tls-dir", filepath.Join(dir, "tls"))
	if err != nil {
		return err
	}
	defer adapter.Kill()
	node, end := context.WithCancel(ctx)
	defer end()
	go server.RunNode(node, kube.SystemNamespace)
	if err := controller.Until(ctx, answers); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(ready{Kubeconfig: configs[administrator], Adapter: adapter.URL}); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// install is what the cluster's administrator does. It applies the config/ of this
// checkout.
func install(ctx context.Context, server *kube.Server) error {
	root, err := kube.Checkout(ctx)
	if err != nil {
		return err
	}
	if err := server.InstallEventing(ctx); err != nil {
		return err
	}
	if err := server.ApplyDir(ctx, filepath.Join(root, "config")); err != nil {
		return err
	}
	if err := server.AggregateRoles(ctx); err != nil {
		return err
	}
	meta := metav1.ObjectMeta{Name: administrator}
	if _, err := server.Client.CoreV1().ServiceAccounts(kube.SystemNamespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err = server.Client.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: kube.SystemNamespace, Name: administrator}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, metav1.CreateOptions{})
	return err
}

// answers is nil when the controller answers, on a port that has no setting.
func answers(ctx context.Context) error {
	r, err := harness.Do(ctx, http.MethodGet, "http://127.0.0.1:8080/readiness", "")
	if err == nil && r.Status != http.StatusOK {
		err = fmt.Errorf("the controller: status %d", r.Status)
	}
	return err
}
