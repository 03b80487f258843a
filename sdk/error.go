package sdk

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Code is the stable name of a refusal. The codes are errors, for [errors.Is].
type Code string

// Error implements error.
func (c Code) Error() string { return string(c) }

// The codes. A call changed nothing if its error is one of these, except
// ErrUnavailable.
const (
	ErrInvalid          Code = "invalid_argument"       // Field of the [Error] says what to correct
	ErrUnauthorized     Code = "unauthenticated"        // no token, or not a valid one
	ErrForbidden        Code = "permission_denied"      // ask for access to the source
	ErrNotFound         Code = "not_found"              // nothing is scheduled under the key, or there is no such source
	ErrExists           Code = "already_exists"         // the policy is fail, and the key is scheduled
	ErrExhausted        Code = "attempts_exhausted"     // MaxAttempts of the back-off are used up
	ErrConflict         Code = "precondition_failed"    // a condition does not hold: read the key and decide again
	ErrTooLarge         Code = "too_large"              // send a reference instead
	ErrFull             Code = "quota_exceeded"         // the source has limits.maxPending keys; replacing one is still possible
	ErrUnavailable      Code = "unavailable"            // not now; the change may or may not have been made
	ErrStorageFull      Code = "storage_full"           // the adapter's disk is full
	ErrMethodNotAllowed Code = "method_not_allowed"     // something between changed the request
	ErrMediaType        Code = "unsupported_media_type" // likewise
)

// ErrForeign is the error of a success that no source gave: another server answers at the
// address, or a proxy. Whether a change was made is not known.
var ErrForeign = errors.New("the answer is not an answer of a RescheduleSource")

// Error is a refusal.
type Error struct {
	// Status is the status of the HTTP answer, 0 if the request was not sent.
	Status int
	// Code is the reason. It is "" when no source answered and the status alone is not
	// certain: a 404 of a proxy says nothing about a key.
	Code Code
	// Field is the field, parameter or header at fault, if there is one.
	Field string
	// Detail is a sentence for people.
	Detail string
	// RetryAfter is when another try may succeed, 0 if it is not known.
	RetryAfter time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	switch {
	case e.Status == 0:
		return fmt.Sprintf("%s: %s", e.Code, e.Detail)
	case e.Code == "":
		return fmt.Sprintf("%d: %s", e.Status, e.Detail)
	}
	return fmt.Sprintf("%d %s: %s", e.Status, e.Code, e.Detail)
}

// Is makes an Error match its [Code].
func (e *Error) Is(target error) bool { return target == error(e.Code) }

// problem is an Error in JSON; type and title of RFC 9457 say nothing more.
type problem struct {
	Status int    `json:"status"`
	Code   string `json:"code"`
	Detail string `json:"detail"`
	Field  string `json:"field"`
}

// refusal makes an Error of an answer that is not a success.
func refusal(resp *http.Response, body []byte) *Error {
	e := &Error{Status: resp.StatusCode, RetryAfter: retryAfter(resp.Header.Get("Retry-After"))}
	var p problem
	if media(resp.Header) == "application/problem+json" && json.Unmarshal(body, &p) == nil && p.Code != "" {
		e.Code, e.Field, e.Detail = Code(p.Code), p.Field, p.Detail
		return e
	}
	// A proxy, or a Service without a pod behind it.
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		e.Code = ErrUnauthorized
	case http.StatusForbidden:
		e.Code = ErrForbidden
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		e.Code = ErrUnavailable
	}
	e.Detail = "not an answer of a RescheduleSource"
	if to := resp.Header.Get("Location"); to != "" {
		e.Detail += ", but a redirect to " + to + ": is the address status.address.url of the source?"
	} else if text := strings.ToValidUTF8(string(body[:min(len(body), 200)]), ""); text != "" {
		e.Detail += ", but " + strconv.Quote(strings.TrimSpace(text))
	}
	return e
}

func media(h http.Header) string {
	t, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return t
}

// retryAfter reads seconds or a date; 0 when it is neither, or past.
func retryAfter(s string) time.Duration {
	if n, err := strconv.ParseUint(s, 10, 31); err == nil {
		return time.Duration(n) * time.Second
	}
	t, err := http.ParseTime(s)
	if err != nil {
		return 0
	}
	return max(time.Until(t), 0)
}
