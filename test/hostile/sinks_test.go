package hostile

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/internal/certs"
)

// sinks are the sinks of the attackers. The first segment of a path is the attack, the last says how a
// delivery is answered; once calm, all are answered at once.
type sinks struct {
	addresses
	plain, secured *httptest.Server

	mu   sync.Mutex
	calm chan struct{}
	slow chan struct{}  // a token for each large answer that may begin
	got  map[string]int // deliveries by attack, while not calm
}

// A reply that a key could be given, and the rate at which they are begun: the
// attackers' processor is not what is measured.
const (
	replyBytes      = 1_048_000
	repliesASecond  = 300
	trickleInterval = 200 * time.Millisecond
)

func newSinks() *sinks {
	s := &sinks{calm: make(chan struct{}), slow: make(chan struct{}), got: map[string]int{}}
	go func() {
		for range time.Tick(time.Second / repliesASecond) {
			s.slow <- struct{}{}
		}
	}()
	s.plain, s.secured = httptest.NewServer(s), httptest.NewUnstartedServer(s)
	chain := largest()
	s.secured.TLS = &tls.Config{Certificates: []tls.Certificate{chain}}
	s.secured.StartTLS()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: chain.Certificate[0]})
	s.addresses = addresses{s.plain.URL, s.secured.URL, string(authority)}
	return s
}

func (s *sinks) close() {
	s.plain.Close()
	s.secured.Close()
}

// addresses are the URLs of the sinks, and the certificate that sinks with TLS sign with.
type addresses struct{ Plain, Secured, Authority string }

// secured is the way of an answer whose connection takes as much memory as it may: as many
// certificates as are taken, and as many lines of headers, without an end.
const secured = "secured"

var manyLines = "HTTP/1.1 200 OK\r\n" + strings.Repeat("a: b\r\n", 120)

// largest is a chain as large as is taken: a certificate that signs itself, and nine others, 15 KiB together.
func largest() tls.Certificate {
	others := make([]*certs.Certificate, 9)
	for i := range others {
		others[i] = certs.New(&x509.Certificate{Subject: pkix.Name{CommonName: strings.Repeat("x", 600)}}, nil)
	}
	return certs.Own().TLS(others...)
}

// rage makes the sinks misbehave, settle ends that.
func (s *sinks) rage() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm = make(chan struct{})
}

func (s *sinks) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.calm:
	default:
		close(s.calm)
	}
}

// taken are the deliveries since it was asked last.
func (s *sinks) taken() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.got
	s.got = map[string]int{}
	return got
}

var reply = make([]byte, replyBytes)

func (s *sinks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	way := path.Base(r.URL.Path)
	s.mu.Lock()
	calm := s.calm
	s.mu.Unlock()
	_, _ = io.Copy(io.Discard, r.Body)
	select {
	case <-calm:
		w.WriteHeader(http.StatusNoContent)
		return
	default:
	}
	s.mu.Lock()
	s.got[path.Base(path.Dir(r.URL.Path))]++
	s.mu.Unlock()
	switch way {
	case "hang":
		// Nothing at all.
	case "loop": // the key is due again at once
		w.Header().Set("Reschedule-After", "0s")
		w.WriteHeader(http.StatusNoContent)
		return
	case secured:
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err) // it is HTTP/1.1
		}
		defer c.Close()
		_, _ = io.WriteString(c, manyLines) // the caller may be gone
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = io.Copy(io.Discard, c)
		}()
		select {
		case <-calm:
		case <-gone:
		}
		return
	case "reply": // an event of 1 MB, but for its last bytes
		select {
		case <-s.slow:
		case <-calm:
		case <-r.Context().Done():
		}
		w.Header().Set("Ce-Specversion", "1.0")
		w.Header().Set("Ce-Id", "r")
		w.Header().Set("Ce-Source", "/r")
		w.Header().Set("Ce-Type", "r")
		w.Header().Set("Ce-Rescheduleafter", "1h")
		w.Header().Set("Content-Type", "text/plain")
		w.Header().Set("Content-Length", strconv.Itoa(replyBytes+1))
		_, _ = w.Write(reply)
		_ = http.NewResponseController(w).Flush() // the caller may be gone
	case "trickle": // a refusal whose status is known, and a body without an end
		w.WriteHeader(http.StatusServiceUnavailable)
		for tick := time.Tick(trickleInterval); ; {
			_, _ = w.Write([]byte("."))
			_ = http.NewResponseController(w).Flush() // the caller may be gone
			select {
			case <-tick:
				continue
			case <-calm:
			case <-r.Context().Done():
			}
			return
		}
	default:
		w.WriteHeader(http.StatusNoContent)
		return
	}
	select {
	case <-calm:
	case <-r.Context().Done():
	}
}
