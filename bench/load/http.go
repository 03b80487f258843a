package load

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"time"
)

// CallTimeout bounds one call: a server that hangs ends the run.
const CallTimeout = 30 * time.Second

// Client is one caller's connection: one request under way. Not safe for
// concurrent use.
type Client interface {
	// Call sends a request and returns the answer, which is overwritten by the next call.
	Call(method, path string, body []byte) (status int, answer []byte, err error)
	Close()
}

// Clients dials the callers' connections.
type Clients func(addr string) (Client, error)

// Raw dials an HTTP.
func Raw(addr string) (Client, error) { return DialHTTP(addr) }

// HTTP is one keep-alive HTTP/1.1 connection with one request under way. It
// knows just enough of the protocol to be much cheaper than the servers it
// drives, which on two cores share the machine with it. Not safe for
// concurrent use.
type HTTP struct {
	conn net.Conn
	r    *bufio.Reader
	// Body is the last answer's.
	Body    []byte
	request []byte
}

// DialHTTP connects.
func DialHTTP(addr string) (*HTTP, error) {
	conn, err := net.DialTimeout("tcp", addr, CallTimeout)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	return &HTTP{conn: conn, r: bufio.NewReaderSize(conn, 64<<10)}, nil
}

// Close closes the connection.
func (h *HTTP) Close() { h.conn.Close() }

// Call implements Client.
func (h *HTTP) Call(method, path string, body []byte) (int, []byte, error) {
	h.request = appendRequest(h.request[:0], method, path, body)
	if err := h.conn.SetDeadline(time.Now().Add(CallTimeout)); err != nil {
		return 0, nil, fmt.Errorf("load: %w", err)
	}
	if _, err := h.conn.Write(h.request); err != nil {
		return 0, nil, fmt.Errorf("load: sending: %w", err)
	}
	status, err := h.answer()
	if err != nil {
		return 0, nil, fmt.Errorf("load: reading the answer: %w", err)
	}
	return status, h.Body, nil
}

func (h *HTTP) answer() (int, error) {
	line, err := h.r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 || !bytes.HasPrefix(line, []byte("HTTP/1.1 ")) {
		return 0, fmt.Errorf("not an HTTP/1.1 status line: %q", line)
	}
	status, err := strconv.Atoi(string(line[9:12]))
	if err != nil {
		return 0, fmt.Errorf("not an HTTP/1.1 status line: %q", line)
	}
	length, chunked := int64(0), false
	for {
		line, err = h.r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(":"))
		value = bytes.TrimSpace(value)
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.ParseInt(string(value), 10, 64); err != nil || length < 0 {
				return 0, fmt.Errorf("content-length %q", value)
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			chunked = bytes.EqualFold(value, []byte("chunked"))
		}
	}
	h.Body = h.Body[:0]
	if !chunked {
		return status, h.take(length)
	}
	for {
		line, err = h.r.ReadSlice('\n')
		if err != nil {
			return 0, err
		}
		n, err := strconv.ParseInt(string(bytes.TrimSpace(line)), 16, 64)
		if err != nil || n < 0 {
			return 0, fmt.Errorf("chunk size %q", line)
		}
		if err := h.take(n); err != nil {
			return 0, err
		}
		if _, err := h.r.Discard(2); err != nil {
			return 0, err
		}
		if n == 0 {
			return status, nil
		}
	}
}

// bodyLimit bounds what is kept; the longest answer is that of a thousand items.
const bodyLimit = 16 << 20

// take reads n bytes of the body.
func (h *HTTP) take(n int64) error {
	at := len(h.Body)
	if n > int64(bodyLimit-at) {
		return fmt.Errorf("a body of more than %d bytes", bodyLimit)
	}
	h.Body = slices.Grow(h.Body, int(n))[:at+int(n)]
	_, err := io.ReadFull(h.r, h.Body[at:])
	return err
}

// appendRequest appends a whole request.
func appendRequest(b []byte, method, path string, body []byte) []byte {
	b = append(b, method...)
	b = append(b, ' ')
	b = append(b, path...)
	b = append(b, " HTTP/1.1\r\nHost: localhost\r\n"...)
	if body != nil {
		b = append(b, "Content-Type: application/json\r\nContent-Length: "...)
		b = strconv.AppendInt(b, int64(len(body)), 10)
		b = append(b, "\r\n"...)
	}
	b = append(b, "\r\n"...)
	return append(b, body...)
}
