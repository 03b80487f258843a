package command

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	constants "k8s.io/apimachinery/pkg/util/portforward"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// cluster is a fake API server, with a fake adapter behind its port-forward.
type cluster struct {
	t          *testing.T
	mu         sync.Mutex
	refuse     map[string]int // a status, by method and a part of the path
	refuseOnce bool           // each only once
	fakeAPI
	fakeAdapter
	forwards
	hanging
}

// fakeAPI is an API server.
type fakeAPI struct {
	api     *httptest.Server
	objects map[string]map[string]any // by path
	calls   []string                  // method and path, with the body of a TokenRequest
	tokens  [][]string                // the audiences of each token
	reviews []string                  // what was asked about: namespace/resource/subresource/name
	// commands are what a command in a pod does, by the pod's name. In others none can be run.
	commands map[string]execution
	// ending is a namespace that is being deleted: it gets no tokens.
	ending string
}

// fakeAdapter is a schedule API, with metrics.
type fakeAdapter struct {
	adapter *httptest.Server
	answers map[string]string // by method and path: a status and a body
	once    map[string]string // the same, and each is given once
	asked   []string          // the calls
}

// forwards are how port-forwards fail.
type forwards struct {
	// onlySPDY is an API server without port-forwards over WebSocket.
	onlySPDY bool
	// late is when port-forwards are accepted, nil = at once; mute ones answer no stream.
	late chan struct{}
	mute bool
	// opened counts the port-forwards. The pods of the first ones, as many as replaced says, are
	// gone, and so are the programs of pods with refuses in their path: what is forwarded to
	// them is refused, stream by stream, and the port-forward stays.
	opened, replaced int
	refuses          string
}

// hanging are calls that get no answer, of the API server or the adapter.
type hanging struct {
	hangs    string        // a part of their path
	released chan struct{} // ends them
	// begun has an item for each of them and for each port-forward, and gone has one once it is over.
	begun, gone chan struct{}
}

const (
	group    = "/apis/sources.reschedule.dev/v1alpha1"
	system   = "/api/v1/namespaces/knative-eventing"
	setPath  = "/apis/apps/v1/namespaces/knative-eventing/statefulsets/reschedule-adapter"
	podPath  = system + "/pods/reschedule-adapter-0"
	healthy  = `{"pending":3,"due":0,"inFlight":0,"retrying":0,"deadLetters":0,"nextDueAt":"2050-01-01T00:00:00Z","oldestDueAt":null,"watched":0}`
	notFound = `404 {"status":404,"code":"not_found","detail":"nothing waits"}`
)

// newCluster has one source, ops/web, which is Ready, and an adapter that runs.
func newCluster(t *testing.T) *cluster {
	c := &cluster{t: t, refuse: map[string]int{}}
	c.objects, c.answers, c.once = map[string]map[string]any{}, map[string]string{}, map[string]string{}
	c.api = httptest.NewServer(http.HandlerFunc(c.serve))
	c.adapter = httptest.NewServer(http.HandlerFunc(c.serveAdapter))
	t.Cleanup(c.api.Close)
	t.Cleanup(c.adapter.Close)
	c.released, c.begun, c.gone = make(chan struct{}), make(chan struct{}, 100), make(chan struct{}, 100)
	t.Cleanup(func() { close(c.released) })
	c.source("ops", "web", nil)
	c.put(setPath, `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"reschedule-adapter"},"spec":{"replicas":1},"status":{"readyReplicas":1}}`)
	return c
}

func (c *cluster) put(path, object string) {
	c.t.Helper()
	var o map[string]any
	if err := json.Unmarshal([]byte(object), &o); err != nil {
		c.t.Fatal(err)
	}
	c.objects[path] = o
}

// source adds a source that is Ready, with changes.
func (c *cluster) source(namespace, name string, change func(o map[string]any)) {
	path := group + "/namespaces/" + namespace + "/reschedulesources/" + name
	c.put(path, fmt.Sprintf(`{"apiVersion":"sources.reschedule.dev/v1alpha1","kind":"RescheduleSource",
		"metadata":{"namespace":%q,"name":%q,"uid":"u-%s","generation":1,"creationTimestamp":"2026-11-01T00:00:00Z"},
		"spec":{"sink":{"uri":"http://sink"},"limits":{"maxInFlight":7,"maxPending":3000,"maxBytes":"1Mi"},"delivery":{"timeout":"PT30S","retry":3}},
		"status":{"observedGeneration":1,"sinkUri":"http://sink","pending":3,
			"address":{"url":"http://reschedule-adapter.knative-eventing.svc.cluster.local/%s/%s"},
			"conditions":[{"type":"Ready","status":"True"},{"type":"Deployed","status":"True"}]}}`, namespace, name, name, namespace, name))
	if change != nil {
		change(c.objects[path])
	}
	c.answers["GET /"+namespace+"/"+name] = "200 " + healthy
}

