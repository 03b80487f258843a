package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// run is a record of a run of Reconcile, at its start and again at its end.
type run struct {
	Run   string    `json:"run"` // the same at start and end
	Key   string    `json:"key"`
	Pod   string    `json:"pod"`
	Data  done      `json:"data"`
	Seen  string    `json:"seen,omitempty"` // the object's resourceVersion
	Start time.Time `json:"start"`
	End   time.Time `json:"end,omitzero"`
}

// done is the step of a run.
type done struct {
	Step   string `json:"step"`
	Script string `json:"script"`
}

func newRun(key, pod string) run {
	return run{Run: rand.Text(), Key: key, Pod: pod, Start: time.Now()}
}

// recorderClient calls the recorder. It does not share connections with http.DefaultTransport: a test server that ends
// closes these, also while an answer without a body comes in.
var recorderClient = http.Client{Transport: http.DefaultTransport.(*http.Transport).Clone()}

// recorder calls the recorder of test/e2e/images.
type recorder struct{ url string }

func (r recorder) record(ctx context.Context, is run) error {
	body, err := json.Marshal(is)
	if err != nil {
		return err
	}
	_, err = r.call(ctx, http.MethodPost, "/runs", body)
	return err
}

// runs are all recorded starts and ends.
func (r recorder) runs(ctx context.Context) ([]run, error) {
	text, err := r.call(ctx, http.MethodGet, "/records?path=/runs", nil)
	if err != nil {
		return nil, err
	}
	var records []struct {
		Body []byte `json:"body"`
	}
	if err := json.Unmarshal(text, &records); err != nil {
		return nil, fmt.Errorf("the recorder's records: %w", err)
	}
	runs := make([]run, len(records))
	for i, record := range records {
		if err := json.Unmarshal(record.Body, &runs[i]); err != nil {
			return nil, fmt.Errorf("the recorder has a run %s: %w", record.Body, err)
		}
	}
	return runs, nil
}

func (r recorder) call(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, r.url+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := recorderClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, text)
	}
	return text, err
}
