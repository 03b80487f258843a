package sdk

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"time"
)

const (
	firstWait = 100 * time.Millisecond
	maxWait   = 5 * time.Second
	// maxRefusal is how much is read of an answer that is not a success.
	maxRefusal = 64 << 10
)

// call is a request to the source.
type call struct {
	method string
	path   string // below the address, encoded, with its query
	header http.Header
	body   []byte
	// repeatable reports that a second time does no harm when the outcome of the first is
	// not known.
	repeatable bool
	want       []int // the statuses of success
}

// do makes the call, and repeats it where that is safe, useful and in time. The answer is read into v, unless that is nil.
func (c *Client) do(ctx context.Context, k *call, v any) error {
	start := time.Now()
	var lost error // of a try whose outcome is not known
	renewed := false
	for n := 0; ; n++ {
		token, err := c.token()
		if err != nil {
			return withLost(err, lost)
		}
		if err = c.try(ctx, k, token, v); err == nil {
			return nil
		}
		if errors.Is(err, ErrUnauthorized) && !renewed {
			if fresh, _ := c.token(); fresh != "" && fresh != token {
				renewed = true
				continue
			}
		}
		verdict, after := judge(err)
		wait := backoff(n, after)
		if ctx.Err() != nil || !verdict.allows(k) || time.Since(start)+wait > c.budget {
			return withLost(err, lost)
		}
		if verdict == unknown {
			lost = err
		}
		if !pause(ctx, wait) {
			err = withLost(err, lost)
			if cause := context.Cause(ctx); cause != nil {
				err = fmt.Errorf("%w, while waiting after: %w", cause, err)
			}
			return err
		}
	}
}

// withLost adds to the last error that an earlier try may have been a success.
func withLost(err, lost error) error {
	if lost == nil || errors.Is(err, ErrUnavailable) {
		return err
	}
	return fmt.Errorf("%w (before it, a try whose outcome is not known: %w)", err, lost)
}

// try makes the call once.
func (c *Client) try(ctx context.Context, k *call, token string, v any) error {
	req, err := http.NewRequestWithContext(ctx, k.method, c.address+k.path, bytes.NewReader(k.body))
	if err != nil {
		return err
	}
	maps.Copy(req.Header, k.header)
	req.Header.Set("User-Agent", "reschedule-sdk-go")
	if k.body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return lostAnswer(ctx, err)
	}
	defer resp.Body.Close()
	if !slices.Contains(k.want, resp.StatusCode) {
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRefusal)) // the status counts
		return refusal(resp, body)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return lostAnswer(ctx, err)
	}
	if v == nil {
		return nil
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	if w, ok := v.(interface{ missing() string }); ok {
		if name := w.missing(); name != "" {
			return fmt.Errorf("%w: it has no %s", ErrForeign, name)
		}
	}
	return nil
}

// lostAnswer is the error of a try without an answer.
func lostAnswer(ctx context.Context, err error) error {
	var certificate *tls.CertificateVerificationError
	if ctx.Err() != nil || errors.As(err, &certificate) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// verdict is whether a call may be tried again after an error.
type verdict int

const (
	final   verdict = iota // another try would end the same
	undone                 // nothing can have been changed
	unknown                // something may have been changed
)

func (v verdict) allows(k *call) bool { return v == undone || v == unknown && k.repeatable }

// judge classifies an error, and returns how long the source asked to wait.
func judge(err error) (verdict, time.Duration) {
	var refused *Error
	var network *net.OpError
	switch {
	case errors.As(err, &refused) && refused.Status == http.StatusTooManyRequests:
		return undone, refused.RetryAfter
	case errors.As(err, &refused) && refused.Code == ErrUnavailable:
		return unknown, refused.RetryAfter
	case errors.As(err, &network) && network.Op == "dial":
		return undone, 0
	case errors.Is(err, ErrUnavailable):
		return unknown, 0
	}
	return final, 0
}

// backoff is how long to wait after n+1 tries. Half of it is random, so that clients
// that were refused together do not come back together.
func backoff(n int, after time.Duration) time.Duration {
	wait := min(firstWait<<min(n, 10), maxWait)
	wait = wait/2 + rand.N(wait/2)
	if after > 0 {
		return max(wait, after+rand.N(after/10+1))
	}
	return wait
}

// pause waits; false at once if the context ends before.
func pause(ctx context.Context, d time.Duration) bool {
	if end, ok := ctx.Deadline(); ok && time.Until(end) < d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
