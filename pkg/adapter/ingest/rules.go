package ingest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/reschedule-dev/reschedule/pkg/adapter/budget"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
)

// Bounds of what the expressions of one request may take, for all its events
// together. The time does not include waiting for a turn.
const (
	maxRequestCost = 10 * expression.MaxCost
	maxRequestTime = time.Second
)

// Rules are a source's ingest settings, compiled. They are safe for
// concurrent use.
type Rules struct {
	src       *schedule.Spec
	key, when *expression.Program // nil: none
	time      time.Duration       // for the expressions of one request
}

// Compile compiles the source's expressions. Its error quotes the compiler and
// names the field at fault.
func Compile(src *schedule.Spec) (*Rules, error) {
	p, err := expression.Compile(src.Ingest.Key, src.Ingest.When)
	if err != nil {
		return nil, err
	}
	return &Rules{src: src, key: p.Key, when: p.When, time: maxRequestTime}, nil
}

// evaluating shares half of the processors among all evaluations. Bodies have turns
// of their own: an evaluation keeps its turn for up to maxRequestTime.
var evaluating = sync.OnceValue(budget.NewProcessors)

// allowance is what the expressions of one request may still take.
type allowance struct {
	cost uint64
	time time.Duration
}

var errSlow = errors.New("the time for the expressions of one request is over")

// judge evaluates the expressions for one event, in turn with the other
// sources. wanted is false for an event to drop; key is "" unless withKey.
func (r *Rules) judge(ctx context.Context, left *allowance, e *schedule.Event, withKey bool) (key string, wanted bool, err error) {
	if r.when == nil && !withKey {
		return "", true, nil
	}
	turn, err := evaluating().Take(ctx, r.src.Namespace, r.src.Name)
	if err != nil {
		return "", false, busy("too many events wait for their spec.ingest expressions")
	}
	defer turn.Release()
	start := time.Now()
	defer func() { left.time -= time.Since(start) }()
	ctx, cancel := context.WithTimeoutCause(ctx, left.time, errSlow)
	defer cancel()
	view := viewOf(e)
	if r.when != nil {
		// An error counts as true: an event too many is safe, one too few is not.
		out, refused, err := left.evaluate(ctx, r.when, expression.WhenField, view)
		if refused != nil || err == nil && out == types.False {
			return "", false, refused
		}
	}
	if !withKey {
		return "", true, nil
	}
	out, refused, err := left.evaluate(ctx, r.key, expression.KeyField, view)
	if refused != nil {
		return "", false, refused
	}
	if err != nil {
		return "", false, schedule.Invalid(expression.KeyField, "%v", err)
	}
	s, ok := out.(types.String)
	if !ok {
		return "", false, schedule.Invalid(expression.KeyField, "%v: %s, not string", errType, out.Type().TypeName())
	}
	return string(s), true, nil
}

var errType = errors.New("yields another type")

// evaluate returns the value or the error of an expression, or refuses the
// whole request: an error of an expression has a meaning of its own, and must
// not be what a request gets that asks for too much.
func (a *allowance) evaluate(ctx context.Context, p *expression.Program, field string, view map[string]any) (out ref.Val, refused, err error) {
	out, cost, err := p.Eval(ctx, view)
	switch {
	case errors.Is(err, errSlow):
		return nil, busy(fmt.Sprintf("%s: takes more than %s for the events of one request: send fewer at once", field, maxRequestTime)), nil
	case ctx.Err() != nil:
		return nil, busy("the request ended before its events were judged"), nil
	case cost > a.cost:
		return nil, schedule.Invalid(field, "costs more than %d for the events of one request: send fewer at once", maxRequestCost), nil
	}
	a.cost -= cost
	return out, nil, err
}

func busy(detail string) error {
	return &schedule.Error{Code: schedule.CodeUnavailable, Detail: detail, RetryAfter: time.Second}
}
