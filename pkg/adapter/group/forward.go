package group

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
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
	// maxForwarded bounds the calls that are forwarded at one time.
	maxForwarded = 512
	// continueTime is how long an owner may take before it reads a large body or answers.
	continueTime = time.Minute
	// notOwner marks an answer of a member that does not own the shard: it did nothing.
	notOwner = "Reschedule-Not-Owner"
	// caller marks a forwarded call, and has the address that it came from; secured marks one that
	// came with TLS. A caller cannot set them: the member that forwards writes them.
	caller  = "Reschedule-Caller"
	secured = "Reschedule-Secured"
	// asker marks a call that a member makes for itself, and has its name. No forwarded call has it.
	asker = "Reschedule-Member"
)

const (
	detailNoOwner = "no adapter owns the source at the moment: nothing was changed; try again"
	detailUnknown = "the adapter that owned the source went away during the call: whether something was changed is unknown; PUT and DELETE may be repeated"
	detailNoGroup = "no group of adapters has the source yet: nothing was changed; try again"
	detailSealed  = "the group of adapters was sealed: nothing was changed, and nothing is any more; an administrator moves its data on"
	detailBusy    = "too many calls are on their way to the owner of the source: nothing was changed; try again"
)

// newSlots are the slots of calls that are forwarded to one group.
func newSlots() *budget.Budget { return budget.New(maxForwarded) }

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
	api.WriteProblem(w, http.StatusServiceUnavailable, schedule.Refuse(schedule.CodeUnavailable, "%s", detail))
}

// refuseBody answers 400: the body could not be read, and the connection cannot go on.
func refuseBody(w http.ResponseWriter, err error) {
	w.Header().Set("Connection", "close")
	api.WriteProblem(w, http.StatusBadRequest, api.BodyError(err))
}

// routePeers answers at the port for other members. A forwarded call reaches the API alone, whatever its path is: the
// API authenticates its caller, and what members ask each other for needs no more than the port.
func (m *Member) routePeers(api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, forwarded := r.Header[caller]
		switch {
		case forwarded:
			m.answerForwarded(api, w, r)
		case r.Header.Get(asker) != "":
			m.answerMember(w, r)
		default: // as of a browser on this machine, which can set none of the two by itself
			http.NotFound(w, r)
		}
	})
}

// answerMember answers what another member asks for itself.
func (m *Member) answerMember(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == admissionPath && r.Method == http.MethodPost:
		m.replace(w, r)
	case r.URL.Path == admissionPath:
		m.answerAdmission(w, r)
	case r.URL.Path == viewPath:
		m.sendView(w, r)
	case r.URL.Path == clockPath:
		m.answerClock(w)
	case r.URL.Path == sealPath && r.Method == http.MethodPost:
		m.answerSeal(w, r)
	case r.URL.Path == ownerPath:
		m.nameOwner(w)
	default:
		http.NotFound(w, r)
	}
}

// memberRequest is a call that this member makes for itself at another one.
func (m *Member) memberRequest(ctx context.Context, method, url string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	r.Header.Set(asker, m.cfg.Member)
	return r, nil
}

// answerForwarded answers a call that another member forwarded. It is forwarded no further.
func (m *Member) answerForwarded(api http.Handler, w http.ResponseWriter, r *http.Request) {
	setSecured(r)
	setCaller(r)
	r.Header.Del("Expect") // it is the sending member's: the caller has begun to send its body
	// A member that has received less than the sender may take the source for another group's.
	if m.destination(r) == (ownGroup{m}) {
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
}

// Route answers a call here or at the owner, also of another group. While there is none it waits.
func (m *Member) Route(handler http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer m.callers.call(r)()
		if m.leaving.Load() { // the caller's next call must go to another member
			w.Header().Set("Connection", "close")
		}
		if r.URL.Path == "/openapi.json" || r.URL.Path == "*" { // they are about no source
			handler.ServeHTTP(w, r)
			return
		}
		c := routed{m: m, w: w, r: r, deadline: time.NewTimer(patience)}
		defer c.end()
		for !c.answered(handler) {
		}
	})
}

// routed is a call that is answered here or at an owner.
type routed struct {
	m        *Member
	w        http.ResponseWriter
	r        *http.Request
	deadline *time.Timer
	f        *forwarding // nil: it was not forwarded
}

