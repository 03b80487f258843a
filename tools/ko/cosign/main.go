// Command cosign signs and verifies releases with a key, offline. It understands the
// commands and flags of sigstore's cosign that hack/make-release.sh and docs/releases.md
// use, writes the same bundles, and verifies with cosign's own library. The whole of cosign
// takes 900 more packages, mostly for the key services of clouds.
package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/sigstore/cosign/v3/pkg/cosign"
	ociremote "github.com/sigstore/cosign/v3/pkg/oci/remote"
	"github.com/sigstore/sigstore-go/pkg/bundle"
	"github.com/sigstore/sigstore-go/pkg/sign"
	"github.com/sigstore/sigstore-go/pkg/verify"
	"github.com/sigstore/sigstore/pkg/signature"
	"google.golang.org/protobuf/encoding/protojson"
)

const (
	statementType = "https://in-toto.io/Statement/v1"
	payloadType   = "application/vnd.in-toto+json"
	signatureType = "https://sigstore.dev/cosign/sign/v1"
)

// predicateTypes are cosign's short names of predicates.
var predicateTypes = map[string]string{"slsaprovenance1": "https://slsa.dev/provenance/v1"}

// flags are the flags of all commands. A command ignores a flag of another.
type flags struct {
	key, bundle, predicate, kind, prefix string
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "cosign:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, flags, string) error{
		"sign": signImage, "attest": attest, "sign-blob": signBlob,
		"verify": verifyImage, "verify-attestation": verifyAttestation, "verify-blob": verifyBlob,
	}
	if len(args) == 0 {
		return errors.New("name a command: sign, attest, sign-blob, verify, verify-attestation, verify-blob or generate-key-pair")
	}
	var f flags
	var yes, ignoreLog bool
	set := flag.NewFlagSet(args[0], flag.ContinueOnError)
	set.StringVar(&f.key, "key", "", "file of the key")
	set.StringVar(&f.bundle, "bundle", "", "file of the signature of a blob")
	set.StringVar(&f.predicate, "predicate", "", "file of the predicate")
	set.StringVar(&f.kind, "type", "", "type of the predicate")
	set.StringVar(&f.prefix, "output-key-prefix", "cosign", "name of the new key's files")
	set.BoolVar(&yes, "yes", false, "ask nothing, which this program never does")
	set.BoolVar(&ignoreLog, "insecure-ignore-tlog", false, "look for no entry in a public log; required to verify")
	if err := set.Parse(args[1:]); err != nil {
		return err
	}
	if args[0] == "generate-key-pair" {
		return generate(f.prefix)
	}
	command, ok := commands[args[0]]
	switch {
	case !ok:
		return fmt.Errorf("there is no command %q here; sigstore's own cosign has more", args[0])
	case set.NArg() != 1:
		return fmt.Errorf("%s needs one image or file after its flags, not %d", args[0], set.NArg())
	case f.key == "":
		return fmt.Errorf("%s needs --key here; without a key use sigstore's own cosign", args[0])
	case args[0][0] == 'v' && !ignoreLog:
		return fmt.Errorf("%s needs --insecure-ignore-tlog=true here: signatures with a key are in no public log", args[0])
	}
	return command(ctx, f, set.Arg(0))
}

// generate writes a key pair, encrypted with COSIGN_PASSWORD.
func generate(prefix string) error {
	keys, err := cosign.GenerateKeyPair(func(bool) ([]byte, error) { return []byte(os.Getenv("COSIGN_PASSWORD")), nil })
	if err != nil {
		return err
	}
	if err := os.WriteFile(prefix+".key", keys.PrivateBytes, 0o600); err != nil {
		return err
	}
	return os.WriteFile(prefix+".pub", keys.PublicBytes, 0o644)
}

// registry finds the credentials where docker and ko do.
func registry(ctx context.Context) []ociremote.Option {
	return []ociremote.Option{ociremote.WithRemoteOptions(remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))}
}

func signImage(ctx context.Context, f flags, image string) error {
	return attach(ctx, f, image, signatureType, json.RawMessage("{}"))
}

func attest(ctx context.Context, f flags, image string) error {
	kind, ok := predicateTypes[f.kind]
	if !ok {
		return fmt.Errorf("--type is %q; it must be slsaprovenance1", f.kind)
	}
	predicate, err := os.ReadFile(f.predicate)
	if err != nil {
		return fmt.Errorf("--predicate: %w", err)
	}
	return attach(ctx, f, image, kind, predicate)
}

// statement says something about an image: https://in-toto.io/Statement/v1.
type statement struct {
	Type          string          `json:"_type"`
	Subject       []subject       `json:"subject"`
	PredicateType string          `json:"predicateType"`
	Predicate     json.RawMessage `json:"predicate"`
}

