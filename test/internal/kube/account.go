package kube

import (
	"context"
	"fmt"
	"path/filepath"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Issuer is the issuer of the server's ServiceAccount tokens, and their audience
// where none is asked for.
const Issuer = "https://kubernetes.default.svc"

// As is the config of a ServiceAccount.
func (s *Server) As(ctx context.Context, namespace, account string) (*rest.Config, error) {
	token, err := s.Token(ctx, namespace, account)
	if err != nil {
		return nil, err
	}
	c := rest.AnonymousClientConfig(s.Config)
	c.BearerToken = token
	c.QPS = -1
	return c, nil
}

// Kubeconfig writes the config of a ServiceAccount to a file, for a process,
// and returns its path.
func (s *Server) Kubeconfig(ctx context.Context, namespace, account string) (string, error) {
	c, err := s.As(ctx, namespace, account)
	if err != nil {
		return "", err
	}
	return s.kubeconfig(c, namespace+"-"+account)
}

// AdminKubeconfig is Kubeconfig for the administrator.
func (s *Server) AdminKubeconfig() (string, error) { return s.kubeconfig(s.Config, "admin") }

func (s *Server) kubeconfig(c *rest.Config, name string) (string, error) {
	file := filepath.Join(s.dir, name+".kubeconfig")
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: c.Host, CertificateAuthorityData: c.CAData}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: c.BearerToken}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return "", fmt.Errorf("kube: %w", err)
	}
	return file, nil
}