// end gives back what the call holds.
func (c *routed) end() {
	c.deadline.Stop()
	if c.f != nil {
		c.f.slot.Release()
	}
}

// answered answers the call where its source is now. It returns false after a wait: the owner may be
// another one then.
func (c *routed) answered(handler http.Handler) bool {
	d := c.m.destination(c.r)
	if d == nil { // the source is new
		return !c.wait(nil, nil, nil)
	}
	if d.number() == c.m.cfg.shard && c.m.view.Sealed() {
		unavailable(c.w, detailSealed)
		return true
	}
	t, changed := d.localTenure()
	if c.servedBy(t, handler) {
		return true
	}
	owner, moved := d.owner()
	if owner != "" && c.forwarded(d, owner, moved) {
		return true
	}
	return !c.wait(d, changed, moved)
}

// forwarded forwards the call to the owner. If it returns false the call is not answered.
func (c *routed) forwarded(d destination, owner string, moved <-chan struct{}) bool {
	if c.f == nil {
		if !c.takeSlot(d) {
			return true
		}
		if !c.f.whole {
			d.locate(c.r.Context())
			if owner, moved = d.owner(); owner == "" { // it may be gone since the body began, which takes seconds
				return false
			}
		}
	}
	return c.m.forward(c.w, c.r, c.f, d, owner, moved)
}

// servedBy answers the call here, if this member owns the shard. No other member may be reading the body.
func (c *routed) servedBy(t *tenure, handler http.Handler) bool {
	if c.f != nil && !c.f.repeatable() || !t.enter() {
		return false
	}
	if c.f != nil {
		c.r.Body = io.NopCloser(c.f.body())
	}
	t.serve(handler, c.w, c.r)
	return true
}

// takeSlot takes a slot of the calls that are forwarded to a group, and then reads the head of the
// body. If it returns false the call is refused.
func (c *routed) takeSlot(d destination) bool {
	slot := d.slots().Claim(api.Peer(c.r), "")
	if !slot.TryGrow(1) {
		c.m.count(c.r.Context(), d, resultBusy)
		unavailable(c.w, detailBusy)
		return false
	}
	f, err := newForwarding(c.w, c.r)
	if err != nil {
		slot.Release()
		refuseBody(c.w, err)
		return false
	}
	f.slot = &slot
	c.f = f
	return true
}

// wait waits until the owner may be another one. It returns false once the call has waited for as long
// as it may, or its caller is gone: then it is refused. d is nil while no group has the source.
func (c *routed) wait(d destination, changed, moved <-chan struct{}) bool {
	var result string
	select {
	case <-c.deadline.C:
		result = resultNoOwner
	case <-c.r.Context().Done():
		result = resultGone
	case <-changed:
		return true
	case <-moved:
		return true
	case <-time.After(retryPause):
		return true
	}
	if d == nil {
		unavailable(c.w, detailNoGroup)
		return false
	}
	c.m.count(c.r.Context(), d, result)
	unavailable(c.w, detailNoOwner)
	return false
}

// serve answers here. What the store says is true only while the lease lasts.
func (t *tenure) serve(api http.Handler, w http.ResponseWriter, r *http.Request) {
	defer t.calls.Done()
	if isRead(r) { // a stream ends with the tenure
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		defer context.AfterFunc(t.ctx, cancel)()
		r = r.WithContext(ctx)
	}
	api.ServeHTTP(&fencedWriter{ResponseWriter: w, t: t, reads: isRead(r)}, r)
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
	if (w.reads || status >= 400 && status != http.StatusServiceUnavailable) && !w.t.valid() {
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
		if overdue(r.Context(), answered, moved, func() { d.askAnother(ctx, address) }) {
			cancel()
		}
	}()
	out, err := m.request(ctx, r, f, address)
	if err != nil {
		unavailable(w, detailNoOwner)
		return true
	}
	answer, err := m.client.Do(out)
	if err != nil {
		return m.refuseUnanswered(w, r, f, d, address, err)
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
	if isStream(answer) {
		defer context.AfterFunc(r.Context(), cancel)()
	}
	copyAnswer(w, answer)
	return true
}

// overdue waits for the answer of an owner. It returns true when the owner may take no longer. It calls
// ask whenever the owner has not answered for a while.
func overdue(caller context.Context, answered, moved <-chan struct{}, ask func()) bool {
	tick := time.NewTicker(askAnotherAfter)
	defer tick.Stop()
	gone, end := caller.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case <-answered:
			return false
		case <-moved: // an owner that stands still does not answer: the next one ends the wait
			moved, end = nil, time.After(lastAnswer)
		case <-gone: // or it has closed its side only, and waits for the answer
			gone = nil
			if end == nil {
				end = time.After(patience)
			}
		case <-tick.C:
			ask()
		case <-end:
			return true
		}
	}
}

