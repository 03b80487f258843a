package why

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/reschedule-dev/reschedule/sdk"
)

// What is in the errors of a transport that may not make a call.
var (
	ErrNoToken = errors.New("requesting a token")      // there is none
	ErrDenied  = errors.New("the caller has no right") // to the adapter, or to a token
)

// noToken is the code of a refusal by the API server: there was no token to call with.
const noToken = "no_token"

// Refusal is an answer of the schedule API that is an error.
type Refusal struct {
	Status int // 0: there was no answer
	Code   string
	Detail string
}

// NewRefusal is the error of a call as an answer.
func NewRefusal(err error) *Refusal {
	if refused, ok := errors.AsType[*sdk.Error](err); ok {
		return &Refusal{Status: refused.Status, Code: string(refused.Code), Detail: refused.Detail}
	}
	r := &Refusal{}
	switch {
	case errors.Is(err, ErrNoToken):
		r.Code = noToken
	case errors.Is(err, ErrDenied):
		r.Status = http.StatusForbidden
	case errors.Is(err, sdk.ErrForeign):
		r.Status = http.StatusOK
	}
	// The text around it names calls and addresses that the user did not type.
	if call, ok := errors.AsType[*url.Error](err); ok {
		err = call.Err
	}
	r.Detail = CallError(err)
	return r
}

// CallError is the error of a call to the schedule API as the part of a sentence.
func CallError(err error) string {
	switch text := plain(err.Error()); {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer came in time"
	case hungUp(text):
		return "it closed the connection without an answer"
	default:
		return text
	}
}
