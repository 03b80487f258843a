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

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/loglimit"
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
	// notOwner marks an answer of a member that does not own the group: it did nothing.
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
	detailSealed  = "the group of adapters was sealed: nothing was changed, and nothing is any more; an administrator moves its data on"
	detailBusy    = "too many calls are on their way to the owner of the source: nothing was changed; try again"
)

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

// outcome is what became of a call where it was tried.
type outcome int

const (
	// answered: the caller has an answer, of the API or a refusal.
	answered outcome = iota
	// untouched: nothing was done, and the caller has no answer: the call can be tried again.
	untouched
	// unknown: the call may have been carried out, and no answer comes.
	unknown
)

// ownership is who owns the group, as this member knows it.
type ownership interface {
	// here is the tenure of this member, nil: it does not own the group. Changed is closed when that changes.
	here() (t *tenure, changed <-chan struct{})
	// elsewhere is the address of another member that owns the group, "": none is known. Moved is closed
	// when another one does.
	elsewhere() (address string, moved <-chan struct{})
	// isSealed reports that the group has ended.
	isSealed() bool
}

// router answers calls here or at the owner.
type router struct {
	ownership
	cfg      *Config
	client   *http.Client
	slots    *budget.Budget // held by calls that are forwarded, of one peer a quarter at most
	counter  metric.Int64Counter
	outcomes loglimit.Limit // the lines about calls whose outcome is unknown
}

// newRouter returns a router that counts once counter is set.
func newRouter(cfg *Config, o ownership, client *http.Client) *router {
	return &router{ownership: o, cfg: cfg, client: client, slots: budget.New(maxForwarded), outcomes: loglimit.Limit{Lines: 1, Per: time.Second}}
}

// answerForwarded answers a call that another member forwarded. It is forwarded no further.
func (r *router) answerForwarded(api http.Handler, w http.ResponseWriter, request *http.Request) {
	setSecured(request)
	setCaller(request)
	request.Header.Del("Expect") // it is the sending member's: the caller has begun to send its body
	switch t, _ := r.here(); {
	case t.enter():
		t.serve(api, w, request)
	case r.isSealed():
		unavailable(w, detailSealed)
	default:
		w.Header().Set(notOwner, "true")
		unavailable(w, detailNoOwner)
	}
}

// answer answers a call here or at the owner. While there is none it waits.
func (r *router) answer(api http.Handler, w http.ResponseWriter, request *http.Request) {
	c := routed{router: r, api: api, w: w, r: request, deadline: time.NewTimer(patience)}
	defer c.end()
	for {
		changed, moved, o := c.try()
		if o == untouched {
			o = c.wait(changed, moved)
		}
		switch o {
		case answered:
			return
		case unknown:
			w.Header().Set(notOwner, "unknown")
			unavailable(w, detailUnknown)
			return
		case untouched:
		}
	}
}

