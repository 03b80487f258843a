package group

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	// patience is how long a call waits for an owner.
	patience = 3 * time.Second
	// retryPause is the pause before the owner is tried once more.
	retryPause = 10 * time.Millisecond
	// maxForwarded bounds the calls that are forwarded at one time, and maxReplay the bytes of
	// a body that each keeps to be sent to another owner.
	maxForwarded = 512
	maxReplay    = 64 << 10
	// Of a body that the owner does not read, so much is read and dropped, for so long.
	skipBytes = 16 << 20
	skipTime  = 2 * time.Second
	// continueTime is how long an owner may take before it reads a large body or answers.
	continueTime = time.Minute
	// headTime is how long the first maxReplay bytes of a body may take. A call holds a slot
	// meanwhile.
	headTime = 10 * time.Second
	// notOwner marks an answer of a member that does not own the shard: it did nothing.
	notOwner = "Reschedule-Not-Owner"
	// secured marks a forwarded call that came with TLS, and caller has the address that it came
	// from. A caller cannot set them: the member that forwards writes them.
	secured = "Reschedule-Secured"
	caller  = "Reschedule-Caller"
)

const (
	detailNoOwner = "no adapter owns the source at the moment: nothing was changed; try again"
	detailUnknown = "the adapter that owned the source went away during the call: whether something was changed is unknown; PUT and DELETE may be repeated"
	detailNoGroup = "no group of adapters has the source yet: nothing was changed; try again"
	detailSealed  = "the group of adapters was sealed: nothing was changed, and nothing is any more; an administrator moves its data on"
	detailBusy    = "too many calls are on their way to the owner of the source: nothing was changed; try again"
)

// newSlots are the slots of calls that are forwarded to one group.
func newSlots() *budget.Budget { return budget.New(maxForwarded, nil) }

// forwarder is the client that forwards calls.
func forwarder(files *peerTLS) *http.Client {
	transport := &http.Transport{
		DialContext:         dialer().DialContext,
		MaxIdleConnsPerHost: maxForwarded, IdleConnTimeout: time.Minute,
		ExpectContinueTimeout: continueTime,
		DisableCompression:    true,
	}
	if files != nil {
		transport.DialTLSContext = files.dial
	}
	return &http.Client{
		Transport:     transport,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// unavailable answers 503.
func unavailable(w http.ResponseWriter, detail string) {
	w.Header().Set("Retry-After", "1")
	refuse(w, http.StatusServiceUnavailable, schedule.Refuse(schedule.CodeUnavailable, "%s", detail))
}

// refuseBody answers 400: the body could not be read, and the connection cannot go on.
func refuseBody(w http.ResponseWriter, err error) {
	w.Header().Set("Connection", "close")
	refuse(w, http.StatusBadRequest, api.BodyError(err))
}

func refuse(w http.ResponseWriter, status int, e *schedule.Error) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Del("Content-Length")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(struct {
		Type   string        `json:"type"`
		Title  string        `json:"title"`
		Status int           `json:"status"`
		Detail string        `json:"detail"`
		Code   schedule.Code `json:"code"`
		Field  string        `json:"field,omitempty"`
	}{"about:blank", http.StatusText(status), status, e.Detail, e.Code, e.Field})
}

// routeForwarded answers calls that another member forwarded. They are forwarded no further.
func (m *Member) routeForwarded(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == admissionPath && r.Method == http.MethodPost:
			m.replace(w, r)
			return
		case r.URL.Path == admissionPath:
			m.answerAdmission(w, r)
			return
		case r.URL.Path == viewPath:
			m.sendView(w, r)
			return
		case r.URL.Path == clockPath:
			m.answerClock(w)
			return
		case r.URL.Path == sealPath && r.Method == http.MethodPost:
			m.answerSeal(w, r)
			return
		case r.URL.Path == ownerPath:
			m.nameOwner(w)
			return
		}
		setSecured(r)
		setCaller(r)
		r.Header.Del("Expect") // it is the sending member's: the caller has begun to send its body
		// A member that has received less than the sender may take the source for another group's.
		if m.destination(r) == (own{m}) {
			if t := m.current(); t.enter() {
				t.serve(api, w, r)
				return
			}
			if m.view.Sealed() {
				unavailable(w, detailSealed)
				return
			}
		}
		w.Header().Set(notOwner, "true")
		m.nameOwner(w)
		unavailable(w, detailNoOwner)
	})
}

