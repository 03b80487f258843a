package schedule

import (
	"fmt"
	"time"
)

// Code is the stable name of an error on the wire (RFC 9457 member "code").
type Code string

// The codes of the schedule API.
const (
	CodeInvalid         Code = "invalid_argument"
	CodeUnauthenticated Code = "unauthenticated"
	CodeDenied          Code = "permission_denied"
	CodeNotFound        Code = "not_found"
	CodeMethod          Code = "method_not_allowed"
	CodeExists          Code = "already_exists"
	CodeExhausted       Code = "attempts_exhausted"
	CodePrecondition    Code = "precondition_failed"
	CodeTooLarge        Code = "too_large"
	CodeMediaType       Code = "unsupported_media_type"
	CodeQuota           Code = "quota_exceeded"
	CodeUnavailable     Code = "unavailable"
	CodeStorageFull     Code = "storage_full"
)

// Error is a refusal that a caller sees: nothing was changed.
type Error struct {
	Code   Code
	Field  string // the field at fault, "" if none is
	Detail string // a sentence for people, naming the field
	// RetryAfter is when a new try may succeed; 0 where none will.
	RetryAfter time.Duration
	tooLong    bool // a time that is beyond MaxDuration, and valid otherwise
}

func (e *Error) Error() string { return e.Detail }

// Invalid is the refusal of one field's value.
func Invalid(field, format string, args ...any) *Error {
	return &Error{Code: CodeInvalid, Field: field, Detail: field + ": " + fmt.Sprintf(format, args...)}
}

// Refuse is any other refusal.
func Refuse(code Code, format string, args ...any) *Error {
	return &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
}