// routed is a call that is answered here or at an owner.
type routed struct {
	*router
	api      http.Handler
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

// try tries the call where the owner is now. The channels are closed when that may be another one.
func (c *routed) try() (changed, moved <-chan struct{}, _ outcome) {
	if c.isSealed() {
		unavailable(c.w, detailSealed)
		return nil, nil, answered
	}
	t, changed := c.here()
	if c.serveHere(t) == answered {
		return nil, nil, answered
	}
	owner, moved := c.elsewhere()
	if owner == "" {
		return changed, moved, untouched
	}
	if c.f == nil {
		if c.takeSlot() == answered {
			return nil, nil, answered
		}
		if owner, moved = c.elsewhere(); owner == "" { // it may be gone since the body began, which takes seconds
			return changed, moved, untouched
		}
	}
	return changed, moved, c.forward(owner, moved)
}

// serveHere answers the call here, if this member owns the group. No other member may be reading the body.
func (c *routed) serveHere(t *tenure) outcome {
	if c.f != nil && !c.f.repeatable() || !t.enter() {
		return untouched
	}
	if c.f != nil {
		c.r.Body = io.NopCloser(c.f.body())
	}
	t.serve(c.api, c.w, c.r)
	return answered
}

// takeSlot takes a slot of the calls that are forwarded, and then reads the head of the body.
func (c *routed) takeSlot() outcome {
	slot := c.slots.Claim(api.Peer(c.r), "")
	if !slot.TryGrow(1) {
		c.count(resultBusy)
		unavailable(c.w, detailBusy)
		return answered
	}
	f, err := newForwarding(c.w, c.r)
	if err != nil {
		slot.Release()
		refuseBody(c.w, err)
		return answered
	}
	f.slot = &slot
	c.f = f
	return untouched
}

// wait waits until the owner may be another one. Once the call has waited for as long as it may, or its
// caller is gone, it is refused.
func (c *routed) wait(changed, moved <-chan struct{}) outcome {
	result := resultNoOwner
	select {
	case <-c.deadline.C:
	case <-c.r.Context().Done():
		result = resultGone
	case <-changed:
		return untouched
	case <-moved:
		return untouched
	case <-time.After(retryPause):
		return untouched
	}
	c.count(result)
	unavailable(c.w, detailNoOwner)
	return answered
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
// group meanwhile: the answer of a read, and a refusal.
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

// lastAnswer is how long the answer of an owner that handed the group over may be on its
// way. Without it the outcome of a call is unknown.
const lastAnswer = 400 * time.Millisecond

// forward sends the call to the owner.
func (c *routed) forward(address string, moved <-chan struct{}) outcome {
	if !c.f.repeatable() {
		c.count(resultNoOwner)
		unavailable(c.w, detailNoOwner)
		return answered
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.r.Context()))
	defer cancel()
	over := make(chan struct{})
	defer close(over)
	go func() {
		if overdue(c.r.Context(), over, moved) {
			cancel()
		}
	}()
	out, err := c.request(ctx, address)
	if err != nil {
		return untouched
	}
	answer, err := c.client.Do(out)
	if err != nil {
		return c.unanswered(address, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusServiceUnavailable && answer.Header.Get(notOwner) == "true" && c.f.repeatable() {
		return untouched
	}
	c.count(resultAnswered)
	if c.r.Header.Get("Expect") != "" && c.f.repeatable() {
		c.f.skip(c.w)
	}
	if isStream(answer) {
		defer context.AfterFunc(c.r.Context(), cancel)()
	}
	copyAnswer(c.w, answer)
	return answered
}

// overdue waits for the answer of an owner, until the call is over. It returns true when the owner may take no longer.
func overdue(caller context.Context, over, moved <-chan struct{}) bool {
	gone, end := caller.Done(), (<-chan time.Time)(nil)
	for {
		select {
		case <-over:
			return false
		case <-moved: // an owner that stands still does not answer: the next one ends the wait
			moved, end = nil, time.After(lastAnswer)
		case <-gone: // or it has closed its side only, and waits for the answer
			gone = nil
			if end == nil {
				end = time.After(patience)
			}
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
func (c *routed) request(ctx context.Context, address string) (*http.Request, error) {
	r := c.r
	out, err := http.NewRequestWithContext(ctx, r.Method, c.cfg.scheme()+"://"+address, c.f.body())
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
	if !c.f.whole { // it is sent once the owner reads it
		out.Header.Set("Expect", "100-continue")
	}
	out.Header.Set(caller, r.RemoteAddr)
	if r.TLS != nil {
		out.Header.Set(secured, "true")
	}
	return out, nil
}

// unanswered is what became of a call that the owner did not answer.
func (c *routed) unanswered(address string, err error) outcome {
	var dial *net.OpError
	switch {
	case c.f.large.failure() != nil: // the owner does nothing without all of it
		c.count(resultGone)
		refuseBody(c.w, c.f.large.failure())
		return answered
	case c.r.Context().Err() != nil:
		c.count(resultGone)
		return unknown
	case isRead(c.r), errors.As(err, &dial) && dial.Op == "dial":
		return untouched // it was not sent, or changes nothing
	}
	c.logUnknown(address, err)
	c.count(resultUnknown)
	return unknown
}

// logUnknown logs why the outcome of a call is unknown. An owner that goes away leaves many such calls.
func (r *router) logUnknown(address string, err error) {
	if leftOut, ok := r.outcomes.Next(time.Now()); ok {
		r.cfg.Log.Warn("the owner took a call and did not answer: its caller was told that the outcome is unknown", "owner", address, "error", err, "linesLeftOut", leftOut)
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
