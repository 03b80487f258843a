package api

import (
	"context"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/turns"
)

// Config is what the API needs.
type Config struct {
	// Lookup finds a source by its address; required.
	Lookup func(namespace, name string) (*queue.Source, bool)
	// Ingest takes CloudEvents; nil: POST to an address is not allowed.
	Ingest *ingest.Receiver
	// Guard says who may call; nil means everybody.
	Guard access.Guard
	// Resync schedules the objects that a source watches; Watched counts them. nil: no
	// source watches.
	Resync  func(ctx context.Context, uid, prefix string, over *time.Duration) (int, error)
	Watched func(uid string) int64

	Log *slog.Logger     // nil means slog.Default
	Now func() time.Time // nil means time.Now

	MaxBody int64 // bytes of a request's body, default 16 MiB
	// Budget bounds the bytes that bodies and answers hold at one time, default
	// 128 MiB; Requests what all requests under way hold beside that, default
	// 32 MiB.
	Budget, Requests int64
	// BudgetWait is how long a request waits for its share, default 5 s.
	BudgetWait time.Duration
	// Local refuses what a web page can make a browser send: without a Guard
	// every client that reaches the address may call, and a browser on the same machine
	// reaches it for any page.
	Local bool

	Meter metric.Meter // default none
}

const (
	defaultMaxBody    = 16 << 20
	defaultBudget     = 128 << 20
	defaultRequests   = 32 << 20
	defaultBudgetWait = 5 * time.Second
)

// source is what the handlers call of a *queue.Source.
type source interface {
	Schedule(key string, r *schedule.Request, claim queue.ClaimMemory) (queue.Scheduled, error)
	ScheduleAll(items []queue.Item, claim queue.ClaimMemory) ([]queue.Scheduled, error)
	Cancel(key string, c schedule.Conditions) error
	CancelAll(ctx context.Context, prefix string) (int, error)
	Get(key string) (schedule.View, bool, error)
	List(o queue.ListOptions) ([]schedule.View, string, error)
	Counts() (queue.Counts, error)
	ingest.Source
}

type handler struct {
	cfg    Config
	lookup func(namespace, name string) (source, bool)
	ingest func(ctx context.Context, src ingest.Source, h http.Header, body []byte, judge access.Judge) ([]queue.Item, error)
	// bytes are what bodies and answers share, shares what all requests under
	// way share, scans the lists that may look at many rows for few keys.
	bytes, shares, scans *budget.Budget
	// writing are the turns to decode large bodies and store what they say, encoding
	// to write large answers, which goes on while a full disk holds up the others.
	writing, encoding *turns.Turns

	answers *answers
}

// New returns the handler of the API. It is safe for concurrent use.
func New(cfg Config) http.Handler {
	h := newHandler(cfg)
	h.lookup = func(namespace, name string) (source, bool) {
		src, ok := cfg.Lookup(namespace, name)
		return src, ok
	}
	if cfg.Ingest != nil {
		h.ingest = cfg.Ingest.Ingest
	}
	return h
}

func newHandler(cfg Config) *handler {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if cfg.MaxBody <= 0 {
		cfg.MaxBody = defaultMaxBody
	}
	if cfg.Budget <= 0 {
		cfg.Budget = defaultBudget
	}
	if cfg.Requests <= 0 {
		cfg.Requests = defaultRequests
	}
	if cfg.BudgetWait <= 0 {
		cfg.BudgetWait = defaultBudgetWait
	}
	h := &handler{
		cfg: cfg, answers: newAnswers(cfg),
		writing: turns.New(), encoding: turns.New(),
		bytes: budget.New(cfg.Budget, nil), shares: budget.New(cfg.Requests, nil), scans: budget.New(scansAtOnce, nil),
	}
	h.observe()
	return h
}

// call is one request on its way through the handler.
type call struct {
	*handler
	w   http.ResponseWriter
	r   *http.Request
	src source
	key string
	// caller is who makes the request.
	caller access.Caller
	// path is what the request is to.
	path pathKind
	// status is the status of the answer, for the metrics.
	status int
	// share is what the request holds by being under way, claim what its body
	// and answer hold.
	share, claim budget.Claim
	// turn is held while a large body or answer is decoded or encoded.
	turn turns.Turn
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := call{handler: h, w: w, r: r}
	defer c.leave()
	err := c.enter()
	if err == nil {
		err = c.serve()
	}
	if err != nil {
		c.refuse(err)
	}
	h.answers.count(r.Method, c.path, c.status)
}

// writeHeader sends the status.
func (c *call) writeHeader(status int) {
	c.status = status
	c.w.WriteHeader(status)
}

func (c *call) serve() error {
	p := splitPath(c.r.URL)
	c.path = p.kind
	if p.kind == pathOpenAPI {
		return c.openAPI()
	}
	if c.cfg.Local {
		if err := fromHere(c.r); err != nil {
			return err
		}
	}
	if c.cfg.Guard != nil {
		var err error
		if c.caller, err = c.cfg.Guard.Admit(c.r, c.access(&p)); err != nil {
			return err
		}
	}
	do, allow := c.route(p.kind)
	switch {
	case allow == "":
		return schedule.Refuse(schedule.CodeNotFound, "no such path; a key is one path segment, a / in it is written %%2F")
	case do == nil:
		c.w.Header()["Allow"] = []string{allow}
		return schedule.Refuse(schedule.CodeMethod, "%.32q is not allowed here, only %s", c.r.Method, allow)
	}
	src, ok := c.lookup(p.namespace, p.name)
	if !ok {
		return schedule.Refuse(schedule.CodeNotFound, "there is no source %.64q in namespace %.64q", p.name, p.namespace)
	}
	c.src, c.key = src, p.key
	if c.cfg.Guard == nil || c.caller.User != "" {
		c.claim = c.bytes.Claim(p.namespace, p.name)
	} else {
		c.claim = c.bytes.Claim(strangers, peer(c.r))
	}
	if p.kind == pathKey {
		if err := schedule.ValidateKey(p.key); err != nil {
			return err
		}
	}
	return do(c)
}

// route finds the call that the method asks of a path, nil when it is none,
// and the methods that are allowed there, "" when there is no such path.
func (c *call) route(k pathKind) (do func(*call) error, allow string) {
	switch k {
	case pathSource:
		allow = "GET, HEAD, POST"
		switch c.r.Method {
		case http.MethodGet, http.MethodHead:
			do = (*call).counts
		case http.MethodPost:
			do = (*call).receive
		}
		if c.ingest == nil {
			allow = "GET, HEAD"
			if c.r.Method == http.MethodPost {
				do = nil
			}
		}
	case pathSchedules:
		allow = "DELETE, GET, HEAD, POST"
		switch c.r.Method {
		case http.MethodGet, http.MethodHead:
			do = (*call).list
		case http.MethodPost:
			do = (*call).bulk
		case http.MethodDelete:
			do = (*call).cancelAll
		}
	case pathKey:
		allow = "DELETE, GET, HEAD, PUT"
		switch c.r.Method {
		case http.MethodGet, http.MethodHead:
			do = (*call).get
		case http.MethodPut:
			do = (*call).put
		case http.MethodDelete:
			do = (*call).cancel
		}
	case pathResync:
		allow = "POST"
		if c.r.Method == http.MethodPost {
			do = (*call).resync
		}
	}
	return do, allow
}
