package api

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/cloudevent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	// bodyStep is how much of a body is read and charged at a time. Each byte is
	// charged bodyCopies times: it is in a buffer that grew by doubling, then
	// there and in the decoded request, then in that and in the store's batch.
	// The largest body fits the share of one source.
	bodyStep   = 64 << 10
	bodyCopies = 2
	// A body has bodyGrace to arrive, and longer at bodyRate bytes a second, but
	// at most bodyTime: 16 MiB at 280 kB/s.
	bodyGrace = 10 * time.Second
	bodyRate  = 64 << 10
	bodyTime  = time.Minute
	// Of a body that is too large, so much is read and dropped, for so long.
	skipBytes = 32 << 20
	skipTime  = 2 * time.Second
)

// readBody reads the request's body into b, which it makes larger where needed. Memory
// follows what has arrived, never what was announced.
func (c *call) readBody(b []byte) ([]byte, error) {
	announced := c.r.ContentLength
	most := int64(maxBody)
	switch {
	case announced > most:
		return b, c.tooLarge()
	case announced >= 0:
		most = announced
	}
	deadline := http.NewResponseController(c.w)
	for start := time.Now(); ; {
		if len(b) >= smallBody {
			before := time.Now()
			if err := c.grow(bodyCopies * min(bodyStep, most-int64(len(b))+1)); err != nil {
				return b, c.unread(err)
			}
			start = start.Add(time.Since(before)) // that wait was ours
		}
		allowed := min(bodyGrace+time.Duration(len(b))*time.Second/bodyRate, bodyTime)
		_ = deadline.SetReadDeadline(start.Add(allowed)) // HTTP always can
		from, step := len(b), bodyStep
		if from < smallBody {
			step = smallBody - from
		}
		// A byte more than the limit shows that a body is too large.
		end := min(int64(from+step), most+1)
		if int64(cap(b)) < end {
			b = append(make([]byte, 0, min(max(2*int64(cap(b)), end), most+1)), b...)
		}
		for int64(len(b)) < end {
			n, err := c.r.Body.Read(b[len(b):min(cap(b), int(end))])
			b = b[:len(b)+n]
			if err == nil && int64(len(b)) != announced {
				continue
			}
			if err == nil || errors.Is(err, io.EOF) {
				if announced > int64(len(b)) {
					return b, c.readError(io.ErrUnexpectedEOF)
				}
				if int64(len(b)) > most {
					return b, c.tooLarge()
				}
				_ = deadline.SetReadDeadline(time.Time{}) // the server sets the next
				return b, nil
			}
			return b, c.readError(err)
		}
		if int64(len(b)) > most {
			return b, c.tooLarge()
		}
	}
}

// unread is the refusal of a request whose body was not read to its end: the
// connection cannot go on.
func (c *call) unread(err error) error {
	c.w.Header()["Connection"] = []string{"close"}
	return err
}

// skip reads the rest of a body that is a little too large: a client that reads no answer
// before its last byte is sent would see a broken connection in place of the refusal. A
// client that waits for 100 Continue has sent nothing, and must not begin.
func (c *call) skip() {
	if c.r.ContentLength > skipBytes || c.r.Header.Get("Expect") != "" {
		return
	}
	_ = http.NewResponseController(c.w).SetReadDeadline(time.Now().Add(skipTime)) // HTTP always can
	_, _ = io.CopyN(io.Discard, c.r.Body, skipBytes)
}

func (c *call) tooLarge() error {
	c.skip()
	return c.unread(schedule.Refuse(schedule.CodeTooLarge, "the body has more than %d bytes", int64(maxBody)))
}

func (c *call) readError(err error) error { return c.unread(BodyError(err)) }

// BodyError says why a body could not be read.
func BodyError(err error) *schedule.Error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return schedule.Invalid("body", "did not arrive in time: within %s, or at %d bytes a second, and at most within %s", bodyGrace, bodyRate, bodyTime)
	}
	return schedule.Invalid("body", "ended before it was complete")
}

// jsonBody reads the body of a call that takes JSON, whose header must say so or say
// nothing. A Content-Type without content means nothing.
func (c *call) jsonBody(buf *bytes.Buffer) error {
	if c.r.ContentLength == 0 {
		return nil
	}
	if err := jsonType(c.r.Header); err != nil {
		return err
	}
	b, err := c.readBody(buf.AvailableBuffer())
	*buf = *bytes.NewBuffer(b)
	return err
}

func jsonType(h http.Header) error {
	if err := identity(h); err != nil {
		return err
	}
	lines := h["Content-Type"]
	if len(lines) == 0 && byBrowser(h) {
		return schedule.Refuse(schedule.CodeMediaType, "a browser must say Content-Type: application/json, which it does not send for a page of another origin")
	}
	if len(lines) == 0 || len(lines) == 1 && lines[0] == contentJSON {
		return nil
	}
	given := strings.Join(lines, ", ")
	t, params, err := mime.ParseMediaType(given)
	if err != nil || t != contentJSON {
		return schedule.Refuse(schedule.CodeMediaType, "Content-Type %.100q is not application/json", given)
	}
	if charset, ok := params["charset"]; ok && !strings.EqualFold(charset, "utf-8") && !strings.EqualFold(charset, "utf8") {
		return schedule.Refuse(schedule.CodeMediaType, "Content-Type %.100q: the charset must be utf-8, the only one of JSON", given)
	}
	return nil
}

// identity refuses a body that is compressed or otherwise encoded.
func identity(h http.Header) error {
	if coding := cloudevent.Coding(h); coding != "" {
		return schedule.Refuse(schedule.CodeMediaType, "Content-Encoding %.100q is not supported: send the body as it is", coding)
	}
	return nil
}