// hops are the headers of one connection, and what only a member may set. Expect is this member's too: it has received
// the head of the body. With one of the keys the transport sends a call again by itself: then a call that an owner
// carried out counts as not sent.
var hops = [...]string{
	"Connection", "Keep-Alive", "Proxy-Connection", "Te", "Trailer", "Transfer-Encoding", "Upgrade", "Expect",
	"Idempotency-Key", "X-Idempotency-Key", secured, asker,
}

// request is the call as it is sent to an owner.
func (m *Member) request(ctx context.Context, r *http.Request, f *forwarding, address string) (*http.Request, error) {
	out, err := http.NewRequestWithContext(ctx, r.Method, m.cfg.scheme()+"://"+address, f.body())
	if err != nil {
		return nil, err
	}
	// What the caller sent must not change the host: http:@host/ is a URL without a path.
	out.URL.Path, out.URL.RawPath = r.URL.Path, r.URL.RawPath
	out.URL.RawQuery, out.URL.ForceQuery = r.URL.RawQuery, r.URL.ForceQuery
	// The path goes on as it was sent: URL would encode it anew where a caller did not encode a
	// character that should be, and %2F would be lost.
	if raw := r.URL.RawPath; raw != "" && !strings.HasPrefix(raw, "//") {
		out.URL.Opaque = raw
	}
	out.Header, out.Host, out.ContentLength = r.Header.Clone(), r.Host, r.ContentLength
	for _, h := range hops {
		out.Header.Del(h)
	}
	if !f.whole { // it is sent once the owner reads it
		out.Header.Set("Expect", "100-continue")
	}
	out.Header.Set(caller, r.RemoteAddr)
	if r.TLS != nil {
		out.Header.Set(secured, "true")
	}
	return out, nil
}

// refuseUnanswered answers for an owner that did not. It returns false if the call did nothing there and
// can be sent again.
func (m *Member) refuseUnanswered(w http.ResponseWriter, r *http.Request, f *forwarding, d destination, address string, err error) bool {
	var dial *net.OpError
	switch {
	case f.large.failure() != nil: // the owner does nothing without all of it
		m.count(r.Context(), d, resultGone)
		refuseBody(w, f.large.failure())
	case r.Context().Err() != nil:
		m.count(r.Context(), d, resultGone)
		unavailable(w, detailUnknown)
	case isRead(r), errors.As(err, &dial) && dial.Op == "dial":
		f.dead = address
		d.refused(address, "")
		return false // it was not sent, or changes nothing
	default:
		m.logUnknown(address, err)
		m.count(r.Context(), d, resultUnknown)
		w.Header().Set(notOwner, "unknown")
		unavailable(w, detailUnknown)
	}
	return true
}

// logUnknown logs why the outcome of a call is unknown. An owner that goes away leaves many such calls.
func (m *Member) logUnknown(address string, err error) {
	if leftOut, ok := m.outcomes.Next(time.Now()); ok {
		m.cfg.Log.Warn("the owner took a call and did not answer: its caller was told that the outcome is unknown", "owner", address, "error", err, "linesLeftOut", leftOut)
	}
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
// audit lines. The connection has the address of the member.
func setCaller(r *http.Request) {
	if from := r.Header.Get(caller); from != "" {
		r.RemoteAddr = from
	}
	r.Header.Del(caller)
}

// isRead reports that the call changes nothing.
func isRead(r *http.Request) bool { return r.Method == http.MethodGet || r.Method == http.MethodHead }

func isStream(answer *http.Response) bool {
	return strings.HasPrefix(answer.Header.Get("Content-Type"), "text/event-stream")
}

// copyAnswer copies the answer, the body of a stream as it comes.
func copyAnswer(w http.ResponseWriter, answer *http.Response) {
	for name, values := range answer.Header {
		if name != "Connection" && name != "Transfer-Encoding" {
			w.Header()[name] = values
		}
	}
	w.WriteHeader(answer.StatusCode)
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