// serve is the API server.
func (c *cluster) serve(w http.ResponseWriter, r *http.Request) {
	if c.hangs != "" && strings.Contains(r.URL.Path, c.hangs) {
		tell(c.begun)
		select {
		case <-c.released:
		case <-r.Context().Done():
			tell(c.gone)
		}
		return
	}
	if pod, ok := strings.CutSuffix(r.URL.Path, "/portforward"); ok && (pod == podPath || c.objects[pod] != nil) {
		c.mu.Lock()
		status := c.refuse["GET "+r.URL.Path]
		c.mu.Unlock()
		if status != 0 {
			refuseWith(w, status)
			return
		}
		c.forward(w, r)
		return
	}
	if pod, ok := strings.CutSuffix(r.URL.Path, "/exec"); ok {
		if e, ok := c.commands[strings.TrimPrefix(pod, system+"/pods/")]; ok {
			c.execute(w, r, e)
			return
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	body, _ := io.ReadAll(r.Body)
	c.calls = append(c.calls, r.Method+" "+r.URL.Path)
	for what, status := range c.refuse {
		if method, part, _ := strings.Cut(what, " "); method == r.Method && strings.Contains(r.URL.Path, part) {
			if c.refuseOnce {
				delete(c.refuse, what)
			}
			refuseWith(w, status)
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	var sent map[string]any
	_ = json.Unmarshal(body, &sent)
	switch {
	case c.ending != "" && strings.HasSuffix(r.URL.Path, "/token") && strings.Contains(r.URL.Path, "/namespaces/"+c.ending+"/"):
		reply(w, 403, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "Forbidden", "code": 403,
			"message": "it is being terminated", "details": map[string]any{"causes": []any{map[string]any{"reason": corev1.NamespaceTerminatingCause}}}})
	case strings.HasSuffix(r.URL.Path, "/token"):
		var request struct{ Spec struct{ Audiences []string } }
		_ = json.Unmarshal(body, &request)
		c.tokens = append(c.tokens, request.Spec.Audiences)
		sent["status"] = map[string]any{"token": "token-for-" + strings.Join(request.Spec.Audiences, ",")}
		reply(w, 201, sent)
	case strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews"):
		var review struct {
			Spec struct {
				ResourceAttributes struct{ Namespace, Resource, Subresource, Name string }
			}
		}
		_ = json.Unmarshal(body, &review)
		a := review.Spec.ResourceAttributes
		c.reviews = append(c.reviews, strings.Join([]string{a.Namespace, a.Resource, a.Subresource, a.Name}, "/"))
		sent["status"] = map[string]any{"allowed": c.refuse["GET /review"] == 0}
		reply(w, 201, sent)
	case r.Method == http.MethodPost && sent["metadata"] != nil:
		name := sent["metadata"].(map[string]any)["name"].(string)
		if c.objects[r.URL.Path+"/"+name] != nil {
			reply(w, 409, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409, "message": name + " already exists"})
			return
		}
		c.objects[r.URL.Path+"/"+name] = sent
		reply(w, 201, sent)
	case c.objects[r.URL.Path] == nil && r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/reschedulesources"):
		c.list(w, strings.TrimSuffix(r.URL.Path, "reschedulesources"))
	case c.objects[r.URL.Path] == nil:
		refuseWith(w, 404)
	case r.Method == http.MethodPut:
		c.objects[r.URL.Path] = sent
		reply(w, 200, sent)
	case r.Method == http.MethodPatch:
		maps.Copy(c.objects[r.URL.Path]["spec"].(map[string]any), sent["spec"].(map[string]any))
		reply(w, 200, c.objects[r.URL.Path])
	case r.Method == http.MethodDelete:
		delete(c.objects, r.URL.Path)
		reply(w, 200, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Success"})
	default:
		reply(w, 200, c.objects[r.URL.Path])
	}
}

func (c *cluster) list(w http.ResponseWriter, under string) {
	items := []any{}
	for _, path := range slices.Sorted(maps.Keys(c.objects)) {
		if strings.HasPrefix(path, group) && (strings.HasPrefix(path, under) || under == group+"/") {
			items = append(items, c.objects[path])
		}
	}
	reply(w, 200, map[string]any{"apiVersion": "sources.reschedule.dev/v1alpha1", "kind": "RescheduleSourceList", "metadata": map[string]any{}, "items": items})
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func refuseWith(w http.ResponseWriter, status int) {
	reason := map[int]string{403: "Forbidden", 404: "NotFound", 409: "Conflict"}[status]
	reply(w, status, map[string]any{"apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "message": strings.ToLower(reason) + " by the test", "code": status})
}

// serveAdapter is the schedule API, and the metrics.
func (c *cluster) serveAdapter(w http.ResponseWriter, r *http.Request) {
	if c.hangs != "" && strings.Contains(r.URL.Path, c.hangs) {
		tell(c.begun)
		<-c.released
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	what := r.Method + " " + r.URL.Path
	if member := r.Method + " " + r.Host + r.URL.Path; c.answers[member] != "" { // of one pod
		what = member
	}
	c.asked = append(c.asked, strings.TrimSpace(what+" "+r.Header.Get("Authorization")+" "+r.Header.Get("If-Match")))
	answer := cmp.Or(c.once[what], c.answers[what], notFound)
	delete(c.once, what)
	var status int
	_, _ = fmt.Sscan(answer, &status)
	_, body, _ := strings.Cut(answer, " ")
	w.Header().Set("Content-Type", "application/json")
	switch {
	case status >= 400:
		w.Header().Set("Content-Type", "application/problem+json")
	case strings.HasSuffix(r.URL.Path, "/events"):
		w.Header().Set("Content-Type", "text/event-stream")
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body)
}

// forward is the port-forward of an API server: over WebSocket, or, as with older ones, over
// SPDY alone.
func (c *cluster) forward(w http.ResponseWriter, r *http.Request) {
	streams := make(chan httpstream.Stream, 8)
	accept := func(s httpstream.Stream, replySent <-chan struct{}) error {
		go func() {
			<-replySent
			streams <- s
		}()
		return nil
	}
	var conn httpstream.Connection
	overSockets := strings.EqualFold(r.Header.Get("Upgrade"), "websocket")
	if overSockets && c.onlySPDY {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	tell(c.begun)
	defer tell(c.gone)
	if c.late != nil {
		<-c.late
	}
	switch {
	case c.mute && !overSockets:
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return
		}
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", spdy.HeaderSpdy31)
		w.WriteHeader(http.StatusSwitchingProtocols)
		if raw, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_, _ = io.Copy(io.Discard, raw)
		}
		return
	case overSockets:
		upgrader := websocket.Upgrader{Subprotocols: []string{constants.WebsocketsSPDYTunnelingPortForwardV1}}
		socket, err := upgrader.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		if c.mute {
			_, _ = io.Copy(io.Discard, socket.NetConn())
			return
		}
		if conn, err = spdy.NewServerConnection(portforward.NewTunnelingConnection("server", socket), accept); err != nil {
			return
		}
	default:
		if _, err := httpstream.Handshake(r, w, []string{portforward.PortForwardProtocolV1Name}); err != nil {
			return
		}
		if conn = spdy.NewResponseUpgrader().UpgradeResponse(w, r, accept); conn == nil {
			return
		}
	}
	c.mu.Lock()
	c.calls = append(c.calls, "forwarded over "+r.Header.Get("Upgrade"), "forwarded "+r.URL.Path)
	c.opened++
	number := c.opened
	c.mu.Unlock()
	defer conn.Close()
	for {
		select {
		case s := <-streams:
			c.mu.Lock()
			refused := number <= c.replaced || c.refuses != "" && strings.Contains(r.URL.Path, c.refuses)
			c.mu.Unlock()
			go c.pipe(s, refused)
		case <-conn.CloseChan():
			return
		}
	}
}

// execution is what a command in a pod does.
type execution struct {
	out, errs string
	status    int
	// lost is a connection that breaks before the command ends.
	lost bool
}

// execute is a command in a pod, over WebSocket alone.
func (c *cluster) execute(w http.ResponseWriter, r *http.Request, e execution) {
	upgrader := websocket.Upgrader{Subprotocols: []string{remotecommand.StreamProtocolV5Name}}
	socket, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer socket.Close()
	c.mu.Lock()
	c.calls = append(c.calls, "executed "+r.URL.Path+" "+strings.Join(r.URL.Query()["command"], " "))
	c.mu.Unlock()
	say := func(stream byte, text string) {
		if text != "" {
			_ = socket.WriteMessage(websocket.BinaryMessage, append([]byte{stream}, text...))
		}
	}
	say(remotecommand.StreamStdOut, e.out)
	say(remotecommand.StreamStdErr, e.errs)
	if e.lost {
		return
	}
	ended := metav1.Status{Status: metav1.StatusSuccess}
	if e.status != 0 {
		ended = metav1.Status{Status: metav1.StatusFailure, Reason: remotecommand.NonZeroExitCodeReason, Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: remotecommand.ExitCodeCauseType, Message: strconv.Itoa(e.status)}}}}
	}
	text, err := json.Marshal(ended)
	if err != nil {
		c.t.Error(err)
	}
	say(remotecommand.StreamErr, string(text))
	_ = socket.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(websocket.CloseNormalClosure, ""), time.Now().Add(time.Second))
	_, _, _ = socket.NextReader() // until the client closes it too
}

// tell tells a test that a call that hangs, or a port-forward, has begun or has ended. Most tests do not look.
func tell(test chan<- struct{}) {
	select {
	case test <- struct{}{}:
	default:
	}
}

// pipe connects a stream with the adapter; a port that it does not have is a fault.
func (c *cluster) pipe(s httpstream.Stream, refused bool) {
	h := s.Headers()
	if port := h.Get(corev1.PortHeader); refused || port != "8080" && port != "9090" {
		if h.Get(corev1.StreamType) == corev1.StreamTypeError {
			_, _ = io.WriteString(s, "nothing listens on port "+port)
			_ = s.Close()
			return
		}
		_ = s.Reset() // unread data would block the others
		return
	}
	if h.Get(corev1.StreamType) == corev1.StreamTypeError {
		_ = s.Close()
		return
	}
	to, err := net.Dial("tcp", c.adapter.Listener.Addr().String())
	if err != nil {
		_ = s.Reset()
		return
	}
	go func() {
		_, _ = io.Copy(to, s)
		_ = to.Close()
	}()
	_, _ = io.Copy(s, to)
	_ = s.Close()
}

// run runs a command in the cluster. Without forwarded the connections to the adapter are
// direct.
func (c *cluster) run(forwarded bool, args ...string) (code int, out, errs string) {
	c.t.Helper()
	var stdout, stderr strings.Builder
	e := c.program(forwarded, &stdout, &stderr)
	code = e.run(c.t.Context(), append(args, "--kubeconfig", c.kubeconfig()))
	return code, stdout.String(), stderr.String()
}

// program is the command line in the cluster.
func (c *cluster) program(forwarded bool, out, errs io.Writer) *program {
	p := &program{env: env{in: strings.NewReader(""), out: out, err: errs, now: time.Now}, connection: connection{version: "dev"}}
	if !forwarded {
		p.dial = c.direct
	}
	return p
}

// session is a session whose calls go through the port-forward.
func (c *cluster) session() *session {
	c.t.Helper()
	e := c.program(true, io.Discard, io.Discard)
	if err := e.root().ParseFlags([]string{"--kubeconfig", c.kubeconfig()}); err != nil {
		c.t.Fatal(err)
	}
	s, err := e.session()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(s.close)
	return s
}

// direct is a connection to the adapter without a port-forward.
func (c *cluster) direct(ctx context.Context, _ int) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", c.adapter.Listener.Addr().String())
}

// kubeconfig is a file with the API server.
func (c *cluster) kubeconfig() string {
	c.t.Helper()
	config := filepath.Join(c.t.TempDir(), "config")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"t","clusters":[{"name":"t","cluster":{"server":%q}}],
		"contexts":[{"name":"t","context":{"cluster":"t","user":"t","namespace":"ops"}}],"users":[{"name":"t","user":{}}]}`, c.api.URL)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return config
}

// spec is the spec of a source, as JSON.
func (c *cluster) spec(namespace, name string) string {
	o := c.objects[group+"/namespaces/"+namespace+"/reschedulesources/"+name]
	if o == nil {
		return ""
	}
	b, err := json.Marshal(o["spec"])
	if err != nil {
		c.t.Fatal(err)
	}
	return string(b)
}
