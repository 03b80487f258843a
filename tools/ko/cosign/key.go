package main

import (
	"bytes"
	"context"
	"crypto"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"

	common "github.com/sigstore/protobuf-specs/gen/pb-go/common/v1"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/sigstore/cosign/v3/pkg/cosign"
)

const hash = crypto.SHA256

// keyPair signs with a key that cosign generate-key-pair has written.
type keyPair struct {
	signer signature.Signer
	public crypto.PublicKey
}

// loadKey reads the file of a private key. Its password is COSIGN_PASSWORD.
func loadKey(file string) (*keyPair, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	signer, err := cosign.LoadPrivateKey(pem, []byte(os.Getenv("COSIGN_PASSWORD")), nil)
	if err != nil {
		return nil, fmt.Errorf("--key %s, with the password of COSIGN_PASSWORD: %w", file, err)
	}
	public, err := signer.PublicKey()
	if err != nil {
		return nil, err
	}
	return &keyPair{signer, public}, nil
}

func (k *keyPair) GetHashAlgorithm() common.HashAlgorithm { return common.HashAlgorithm_SHA2_256 }

func (k *keyPair) GetSigningAlgorithm() common.PublicKeyDetails {
	return common.PublicKeyDetails_PKIX_ECDSA_P256_SHA_256
}

func (k *keyPair) GetKeyAlgorithm() string { return "ECDSA" }

func (k *keyPair) GetPublicKey() crypto.PublicKey { return k.public }

func (k *keyPair) GetPublicKeyPem() (string, error) {
	pem, err := cryptoutils.MarshalPublicKeyToPEM(k.public)
	return string(pem), err
}

// GetHint names the key by its checksum, as cosign does.
func (k *keyPair) GetHint() []byte {
	der, err := x509.MarshalPKIXPublicKey(k.public)
	if err != nil {
		return nil
	}
	sum := sha256.Sum256(der)
	return []byte(base64.StdEncoding.EncodeToString(sum[:]))
}

func (k *keyPair) SignData(_ context.Context, data []byte) (signed, digest []byte, err error) {
	sum := sha256.Sum256(data)
	signed, err = k.signer.SignMessage(bytes.NewReader(data))
	return signed, sum[:], err
}
