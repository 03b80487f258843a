package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kjson "sigs.k8s.io/json"
)

// The most bytes of a request to a hook and of its response.
const (
	maxRequest  = 32 << 20
	maxResponse = 8 << 20
)

// objectMap has objects by kind and version, and by name as the version of a hook wants it.
type objectMap map[string]map[string]json.RawMessage

// syncRequest goes to sync and finalize. A CompositeController has parent and children, a
// DecoratorController object and attachments.
type syncRequest struct {
	Controller  json.RawMessage            `json:"controller"`
	Parent      *unstructured.Unstructured `json:"parent,omitempty"`
	Children    objectMap                  `json:"children,omitzero"`
	Object      *unstructured.Unstructured `json:"object,omitempty"`
	Attachments objectMap                  `json:"attachments,omitzero"`
	Related     objectMap                  `json:"related"`
	Finalizing  bool                       `json:"finalizing"`
}

type compositeResponse struct {
	Status             map[string]any               `json:"status"`
	Children           []*unstructured.Unstructured `json:"children"`
	ResyncAfterSeconds float64                      `json:"resyncAfterSeconds"`
	Finalized          bool                         `json:"finalized"`
}

type decoratorResponse struct {
	Labels             map[string]*string           `json:"labels"`
	Annotations        map[string]*string           `json:"annotations"`
	Status             map[string]any               `json:"status"`
	Attachments        []*unstructured.Unstructured `json:"attachments"`
	ResyncAfterSeconds float64                      `json:"resyncAfterSeconds"`
	Finalized          bool                         `json:"finalized"`
}

type customizeRequest struct {
	Controller json.RawMessage            `json:"controller"`
	Parent     *unstructured.Unstructured `json:"parent"`
}

type customizeResponse struct {
	RelatedResources []relatedRule `json:"relatedResources"`
}

type relatedRule struct {
	APIVersion        string                `json:"apiVersion"`
	Resource          string                `json:"resource"`
	LabelSelector     *metav1.LabelSelector `json:"labelSelector"`
	NamespaceSelector *metav1.LabelSelector `json:"namespaceSelector"`
	Namespace         string                `json:"namespace"`
	Names             []string              `json:"names"`
}

// tooManyRequests is the answer 429: the hook wants to be called later.
type tooManyRequests struct {
	hook  string
	after time.Duration
}

func (e tooManyRequests) Error() string {
	return fmt.Sprintf("hook %s wants to be called after %s", e.hook, e.after)
}

// call posts a request and reads the response. Only 200 counts.
func (h *hook) call(ctx context.Context, request, response any) error {
	body, err := json.Marshal(request)
	if err != nil {
		return fmt.Errorf("hook %s: %w", h.name, err)
	}
	if len(body) > maxRequest {
		return fmt.Errorf("hook %s: the request has %d bytes, more than %d: select fewer related objects", h.name, len(body), maxRequest)
	}
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, h.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("hook %s: %w", h.name, err)
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("hook %s: %w", h.name, err)
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusTooManyRequests {
		if after := retryAfter(answer.Header.Get("Retry-After")); after > 0 {
			return tooManyRequests{h.name, after}
		}
		return fmt.Errorf("hook %s: status 429 without a Retry-After", h.name)
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxResponse+1))
	switch {
	case err != nil:
		return fmt.Errorf("hook %s: reading the response: %w", h.name, err)
	case len(text) > maxResponse:
		return fmt.Errorf("hook %s: the response has more than %d bytes", h.name, maxResponse)
	case answer.StatusCode != http.StatusOK:
		return fmt.Errorf("hook %s: status %d, want 200: %.500s", h.name, answer.StatusCode, text)
	}
	unknown, err := kjson.UnmarshalStrict(text, response)
	if err == nil && h.strict {
		err = errors.Join(unknown...)
	}
	if err != nil {
		return fmt.Errorf("hook %s: the response: %w", h.name, err)
	}
	return nil
}

// retryAfter is a Retry-After in seconds or as a date, 0 if it is neither or past.
func retryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