type subject struct {
	Name   string            `json:"name,omitempty"`
	Digest map[string]string `json:"digest"`
}

// attach signs a statement about an image and pushes it beside the image.
func attach(ctx context.Context, f flags, image, kind string, predicate json.RawMessage) error {
	digest, err := name.NewDigest(image)
	if err != nil {
		return fmt.Errorf("only an image with its digest can be signed: %w", err)
	}
	payload, err := json.Marshal(statement{
		Type:          statementType,
		Subject:       []subject{{Name: digest.Context().Name(), Digest: map[string]string{"sha256": digest.DigestStr()[len("sha256:"):]}}},
		PredicateType: kind, Predicate: predicate,
	})
	if err != nil {
		return err
	}
	signed, err := signed(ctx, f.key, &sign.DSSEData{Data: payload, PayloadType: payloadType})
	if err != nil {
		return err
	}
	return ociremote.WriteAttestationNewBundleFormat(digest, signed, kind, registry(ctx)...)
}

func signBlob(ctx context.Context, f flags, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	signed, err := signed(ctx, f.key, &sign.PlainData{Data: data})
	if err != nil {
		return err
	}
	return os.WriteFile(f.bundle, append(signed, '\n'), 0o644)
}

// signed is a sigstore bundle with the content and its signature.
func signed(ctx context.Context, key string, content sign.Content) ([]byte, error) {
	pair, err := loadKey(key)
	if err != nil {
		return nil, err
	}
	b, err := sign.Bundle(content, pair, sign.BundleOptions{Context: ctx})
	if err != nil {
		return nil, err
	}
	return protojson.Marshal(b)
}

// options verify with a public key, as cosign does with --key and --insecure-ignore-tlog.
func options(ctx context.Context, key string) (*cosign.CheckOpts, error) {
	verifier, err := publicKey(key)
	if err != nil {
		return nil, err
	}
	return &cosign.CheckOpts{
		SigVerifier: verifier, IgnoreTlog: true, NewBundleFormat: true,
		ClaimVerifier: cosign.IntotoSubjectClaimVerifier, RegistryClientOpts: registry(ctx),
	}, nil
}

func verifyImage(ctx context.Context, f flags, image string) error {
	_, err := statements(ctx, f, image, signatureType)
	if err == nil {
		fmt.Fprintf(os.Stderr, "the signature of %s is valid\n", image)
	}
	return err
}

func verifyAttestation(ctx context.Context, f flags, image string) error {
	kind, ok := predicateTypes[f.kind]
	if !ok {
		return fmt.Errorf("--type is %q; it must be slsaprovenance1", f.kind)
	}
	found, err := statements(ctx, f, image, kind)
	if err != nil {
		return err
	}
	for _, envelope := range found {
		fmt.Println(string(envelope))
	}
	return nil
}

// statements are the envelopes of a type that are signed with this key and are about this
// image.
func statements(ctx context.Context, f flags, image, kind string) ([][]byte, error) {
	ref, err := name.ParseReference(image)
	if err != nil {
		return nil, err
	}
	o, err := options(ctx, f.key)
	if err != nil {
		return nil, err
	}
	verified, _, err := cosign.VerifyImageAttestations(ctx, ref, o)
	if err != nil {
		return nil, err
	}
	var found [][]byte
	for _, v := range verified {
		envelope, err := v.Payload()
		if err != nil {
			return nil, err
		}
		var e struct{ Payload []byte }
		var s statement
		if err := errors.Join(json.Unmarshal(envelope, &e), json.Unmarshal(e.Payload, &s)); err != nil {
			return nil, err
		}
		if s.Type == statementType && s.PredicateType == kind {
			found = append(found, envelope)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s has no signed statement of the type %s", image, kind)
	}
	return slices.Clip(found), nil
}

func verifyBlob(ctx context.Context, f flags, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	b, err := bundle.LoadJSONFromPath(f.bundle)
	if err != nil {
		return fmt.Errorf("--bundle: %w", err)
	}
	o, err := options(ctx, f.key)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(data)
	if _, err := cosign.VerifyNewBundle(ctx, o, verify.WithArtifactDigest("sha256", sum[:]), b); err != nil {
		return fmt.Errorf("%s (sha256 %s): %w", file, hex.EncodeToString(sum[:]), err)
	}
	fmt.Fprintln(os.Stderr, "Verified OK")
	return nil
}

func publicKey(file string) (signature.Verifier, error) {
	pem, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--key: %w", err)
	}
	key, err := cosign.PemToECDSAKey(pem)
	if err != nil {
		return nil, fmt.Errorf("--key %s: %w", file, err)
	}
	return signature.LoadECDSAVerifier(key, hash)
}
