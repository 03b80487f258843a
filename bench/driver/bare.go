package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// bareConfig is a server that only reads the body and always gives the same
// answer.
type bareConfig struct {
	Status int
	Header map[string]string
	Answer string
}

func newBare(config []byte) (http.Handler, error) {
	var c bareConfig
	if err := json.Unmarshal(config, &c); err != nil {
		return nil, fmt.Errorf("driver: bare: %w", err)
	}
	answer := []byte(c.Answer)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		for name, value := range c.Header {
			w.Header().Set(name, value)
		}
		w.WriteHeader(c.Status)
		w.Write(answer)
	}), nil
}