// Route answers a call here or at the owner, also of another group. While there is none it waits.
func (m *Member) Route(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if m.leaving.Load() { // the caller's next call must go to another member
			now := time.Now()
			m.lastCall.Store(&now)
			w.Header().Set("Connection", "close")
		}
		if r.URL.Path == "/openapi.json" || r.URL.Path == "*" { // they are about no source
			handler.ServeHTTP(w, r)
			return
		}
		var f *forwarding
		deadline := time.NewTimer(patience)
		defer deadline.Stop()
		for {
			d := m.destination(r)
			if d == nil { // the source is new
				select {
				case <-deadline.C:
					unavailable(w, detailNoGroup)
					return
				case <-r.Context().Done():
					unavailable(w, detailNoGroup)
					return
				case <-time.After(retryPause):
				}
				continue
			}
			if d.number() == m.cfg.shard && m.view.Sealed() {
				unavailable(w, detailSealed)
				return
			}
			t, changed := d.localTenure()
			if (f == nil || f.repeatable()) && t.enter() {
				if f != nil {
					r.Body = io.NopCloser(f.body())
				}
				t.serve(handler, w, r)
				return
			}
			owner, moved := d.owner()
			if owner != "" {
				if f == nil {
					slot := d.slots().Claim(api.Peer(r), "")
					if !slot.TryGrow(1) {
						m.count(r.Context(), d, resultBusy)
						unavailable(w, detailBusy)
						return
					}
					defer slot.Release()
					var err error
					if f, err = newForwarding(w, r); err != nil {
						refuseBody(w, err)
						return
					}
					if !f.whole {
						d.locate(r.Context())
						owner, moved = d.owner()
					}
				}
				if m.forward(w, r, f, d, owner, moved) {
					return
				}
			}
			select {
			case <-deadline.C:
				m.count(r.Context(), d, resultNoOwner)
				unavailable(w, detailNoOwner)
				return
			case <-r.Context().Done():
				m.count(r.Context(), d, resultGone)
				unavailable(w, detailNoOwner)
				return
			case <-changed:
			case <-moved:
			case <-time.After(retryPause):
			}
		}
	})
}

// serve answers here. What the store says is true only while the lease lasts.
func (t *tenure) serve(api http.Handler, w http.ResponseWriter, r *http.Request) {
	defer t.calls.Done()
	if r.Method == http.MethodGet || r.Method == http.MethodHead { // a stream ends with the tenure
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(t.ctx, cancel)()
		r = r.WithContext(ctx)
	}
	api.ServeHTTP(&fencedWriter{ResponseWriter: w, t: t, reads: r.Method == http.MethodGet || r.Method == http.MethodHead}, r)
}

// fencedWriter replaces an answer that rests on a read by 503 if another member may own the
// shard meanwhile: the answer of a read, and a refusal.
type fencedWriter struct {
	http.ResponseWriter
	t            *tenure
	reads        bool
	wrote, fence bool
}

// Unwrap is for http.ResponseController.
func (w *fencedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (w *fencedWriter) WriteHeader(status int) {
	if w.wrote {
		return
	}
	w.wrote = true
	if (w.reads || status >= 400 && status != http.StatusServiceUnavailable) && !w.t.lease.Valid() {
		w.fence = true
		w.Header().Set(notOwner, "true")
		unavailable(w.ResponseWriter, detailNoOwner)
		return
	}
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *fencedWriter) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if w.fence {
		return len(p), nil
	}
	return w.ResponseWriter.Write(p)
}

// lastAnswer is how long the answer of an owner that handed the shard over may be on its
// way. Without it the outcome of a call is unknown.
const lastAnswer = 400 * time.Millisecond

// forwarding is a call on its way to the owner.
type forwarding struct {
	head  []byte    // of the body
	rest  io.Reader // the body behind head
	whole bool      // head is all of the body: it can be sent again
	large *gate     // the body of the last try, where it can be read once
	dead  string    // a member that could not be reached
}

// gate is a body that can be read once. A member that does not own the shard refuses the call
// before it reads the body; then the gate is shut, and the body is there for the next try.
type gate struct {
	mu          sync.Mutex
	begun, shut bool
	failed      error // the caller's body could not be read
	body        io.Reader
}

var errShut = errors.New("group: the call is sent to another owner")

// Read implements io.Reader.
func (g *gate) Read(p []byte) (int, error) {
	g.mu.Lock()
	shut := g.shut
	g.begun = g.begun || !shut
	g.mu.Unlock()
	if shut {
		return 0, errShut
	}
	n, err := g.body.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.failed = err
	}
	return n, err
}

// failure is why the caller's body could not be read.
func (g *gate) failure() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.failed
}

// close shuts the gate. It returns false if a read has begun.
func (g *gate) close() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = !g.begun
	return g.shut
}

// newForwarding reads the head of the body. The time for the rest is bounded by the owner.
func newForwarding(w http.ResponseWriter, r *http.Request) (*forwarding, error) {
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Now().Add(headTime)) // HTTP always can
	defer func() { _ = connection.SetReadDeadline(time.Time{}) }()
	f := &forwarding{rest: r.Body}
	var err error
	if f.head, err = io.ReadAll(io.LimitReader(r.Body, maxReplay+1)); err != nil {
		return nil, err
	}
	f.whole = len(f.head) <= maxReplay
	return f, nil
}

// body is the body for one try.
func (f *forwarding) body() io.Reader {
	if f.whole {
		return bytes.NewReader(f.head)
	}
	f.large = &gate{body: io.MultiReader(bytes.NewReader(f.head), f.rest)}
	return f.large
}

