// Package relist makes informers list again after etcd was put back to an older state.
//
// It guarantees that a watch does not begin at a version that the API server has lost: it is answered
// 410 Gone, as of a version that has expired, after which client-go lists. Without that the API server
// opens the watch and withholds each change up to the version, so that an informer misses changes until
// its process restarts.
//
// How it works: before [Transport] passes on a watch from a version, it reads one object of the list that
// is watched, in the same namespace and with the same selectors. The resourceVersion of a list is the
// newest one of the API server.
//
// It leaves out an API server whose versions have caught up before the watch begins again. It also leaves
// out spec.watch, whose streams compare with marks in the store and do more than list.
package relist

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"
)

const (
	// timeout is how long the list may take. A watch has no timeout of its own.
	timeout = 30 * time.Second
	// maxList is more than the metadata of one object: a request has 3 MiB at most.
	maxList = 4 << 20
)

// Transport is for all calls of a client to the API server. next makes them.
func Transport(next http.RoundTripper) http.RoundTripper { return transport{next} }

type transport struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	params := r.URL.Query()
	from := params.Get("resourceVersion")
	if r.Method != http.MethodGet || !params.Has("watch") || from == "" || from == "0" {
		return t.next.RoundTrip(r)
	}
	newest, refused, err := t.newest(r, params)
	if err != nil || refused != nil {
		return refused, err
	}
	if order, err := resourceversion.CompareResourceVersion(from, newest); err != nil || order <= 0 {
		return t.next.RoundTrip(r)
	}
	klog.FromContext(r.Context()).Info("The API server has an older state than an informer, which lists again", "path", r.URL.Path, "version", newest, "watched", from)
	return expired(r, from, newest)
}

// newest returns the newest version of what is watched, or the answer that refuses the list.
func (t transport) newest(watch *http.Request, params url.Values) (version string, refused *http.Response, err error) {
	ctx, cancel := context.WithTimeout(watch.Context(), timeout)
	r := watch.Clone(ctx)
	list := url.Values{"limit": {"1"}}
	for _, name := range []string{"labelSelector", "fieldSelector"} { // the right may be for one name
		if params.Has(name) {
			list.Set(name, params.Get(name))
		}
	}
	r.URL.RawQuery = list.Encode()
	r.Header.Set("Accept", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1")
	answer, err := t.next.RoundTrip(r)
	if err != nil {
		cancel()
		return "", nil, err
	}
	if answer.StatusCode != http.StatusOK {
		answer.Body = closing{answer.Body, cancel}
		return "", answer, nil
	}
	defer cancel()
	defer answer.Body.Close()
	var read struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
	}
	if err = json.NewDecoder(io.LimitReader(answer.Body, maxList)).Decode(&read); err == nil && read.Metadata.ResourceVersion == "" {
		err = errors.New("the list has no resourceVersion")
	}
	if err != nil {
		return "", nil, fmt.Errorf("relist: %s: %w", r.URL.Path, err)
	}
	return read.Metadata.ResourceVersion, nil, nil
}

// closing ends the context of an answer with its body.
type closing struct {
	io.ReadCloser
	cancel func()
}

func (c closing) Close() error {
	defer c.cancel()
	return c.ReadCloser.Close()
}

// expired is the answer to a watch whose version is gone.
func expired(r *http.Request, from, newest string) (*http.Response, error) {
	status := apierrors.NewResourceExpired(fmt.Sprintf("the API server is at version %s, and has lost version %s", newest, from)).ErrStatus
	status.Kind, status.APIVersion = "Status", "v1"
	body, err := json.Marshal(status)
	if err != nil {
		return nil, fmt.Errorf("relist: %w", err)
	}
	return &http.Response{
		Status: "410 Gone", StatusCode: http.StatusGone, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)),
	}, nil
}
