package api

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// maxTokenFile bounds the token file; it holds some 20,000 tokens.
const maxTokenFile = 1 << 20

// Tokens are the bearer tokens that are let in. Use [ReadTokens] or
// [NewTokens]; the zero value lets nobody in.
type Tokens struct {
	set atomic.Pointer[tokenSet]
}

// tokenSet keeps hashes only. They are salted, so that the time a look-up
// takes says nothing about how near a guess was, whatever the guess.
type tokenSet struct {
	salt   [32]byte
	hashes map[[sha256.Size]byte]struct{}
}

// NewTokens lets the given tokens in.
func NewTokens(tokens ...string) *Tokens {
	t := &Tokens{}
	t.set.Store(newTokenSet(tokens))
	return t
}

// ReadTokens reads a file of tokens, one a line; blank lines and those that
// start with # are ignored. A file without a token is an error.
func ReadTokens(file string) (*Tokens, error) {
	t := &Tokens{}
	return t, t.Reload(file)
}

// Reload replaces the tokens by those of the file; on an error they stay.
func (t *Tokens) Reload(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("api: reading tokens: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return fmt.Errorf("api: reading tokens from %s: %w", file, err)
	}
	if len(b) > maxTokenFile {
		return fmt.Errorf("api: reading tokens from %s: it has more than %d bytes", file, maxTokenFile)
	}
	tokens, err := parseTokens(b)
	if err != nil {
		return fmt.Errorf("api: reading tokens from %s: %w", file, err)
	}
	t.set.Store(newTokenSet(tokens))
	return nil
}

// parseTokens reads the lines of a token file. Its errors never quote a line.
func parseTokens(b []byte) ([]string, error) {
	var tokens []string
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, maxTokenFile+1)
	for n := 1; lines.Scan(); n++ {
		s := strings.TrimSpace(lines.Text())
		if s == "" || s[0] == '#' {
			continue
		}
		for i := range len(s) {
			if s[i] <= ' ' || s[i] > '~' {
				return nil, fmt.Errorf("line %d: a token is of visible ASCII characters without blanks", n)
			}
		}
		tokens = append(tokens, s)
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(tokens) == 0 {
		return nil, errors.New("there is no token in it")
	}
	return tokens, nil
}

func newTokenSet(tokens []string) *tokenSet {
	s := &tokenSet{hashes: make(map[[sha256.Size]byte]struct{}, len(tokens))}
	rand.Read(s.salt[:]) // never fails
	for _, t := range tokens {
		if t != "" {
			s.hashes[s.hash(t)] = struct{}{}
		}
	}
	return s
}

func (s *tokenSet) hash(token string) [sha256.Size]byte {
	var room [256]byte
	return sha256.Sum256(append(append(room[:0], s.salt[:]...), token...))
}

// Admit implements [Guard]: whoever bears one of the tokens may do everything.
func (t *Tokens) Admit(r *http.Request, _ Access) (Judge, error) {
	if !t.admit(r.Header) {
		return nil, unauthenticated(r.Header)
	}
	return nil, nil
}

// admit says whether the request bears one of the tokens.
func (t *Tokens) admit(h http.Header) bool {
	set := t.set.Load()
	token, ok := Bearer(h)
	if set == nil || !ok {
		return false
	}
	_, ok = set.hashes[set.hash(token)]
	return ok
}

// Bearer returns the request's bearer token.
func Bearer(h http.Header) (string, bool) {
	lines := h["Authorization"]
	if len(lines) != 1 {
		return "", false
	}
	scheme, token, _ := strings.Cut(lines[0], " ")
	token = strings.TrimLeft(token, " ")
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}

// unauthenticated is the refusal of a request that bears no token that counts.
func unauthenticated(h http.Header) *schedule.Error {
	if _, ok := Bearer(h); ok {
		return schedule.Refuse(schedule.CodeUnauthenticated, "the bearer token is not a valid one")
	}
	return schedule.Refuse(schedule.CodeUnauthenticated, "a bearer token is required: Authorization: Bearer TOKEN")
}
