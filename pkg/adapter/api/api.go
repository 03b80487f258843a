package api

import (
	"context"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
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
	// Workload is the state of a source's workload; nil: there are none.
	Workload func(uid string) schedule.ScaleStatus

	Log *slog.Logger     // nil means slog.Default
	Now func() time.Time // nil means time.Now

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
	// Tracer makes a span of every request; nil means no spans.
	Tracer trace.Tracer
}

// maxBody bounds a request's body.
const maxBody = 16 << 20

const (
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
	History(key string) ([]recent.Outcome, time.Time, error)
	Follow(after uint64, resume bool) (f *recent.Follower, whole bool, err error)
	ingest.Source
}

// letters is what the handlers call of a *queue.Letters.
type letters interface {
	Get(key string) (queue.Letter, bool, error)
	List(prefix, token string, limit int) ([]queue.Letter, string, error)
	Discard(key string) error
	DiscardAll(ctx context.Context, prefix string) (int, error)
	Redrive(key string, replace bool, claim queue.ClaimMemory) (bool, error)
	RedriveAll(ctx context.Context, prefix string, replace bool, claim queue.ClaimMemory) (redriven, skipped int, err error)
}

// Handler answers the calls of the schedule API.
type Handler struct {
	cfg    Config
	lookup func(namespace, name string) (source, letters, bool)
	ingest func(ctx context.Context, src ingest.Source, h http.Header, body []byte, judge access.Judge) ([]queue.Item, error)
	// bytes are what bodies and answers share, shares what all requests under
	// way share, scans the lists that may read many rows for few keys.
	bytes, shares, scans *budget.Budget
	// writing are the turns to decode large bodies and store what they say, encoding
	// to write large answers, which goes on while a full disk holds up the others.
	writing, encoding *budget.Budget
	// following are the callers who follow events: by source, and by peer. ending is
	// closed when they must end.
	following, followers *budget.Budget
	ending               chan struct{}
	end                  sync.Once

	answers *answers
}

// New returns the handler of the API. It is safe for concurrent use.
func New(cfg Config) *Handler {
	h := newHandler(cfg)
	h.lookup = func(namespace, name string) (source, letters, bool) {
		src, ok := cfg.Lookup(namespace, name)
		if !ok {
			return nil, nil, false
		}
		return src, &src.Letters, true
	}
	if cfg.Ingest != nil {
		h.ingest = cfg.Ingest.Ingest
	}
	return h
}

func newHandler(cfg Config) *Handler {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
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
	h := &Handler{
		cfg: cfg, answers: newAnswers(cfg),
		writing: budget.NewProcessors(), encoding: budget.NewProcessors(),
		bytes: budget.New(cfg.Budget), shares: budget.New(cfg.Requests), scans: budget.New(scansAtOnce),
		following: budget.New(maxFollowers), followers: budget.New(maxFollowers), ending: make(chan struct{}),
	}
	h.observe()
	return h
}

// call is one request on its way through the handler.
type call struct {
	*Handler
	w       http.ResponseWriter
	r       *http.Request
	src     source
	letters letters
	key     string
	// caller is who makes the request.
	caller access.Caller
	// path is what the request is to.
	path pathKind
	// accounted is whether the audit log was asked to have the change.
	accounted bool
	// status is the status of the answer, for the metrics.
	status int
	// share is what the request holds by being under way, claim what its body
	// and answer hold.
	share, claim budget.Claim
	// turn is held while a large body or answer is decoded or encoded.
	turn *budget.Claim
}

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c := call{Handler: h, w: w, r: r}
	started := time.Now()
	defer c.leave()
	if h.cfg.Tracer != nil {
		defer c.trace()()
	}
	err := c.enter()
	if err == nil {
		err = c.serve()
	}
	if err != nil {
		c.refuse(err)
	}
	h.answers.count(r.Method, c.path, c.status, time.Since(started))
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
		return getOpenAPI(c)
	}
	if c.cfg.Local {
		if err := checkSameOrigin(c.r); err != nil {
			return err
		}
	}
	if c.cfg.Guard != nil {
		var err error
		if c.caller, err = c.cfg.Guard.Admit(c.r, accessOf(c.r.Method, &p)); err != nil {
			return err
		}
	}
	do, allow := c.route(p.kind)
	switch {
	case allow == "":
		return schedule.Refuse(schedule.CodeNotFound, "no such path: at an address are /schedules, /deadletters, /events and /resync; a / in a key is written %%2F")
	case do == nil:
		c.w.Header()["Allow"] = []string{allow}
		return schedule.Refuse(schedule.CodeMethod, "%.32q is not allowed here, only %s", c.r.Method, allow)
	}
	var ok bool
	if c.src, c.letters, ok = c.lookup(p.namespace, p.name); !ok {
		return schedule.Refuse(schedule.CodeNotFound, "there is no source %.64q in namespace %.64q", p.name, p.namespace)
	}
	c.key = p.key
	if c.cfg.Guard == nil || c.caller.User != "" {
		c.claim = c.bytes.Claim(p.namespace, p.name)
	} else {
		c.claim = c.bytes.Claim(unauthenticatedNamespace, Peer(c.r))
	}
	switch p.kind {
	case pathKey, pathRun, pathHistory, pathLetter, pathRedriveAll, pathRedrive:
		if err := schedule.ValidateKey(p.key); err != nil {
			return err
		}
	}
	err := do(c)
	c.auditUnread(err)
	return err
}

// calls are what the methods do that a path allows, HEAD as GET.
var calls = map[pathKind]map[string]func(*call) error{
	pathSource:     {http.MethodGet: getCounts, http.MethodPost: receiveEvents},
	pathSchedules:  {http.MethodGet: listKeys, http.MethodPost: scheduleAll, http.MethodDelete: cancelAll},
	pathKey:        {http.MethodGet: getKey, http.MethodPut: putKey, http.MethodDelete: cancelKey},
	pathResync:     {http.MethodPost: resync},
	pathRun:        {http.MethodPost: runKey},
	pathHistory:    {http.MethodGet: keyHistory},
	pathEvents:     {http.MethodGet: followEvents},
	pathLetters:    {http.MethodGet: listLetters, http.MethodDelete: discardLetters},
	pathLetter:     {http.MethodGet: getLetter, http.MethodDelete: discardLetter},
	pathRedriveAll: {http.MethodGet: getLetter, http.MethodDelete: discardLetter, http.MethodPost: redriveLetters},
	pathRedrive:    {http.MethodPost: redriveLetter},
}

// route finds the call that the method asks of a path, nil when it is none,
// and the methods that are allowed there, "" when there is no such path.
func (c *call) route(k pathKind) (do func(*call) error, allow string) {
	method := c.r.Method
	if method == http.MethodHead && k != pathEvents {
		method = http.MethodGet
	}
	taken := k != pathSource || method != http.MethodPost || c.ingest != nil
	if do = calls[k][method]; do != nil && taken {
		return do, method
	}
	methods := make([]string, 0, 4)
	for m := range calls[k] {
		if m == http.MethodPost && k == pathSource && c.ingest == nil {
			continue
		}
		methods = append(methods, m)
		if m == http.MethodGet && k != pathEvents {
			methods = append(methods, http.MethodHead)
		}
	}
	slices.Sort(methods)
	return nil, strings.Join(methods, ", ")
}
