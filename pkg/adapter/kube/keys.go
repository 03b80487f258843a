package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/go-jose/go-jose/v4"
	"k8s.io/client-go/rest"
)

// KeySet is the issuer of the cluster's service account tokens, and the public
// keys that verify them.
type KeySet struct {
	Issuer string
	jose.JSONWebKeySet
}

// fetchKeys reads the issuer and its keys. Every service account may read both
// (system:service-account-issuer-discovery).
func fetchKeys(ctx context.Context, client rest.Interface) (*KeySet, error) {
	set := new(KeySet)
	var discovery struct {
		Issuer string `json:"issuer"`
	}
	for path, into := range map[string]any{"/.well-known/openid-configuration": &discovery, "/openid/v1/jwks": &set.JSONWebKeySet} {
		raw, err := client.Get().AbsPath(path).SetHeader("Accept", "application/json, */*").DoRaw(ctx)
		if err == nil {
			err = json.Unmarshal(raw, into)
		}
		if err != nil {
			return nil, fmt.Errorf("kube: %s: %w", path, err)
		}
	}
	if set.Issuer = discovery.Issuer; set.Issuer == "" || len(set.Keys) == 0 {
		return nil, errors.New("kube: the API server names no issuer or no keys")
	}
	return set, nil
}
