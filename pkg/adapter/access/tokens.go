package access

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
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// maxTokenFile bounds the token file; it holds some 20,000 tokens.
const maxTokenFile = 1 << 20

// Tokens is a [Guard] that admits callers who bear one of its tokens. Use
// [ReadTokens] or [NewTokens]; the zero value admits no caller.
type Tokens struct {
	set atomic.Pointer[tokenSet]
}

// tokenSet keeps hashes only. They are salted, so that the time of a look-up does
// not depend on how close a guess was.
type tokenSet struct {
	salt   [32]byte
	hashes map[[sha256.Size]byte]string // to the user name of the token
}

// NewTokens admits the given tokens, as if each were a line of a file.
func NewTokens(tokens ...string) *Tokens {
	t := &Tokens{}
	lines := make([]token, len(tokens))
	for i, text := range tokens {
		lines[i] = token{text, i + 1}
	}
	t.set.Store(newTokenSet(lines))
	return t
}

// ReadTokens reads a file of tokens, one per line; blank lines and lines that
// start with # are ignored. A file without a token is an error.
func ReadTokens(file string) (*Tokens, error) {
	t := &Tokens{}
	return t, t.Reload(file)
}

// Reload replaces the tokens by the file's; on an error they stay.
func (t *Tokens) Reload(file string) error {
	f, err := os.Open(file)
	if err != nil {
		return fmt.Errorf("access: reading tokens: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return fmt.Errorf("access: reading tokens from %s: %w", file, err)
	}
	if len(b) > maxTokenFile {
		return fmt.Errorf("access: reading tokens from %s: it has more than %d bytes", file, maxTokenFile)
	}
	tokens, err := parseTokens(b)
	if err != nil {
		return fmt.Errorf("access: reading tokens from %s: %w", file, err)
	}
	t.set.Store(newTokenSet(tokens))
	return nil
}

// token is one token of a file.
type token struct {
	text string
	line int
}

// parseTokens reads the lines of a token file. Its errors never quote a line.
func parseTokens(b []byte) ([]token, error) {
	var tokens []token
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, maxTokenFile+1)
	for n := 1; lines.Scan(); n++ {
		s := strings.TrimSpace(lines.Text())
		if s == "" || s[0] == '#' {
			continue
		}
		for i := range len(s) {
			if s[i] <= ' ' || s[i] > '~' {
				return nil, fmt.Errorf("line %d: a token may have visible ASCII characters only, and no blanks", n)
			}
		}
		tokens = append(tokens, token{s, n})
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if len(tokens) == 0 {
		return nil, errors.New("there is no token in it")
	}
	return tokens, nil
}

func newTokenSet(tokens []token) *tokenSet {
	s := &tokenSet{hashes: make(map[[sha256.Size]byte]string, len(tokens))}
	rand.Read(s.salt[:]) // never fails
	for _, t := range tokens {
		if t.text != "" {
			s.hashes[s.hash(t.text)] = "token in line " + strconv.Itoa(t.line)
		}
	}
	return s
}

func (s *tokenSet) hash(token string) [sha256.Size]byte {
	var buf [256]byte
	return sha256.Sum256(append(append(buf[:0], s.salt[:]...), token...))
}

// Admit implements [Guard]: a caller who bears one of the tokens may do everything.
func (t *Tokens) Admit(r *http.Request, _ Request) (Caller, error) {
	user, ok := t.admit(r.Header)
	if !ok {
		return Caller{}, unauthenticated(r.Header)
	}
	return Caller{User: user}, nil
}

// admit returns the user name of the request's token, if it is one of the tokens.
func (t *Tokens) admit(h http.Header) (user string, ok bool) {
	set := t.set.Load()
	token, ok := Bearer(h)
	if set == nil || !ok {
		return "", false
	}
	user, ok = set.hashes[set.hash(token)]
	return user, ok
}

// unauthenticated refuses a request without a valid token.
func unauthenticated(h http.Header) *schedule.Error {
	if _, ok := Bearer(h); ok {
		return schedule.Refuse(schedule.CodeUnauthenticated, "the bearer token is not in the token file")
	}
	return schedule.Refuse(schedule.CodeUnauthenticated, "a bearer token is required: Authorization: Bearer TOKEN")
}
