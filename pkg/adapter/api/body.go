package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// acquire takes a share of the budget, to be given back when the request ends.
func (c *call) acquire(n int64) error {
	n = min(n, c.cfg.Budget)
	// What is free is taken also when the process was held up for longer than
	// the wait.
	if !c.budget.TryAcquire(n) {
		ctx, cancel := context.WithTimeout(c.r.Context(), c.cfg.BudgetWait)
		defer cancel()
		if err := c.budget.Acquire(ctx, n); err != nil {
			return schedule.Refuse(schedule.CodeUnavailable, "too many large requests are under way")
		}
	}
	c.release = func() { c.budget.Release(n) }
	return nil
}

// readBody appends the request's body to buf. A large one waits for its share
// of the budget before it is read; of one whose length is not announced, the
// largest is assumed.
func (c *call) readBody(buf *bytes.Buffer) error {
	most, n := c.cfg.MaxBody, c.r.ContentLength
	switch {
	case n > most:
		return c.tooLarge()
	case n > uncounted:
		if err := c.acquire(n); err != nil {
			return err
		}
	case n < 0:
		if _, err := io.CopyN(buf, c.r.Body, uncounted); err != nil {
			return c.readError(err)
		}
		if err := c.acquire(most); err != nil {
			return err
		}
		if _, err := buf.ReadFrom(io.LimitReader(c.r.Body, most-uncounted+1)); err != nil {
			return c.readError(err)
		}
		if int64(buf.Len()) > most {
			return c.tooLarge()
		}
		return nil
	}
	buf.Grow(int(n))
	b := buf.AvailableBuffer()[:n]
	if _, err := io.ReadFull(c.r.Body, b); err != nil {
		if errors.Is(err, io.EOF) { // fewer bytes than announced, none
			err = io.ErrUnexpectedEOF
		}
		return c.readError(err)
	}
	buf.Write(b)
	return nil
}

func (c *call) tooLarge() error {
	// The rest is not worth reading, so the connection cannot go on.
	c.w.Header()["Connection"] = []string{"close"}
	return schedule.Refuse(schedule.CodeTooLarge, "the body has more than %d bytes", c.cfg.MaxBody)
}

// readError says why the body could not be read; nil when it simply ended.
func (c *call) readError(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	c.w.Header()["Connection"] = []string{"close"}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return schedule.Invalid("body", "did not arrive in time")
	}
	return schedule.Invalid("body", "ended before it was complete")
}

// jsonBody reads the body of a call that takes JSON, which must say so or say
// nothing. A Content-Type without content means nothing.
func (c *call) jsonBody(buf *bytes.Buffer) error {
	if c.r.ContentLength == 0 {
		return nil
	}
	if err := jsonType(c.r.Header); err != nil {
		return err
	}
	return c.readBody(buf)
}

func jsonType(h http.Header) error {
	if err := identity(h); err != nil {
		return err
	}
	lines := h["Content-Type"]
	if len(lines) == 0 || len(lines) == 1 && lines[0] == contentJSON {
		return nil
	}
	given := strings.Join(lines, ", ")
	refused := schedule.Refuse(schedule.CodeMediaType, "Content-Type %.100q is not application/json", given)
	t, params, err := mime.ParseMediaType(given)
	if err != nil || t != contentJSON {
		return refused
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return refused
	}
	return nil
}

// identity refuses a body that is compressed or otherwise encoded.
func identity(h http.Header) error {
	if lines := h["Content-Encoding"]; len(lines) > 0 && !strings.EqualFold(strings.Join(lines, ", "), "identity") {
		return schedule.Refuse(schedule.CodeMediaType, "Content-Encoding %.100q is not supported", strings.Join(lines, ", "))
	}
	return nil
}
