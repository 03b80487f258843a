package command

import (
	"cmp"
	"context"
	"net/url"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
)

// systemNamespaces are where the adapter is usually: with Knative, and without.
var systemNamespaces = []string{"knative-eventing", "reschedule-system"}

// whereabouts finds the namespace of the adapter.
type whereabouts struct {
	flag string // --system-namespace
	api  dynamic.Interface

	mu    sync.Mutex
	found string
}

// namespace is the one of the flag, the one in the address of a source, or the one that has the StatefulSet.
func (w *whereabouts) namespace(ctx context.Context) string {
	if w.flag != "" {
		return w.flag
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.found == "" {
		w.found = w.look(ctx)
	}
	return w.found
}

// learn takes the namespace from the address of a source. It takes only one of systemNamespaces: the pod there gets the
// user's tokens.
func (w *whereabouts) learn(o *object) {
	if o.Status.Address == nil {
		return
	}
	address, err := url.Parse(o.Status.Address.URL)
	if err != nil {
		return
	}
	for _, namespace := range systemNamespaces {
		if strings.HasPrefix(address.Hostname()+".", adapterName+"."+namespace+".") {
			w.mu.Lock()
			w.found = cmp.Or(w.found, namespace)
			w.mu.Unlock()
		}
	}
}

// look reads the StatefulSet in each namespace. Users without rights in a namespace do not know what is in it.
func (w *whereabouts) look(ctx context.Context) string {
	hidden := ""
	for _, namespace := range systemNamespaces {
		_, err := w.api.Resource(statefulSets).Namespace(namespace).Get(ctx, adapterName, metav1.GetOptions{})
		if err == nil {
			return namespace
		}
		if !apierrors.IsNotFound(err) {
			hidden = cmp.Or(hidden, namespace)
		}
	}
	return cmp.Or(hidden, systemNamespaces[0])
}
