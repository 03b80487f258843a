package sink

import (
	"bufio"
	"bytes"
	"cmp"
	"container/list"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// errCalledOff is the error of an attempt that was called off.
var errCalledOff = errors.New("the delivery was called off before it began")

var (
	errLongHead  = fmt.Errorf("the headers of the answer have more than %d bytes", maxResponseHeader)
	errManyLines = fmt.Errorf("the headers of the answer have more than %d lines", maxResponseLines)
)

// errNoAnswer is the error of a request to which not a byte was answered.
var errNoAnswer = errors.New("no answer")

const (
	// sendable bytes of a request fit into the buffer of its socket, so that writing them
	// does not wait for the sink. The others are written while the answer is read: a sink may
	// answer before it has read all, or without reading it.
	sendable = 16 << 10
	// lateWrite is how long the end of a request that is answered may take, for its connection
	// to be used again.
	lateWrite = 50 * time.Millisecond
)

// conn is a connection to a sink. One request at a time has it, in one goroutine.
type conn struct {
	net.Conn                  // with TLS, if the sink or a proxy speaks it
	raw       net.Conn        // without
	socket    syscall.RawConn // of raw; nil if it has none
	transport *transport
	poolKey   string // of its route

	in   *bufio.Reader // while an answer is read
	left int64         // how many bytes Read may still read
	head lines         // of the answer that Read reads
	rest chan error    // the end of the part of a request that is written while the answer is read

	place  *list.Element // under pool.mu: among the idle ones
	since  time.Time     // when it became idle
	lost   [1]byte       // what probe reads
	probed bool          // whether it found nothing
}

// Buffers are for a moment of a delivery: one that waits for its answer has one of them.
var (
	readers = sync.Pool{New: func() any { return bufio.NewReader(nil) }}
	writers = sync.Pool{New: func() any { return new(bytes.Buffer) }}
)

// abort ends what the connection is used for.
func (c *conn) abort() { _ = c.raw.Close() }

// Read implements io.Reader within a bound.
func (c *conn) Read(b []byte) (int, error) {
	if c.left <= 0 {
		return 0, errLongHead
	}
	n, err := c.Conn.Read(b[:min(int64(len(b)), c.left)])
	c.left -= int64(n)
	if !c.head.count(b[:n]) {
		return 0, errManyLines
	}
	return n, err
}

// lines counts the lines of the headers of an answer.
type lines struct {
	n     int
	blank bool // the line that has begun, up to now
	ended bool // all that follows is the body
}

// count reports whether there are no more lines than there may be.
func (l *lines) count(b []byte) bool {
	for _, x := range b {
		switch {
		case l.ended:
			return true
		case x == '\n':
			l.n++
			l.ended, l.blank = l.blank, true
		case x != '\r':
			l.blank = false
		}
	}
	return l.n <= maxResponseLines
}

// nextHead counts the lines of the headers that follow an answer of 1xx.
func (c *conn) nextHead() error {
	c.head.ended, c.head.blank = false, false
	read, _ := c.in.Peek(c.in.Buffered())
	if !c.head.count(read) {
		return errManyLines
	}
	return nil
}

// exchange makes a request and reads the head of its answer. The caller closes the answer's
// body; on an error the connection is closed.
func (c *conn) exchange(ctx context.Context, r *route, m *message, begin func() (func(), bool)) (_ *http.Response, err error) {
	body := &answerBody{conn: c, stop: context.AfterFunc(ctx, c.abort)}
	defer func() {
		if err != nil {
			body.release(false)
		}
	}()
	sendErr := c.send(r, m, begin)
	if errors.Is(sendErr, errCalledOff) {
		return nil, sendErr
	}
	// Also after an error: the sink may have answered before it closed the connection.
	c.in = readers.Get().(*bufio.Reader)
	c.in.Reset(c)
	c.left, c.head = maxResponseHeader, lines{}
	if _, err := c.in.Peek(1); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoAnswer, cmp.Or(sendErr, err))
	}
	var resp *http.Response
	for resp == nil || resp.StatusCode <= 199 && resp.StatusCode != http.StatusSwitchingProtocols {
		if resp != nil {
			if err = c.nextHead(); err != nil {
				return nil, err
			}
		}
		if resp, err = http.ReadResponse(c.in, nil); err != nil {
			return nil, err
		}
	}
	c.left = math.MaxInt64 // who reads the body bounds it
	body.reusable = !resp.Close && resp.StatusCode > 199 && sendErr == nil
	if resp.Body == http.NoBody {
		body.release(body.reusable)
		return resp, nil
	}
	body.Reader, resp.Body = resp.Body, body
	return resp, nil
}

