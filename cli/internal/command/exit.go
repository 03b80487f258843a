package command

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/pkg/printable"
	"github.com/reschedule-dev/reschedule/sdk"
)

// The exit codes.
const (
	exitOther       = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitDenied      = 4
	exitConflict    = 5
	exitUnavailable = 6
	exitSome        = 7
	exitProblem     = 8
)

// exitError is an error with its exit code. Without a cause everything was said.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// Is reports a missing right to package why.
func (e *exitError) Is(target error) bool { return e.code == exitDenied && target == why.ErrDenied }

func usage(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// allOrNames refuses names together with --all-namespaces.
func allOrNames(all bool, names []string) error {
	if all && len(names) > 0 {
		return usage("--all-namespaces does not go with names")
	}
	return nil
}

func denied(format string, args ...any) error {
	return &exitError{exitDenied, fmt.Errorf(format, args...)}
}

func unavailable(format string, args ...any) error {
	return &exitError{exitUnavailable, fmt.Errorf(format, args...)}
}

// exit prints the error and returns its code.
func (e *env) exit(ctx context.Context, err error) int {
	if err == nil {
		return 0
	}
	if text := words(err); text != "" {
		fmt.Fprintln(e.err, "Error:", printable.Line(text))
	}
	if ctx.Err() != nil {
		return exitOther
	}
	return codeOf(err)
}

// words is the text of an error, without the name of the library that made it.
func words(err error) string {
	return strings.ReplaceAll(strings.TrimPrefix(err.Error(), "sdk: "), ": sdk: ", ": ")
}

// codeOf is the exit code of an error.
func codeOf(err error) int {
	var own *exitError
	switch {
	case errors.As(err, &own):
		return own.code
	case errors.Is(err, sdk.ErrNotFound), apierrors.IsNotFound(err):
		return exitNotFound
	case errors.Is(err, sdk.ErrUnauthorized), errors.Is(err, sdk.ErrForbidden), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return exitDenied
	case errors.Is(err, sdk.ErrConflict), errors.Is(err, sdk.ErrExists), errors.Is(err, sdk.ErrExhausted), apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return exitConflict
	case errors.Is(err, sdk.ErrInvalid), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return exitUsage
	case errors.Is(err, sdk.ErrUnavailable), errors.Is(err, sdk.ErrFull), errors.Is(err, sdk.ErrStorageFull), errors.Is(err, context.DeadlineExceeded),
		apierrors.IsServiceUnavailable(err), apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), apierrors.IsTooManyRequests(err):
		return exitUnavailable
	}
	var call *url.Error
	if errors.As(err, &call) && call.Op != "parse" { // it got no answer
		return exitUnavailable
	}
	return exitOther
}
