package load

import (
	"bytes"
	"fmt"
	"net/http"
)

// netHTTP is a Client as most callers have it: the standard library's.
type netHTTP struct {
	base   string
	client *http.Client
	answer bytes.Buffer
}

// NetHTTP returns a Client with a connection pool of one.
func NetHTTP(addr string) (Client, error) {
	return &netHTTP{base: "http://" + addr, client: &http.Client{
		Timeout:   CallTimeout,
		Transport: &http.Transport{MaxConnsPerHost: 1, MaxIdleConnsPerHost: 1, DisableCompression: true},
	}}, nil
}

func (c *netHTTP) Call(method, path string, body []byte) (int, []byte, error) {
	request, err := http.NewRequest(method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, fmt.Errorf("load: %w", err)
	}
	if body != nil {
		request.Header.Set("Content-Type", "application/json")
	}
	answer, err := c.client.Do(request)
	if err != nil {
		return 0, nil, fmt.Errorf("load: %w", err)
	}
	defer answer.Body.Close()
	c.answer.Reset()
	if _, err := c.answer.ReadFrom(answer.Body); err != nil {
		return 0, nil, fmt.Errorf("load: reading the answer: %w", err)
	}
	return answer.StatusCode, c.answer.Bytes(), nil
}

func (c *netHTTP) Close() { c.client.CloseIdleConnections() }
