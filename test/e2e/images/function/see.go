package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"
)

// account is where a pod has what it calls the API server with.
const account = "/var/run/secrets/kubernetes.io/serviceaccount/"

// see reads an object of the core API, as an operator does, and returns its
// resourceVersion; "" if there is none any more.
func see(resource, namespace, name string) (string, error) {
	client, err := apiServer()
	if err != nil {
		return "", err
	}
	token, err := os.ReadFile(account + "token")
	if err != nil {
		return "", err
	}
	host := net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))
	req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("https://%s/api/v1/namespaces/%s/%s/%s", host, namespace, resource, name), nil)
	if err != nil {
		return "", err
	}
	req.Header.Set("Authorization", "Bearer "+string(token))
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusNotFound:
		return "", nil
	case http.StatusOK:
		var object struct {
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
		}
		err := json.NewDecoder(resp.Body).Decode(&object)
		return object.Metadata.ResourceVersion, err
	}
	return "", fmt.Errorf("reading %s %s: %s", resource, name, resp.Status)
}

// apiServer is the client that trusts the API server.
var apiServer = sync.OnceValues(func() (*http.Client, error) {
	pem, err := os.ReadFile(account + "ca.crt")
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%sca.crt has no certificate", account)
	}
	return &http.Client{
		Timeout:   5 * time.Second,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}},
	}, nil
})
