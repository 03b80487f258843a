package load

import (
	"fmt"
	"time"

	"github.com/valyala/fasthttp"
)

// CallTimeout bounds one call: a server that hangs ends the run.
const CallTimeout = 30 * time.Second

// bodyLimit bounds an answer; the longest has a thousand items.
const bodyLimit = 16 << 20

// Client is one caller's connection, with one request under way. It is fasthttp:
// on two cores the client shares the machine with the server, so it must be
// cheaper than the server. Not safe for concurrent use.
type Client struct {
	host     fasthttp.HostClient
	request  fasthttp.Request
	response fasthttp.Response
}

// NewClient returns a Client of the server at host:port. It connects with the first call.
func NewClient(addr string) *Client {
	return &Client{host: fasthttp.HostClient{
		Addr: addr, MaxConns: 1, ReadTimeout: CallTimeout, WriteTimeout: CallTimeout, MaxResponseBodySize: bodyLimit,
		// A retry would hide a failed call.
		MaxIdemponentCallAttempts: 1,
		// An escaped slash is part of a key.
		DisablePathNormalizing: true, NoDefaultUserAgentHeader: true,
	}}
}

// Call sends a request and returns the answer. The next call overwrites the answer.
func (c *Client) Call(method, path string, body []byte) (status int, answer []byte, err error) {
	c.request.Header.SetMethod(method)
	c.request.SetRequestURI("http://" + c.host.Addr + path)
	c.request.Header.SetContentType("application/json")
	c.request.SetBodyRaw(body)
	if err := c.host.Do(&c.request, &c.response); err != nil {
		return 0, nil, fmt.Errorf("load: %s %s: %w", method, path, err)
	}
	return c.response.StatusCode(), c.response.Body(), nil
}

// Close closes the connection.
func (c *Client) Close() { c.host.CloseIdleConnections() }