// send writes a request, after Attempt.Begin has allowed it.
func (c *conn) send(r *route, m *message, begin func() (func(), bool)) error {
	b := writers.Get().(*bytes.Buffer)
	defer writers.Put(b)
	b.Reset()
	b.WriteString(m.method)
	b.WriteString(r.start)
	for _, l := range m.header {
		b.WriteString(l.name)
		b.WriteString(": ")
		b.WriteString(l.value)
		b.WriteString("\r\n")
	}
	b.WriteString("\r\n")
	first := min(max(0, sendable-b.Len()), len(m.body))
	b.Write(m.body[:first])
	if begin != nil {
		wrote, ok := begin()
		if !ok {
			return errCalledOff
		}
		defer wrote()
	}
	if _, err := c.Write(b.Bytes()); err != nil || first == len(m.body) {
		return err
	}
	rest, later := make(chan error, 1), m.body[first:]
	c.rest = rest
	go func() {
		_, err := c.Write(later)
		rest <- err
	}()
	return nil
}

// answerBody is the body of an answer. Its end ends the exchange.
type answerBody struct {
	io.Reader
	conn     *conn
	stop     func() bool // of the function that aborts the connection with the attempt
	reusable bool        // after the end of the body
	ended    bool
}

// Read implements io.Reader.
func (a *answerBody) Read(b []byte) (int, error) {
	n, err := a.Reader.Read(b)
	a.ended = a.ended || errors.Is(err, io.EOF)
	return n, err
}

// Close implements io.Closer.
func (a *answerBody) Close() error {
	a.release(a.reusable && a.ended)
	return nil
}

// release ends the exchange. It keeps the connection if the request was written and the answer
// was read, neither less nor more, or else closes it.
func (a *answerBody) release(clean bool) {
	c := a.conn
	clean = a.stop() && clean
	if clean && c.rest != nil {
		_ = c.SetWriteDeadline(time.Now().Add(lateWrite))
		clean = <-c.rest == nil
		c.rest = nil
		_ = c.SetWriteDeadline(time.Time{})
	}
	if c.in != nil {
		clean = clean && c.in.Buffered() == 0 && c.spent()
		c.in.Reset(nil)
		readers.Put(c.in)
		c.in = nil
	}
	if clean {
		c.transport.put(c)
		return
	}
	_ = c.Close()
	if c.rest != nil {
		<-c.rest
	}
}

// spent reports whether TLS has read nothing beyond the answer, which silent does not see: a read
// that may not wait finds nothing.
func (c *conn) spent() bool {
	if !c.secured() {
		return true
	}
	now := time.Now()
	_ = c.SetReadDeadline(now)
	_ = c.SetWriteDeadline(now.Add(lateWrite)) // the sink may ask for other keys
	n, err := c.Conn.Read(make([]byte, 1))
	_ = c.SetDeadline(time.Time{})
	_, broken := c.Write(nil)
	late, ok := errors.AsType[net.Error](err)
	return n == 0 && ok && late.Timeout() && broken == nil
}

// silent reports whether the sink has sent nothing since its last answer: no byte, and no end.
func (c *conn) silent() bool {
	if c.socket == nil {
		return true
	}
	err := c.socket.Read(c.probe)
	return err == nil && c.probed
}

// probe sets probed. A byte that comes now belongs to no answer, so that it may be lost. With TLS it
// is no session ticket either, which comes before the first answer.
func (c *conn) probe(fd uintptr) bool {
	_, err := syscall.Read(int(fd), c.lost[:])
	c.probed = errors.Is(err, syscall.EAGAIN)
	return true
}