// skip reads what the owner did not want of the body. This member has told the caller to go on,
// and a caller that reads no answer before its last byte is sent would see a broken connection.
func (f *forwarding) skip(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(skipTime)) // HTTP always can
	_, _ = io.CopyN(io.Discard, f.rest, skipBytes)
}

// repeatable reports that the call can be sent, again too. The last try has ended.
func (f *forwarding) repeatable() bool { return f.whole || f.large == nil || f.large.close() }

// forward sends the call to the owner. It returns false if the call did nothing there and
// can be sent again.
func (m *Member) forward(w http.ResponseWriter, r *http.Request, f *forwarding, d destination, address string, moved <-chan struct{}) bool {
	if !f.repeatable() {
		m.count(r.Context(), d, resultNoOwner)
		unavailable(w, detailNoOwner)
		return true
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	defer cancel()
	answered := make(chan struct{})
	defer close(answered)
	go func() {
		overdue := time.NewTicker(askAnotherAfter)
		defer overdue.Stop()
		gone, end := r.Context().Done(), (<-chan time.Time)(nil)
		for {
			select {
			case <-answered:
				return
			case <-moved: // an owner that stands still does not answer: the next one ends the wait
				moved, end = nil, time.After(lastAnswer)
			case <-gone: // or it has closed its side only, and waits for the answer
				gone = nil
				if end == nil {
					end = time.After(patience)
				}
			case <-overdue.C:
				d.askAnother(ctx, address)
			case <-end:
				cancel()
				return
			}
		}
	}()
	out, err := http.NewRequestWithContext(ctx, r.Method, m.cfg.scheme()+"://"+address+r.URL.RequestURI(), f.body())
	if err != nil {
		unavailable(w, detailNoOwner)
		return true
	}
	// The path goes on as it was sent: URL would encode it anew where a caller did not encode a
	// character that should be, and %2F would be lost.
	if raw := r.URL.RawPath; raw != "" && !strings.HasPrefix(raw, "//") {
		out.URL.Opaque = raw
	}
	out.Header, out.Host, out.ContentLength = r.Header.Clone(), r.Host, r.ContentLength
	for _, h := range []string{"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect"} {
		out.Header.Del(h)
	}
	if !f.whole { // it is sent once the owner reads it
		out.Header.Set("Expect", "100-continue")
	}
	out.Header.Del(secured)
	out.Header.Set(caller, r.RemoteAddr)
	if r.TLS != nil {
		out.Header.Set(secured, "true")
	}
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	answer, err := m.client.Do(out)
	if err != nil {
		var dial *net.OpError
		switch {
		case f.large.failure() != nil: // the owner does nothing without all of it
			m.count(r.Context(), d, resultGone)
			refuseBody(w, f.large.failure())
			return true
		case r.Context().Err() != nil:
			m.count(r.Context(), d, resultGone)
			unavailable(w, detailUnknown)
			return true
		case reads, errors.As(err, &dial) && dial.Op == "dial":
			f.dead = address
			d.refused(address, "")
			return false // it was not sent, or changes nothing
		}
		m.count(r.Context(), d, resultUnknown)
		w.Header().Set(notOwner, "unknown")
		unavailable(w, detailUnknown)
		return true
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get(notOwner) == "true" {
		hint := answer.Header.Get(ownerHeader)
		if hint == f.dead { // the member has not received its end
			hint = ""
		}
		d.refused(address, hint)
		if f.repeatable() {
			return false
		}
	}
	m.count(r.Context(), d, resultAnswered)
	if r.Header.Get("Expect") != "" && f.repeatable() {
		f.skip(w)
	}
	for name, values := range answer.Header {
		if name != "Connection" && name != "Transfer-Encoding" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(answer.StatusCode)
	if isStream(answer) {
		defer context.AfterFunc(r.Context(), cancel)()
	}
	copyAnswer(w, answer)
	return true
}

// setSecured makes a forwarded call as secured as its caller's connection was: the connection
// of the members says nothing about that.
func setSecured(r *http.Request) {
	is := r.Header.Get(secured) == "true"
	r.Header.Del(secured)
	switch {
	case !is:
		r.TLS = nil
	case r.TLS == nil:
		r.TLS = &tls.ConnectionState{}
	}
}

// setCaller gives a forwarded call the address of its caller, for the shares of peers and the
// audit lines. The connection has the one of the member.
func setCaller(r *http.Request) {
	if from := r.Header.Get(caller); from != "" {
		r.RemoteAddr = from
	}
	r.Header.Del(caller)
}

func isStream(answer *http.Response) bool {
	return strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream")
}

// copyAnswer copies the body, of a stream as it comes.
func copyAnswer(w http.ResponseWriter, answer *http.Response) {
	if !isStream(answer) {
		_, _ = io.Copy(w, answer.Body) // the caller sees that it is cut off
		return
	}
	out, buffer := http.NewResponseController(w), make([]byte, 4<<10)
	for {
		n, err := answer.Body.Read(buffer)
		if n > 0 {
			_ = out.SetWriteDeadline(time.Now().Add(10 * time.Second)) // HTTP always can
			if _, err := w.Write(buffer[:n]); err != nil || out.Flush() != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
