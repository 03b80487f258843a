//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// source is a RescheduleSource, with whom its schedule API is called by.
type source struct {
	*namespace
	name    string
	address string // status.address.url
	caCerts string // status.address.CACerts
	token   string // of a ServiceAccount of the namespace
}

// source makes a source from its spec, YAML, and waits until it is ready and
// the adapter serves it.
func (n *namespace) source(name, spec string) *source {
	n.t.Helper()
	s := &source{namespace: n, name: name}
	n.apply(manifestOf(name, spec))
	n.ready(rescheduling, name)
	s.read()
	s.token = tokenOf(n, "caller", s.audience())
	s.served()
	return s
}

// served waits until the adapter serves the source: a Service learns of a new pod a little later.
func (s *source) served() {
	s.t.Helper()
	eventually(s.t, patience, "the adapter serves "+s.name, func() error {
		r, err := s.try("GET", "", "")
		if err == nil && r.Status != 200 {
			err = fmt.Errorf("%d %s", r.Status, r.Body)
		}
		return err
	})
}

// manifestOf is the manifest of a source.
func manifestOf(name, spec string) string {
	return fmt.Sprintf("\n---\napiVersion: sources.reschedule.dev/v1alpha1\nkind: RescheduleSource\nmetadata: {name: %s}\nspec:\n  %s",
		name, strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  "))
}

// get is the object.
func (s *source) get() *v1alpha1.RescheduleSource {
	s.t.Helper()
	o, err := s.sources.SourcesV1alpha1().RescheduleSources(s.namespace.name).Get(s.t.Context(), s.name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return o
}

// read reads the address, which is another when Knative's switches are turned.
func (s *source) read() {
	s.t.Helper()
	o := s.get()
	if o.Status.Address == nil || o.Status.Address.URL == nil {
		s.t.Fatalf("source %s has no address", s.name)
	}
	s.address, s.caCerts = o.Status.Address.URL.String(), ""
	if o.Status.Address.CACerts != nil {
		s.caCerts = *o.Status.Address.CACerts
	}
}

func (s *source) audience() string {
	return "sources.reschedule.dev/reschedulesource/" + s.namespace.name + "/" + s.name
}

// tokenOf is one of an hour for a ServiceAccount of the namespace, which is made
// if need be.
func tokenOf(n *namespace, account string, audiences ...string) string {
	n.t.Helper()
	accounts := n.Client.CoreV1().ServiceAccounts(n.name)
	_, err := accounts.Create(n.t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		n.t.Fatal(err)
	}
	token, err := n.Token(n.t.Context(), n.name, account, audiences...)
	if err != nil {
		n.t.Fatal(err)
	}
	return token
}

// try calls the schedule API below the address, from within the cluster, with
// the source's token unless the headers have another. The error is of a call
// that got no answer, as while the adapter's pod is replaced.
func (s *source) try(method, path, body string, headers ...string) (*harness.Reply, error) {
	return doTrusting(s.namespace, s.caCerts, method, s.address+path, body, append([]string{"Authorization", "Bearer " + s.token}, headers...)...)
}

// call is try for a call that has to be answered.
func (s *source) call(method, path, body string, headers ...string) *harness.Reply {
	s.t.Helper()
	r, err := s.try(method, path, body, headers...)
	if err != nil {
		s.t.Fatal(err)
	}
	return r
}

// put schedules a key and returns what the answer says.
func (s *source) put(key, body string) harness.Schedule {
	s.t.Helper()
	r := s.call("PUT", harness.KeyPath(key), body)
	if r.Status != 200 && r.Status != 201 {
		s.t.Fatalf("PUT %s: %d %s", key, r.Status, r.Body)
	}
	var is harness.Schedule
	r.Into(s.t, &is)
	return is
}

// scheduled is what is scheduled of a key, nil if nothing is.
func (s *source) scheduled(key string) *harness.Schedule {
	s.t.Helper()
	r := s.call("GET", harness.KeyPath(key), "")
	switch r.Status {
	case 200:
		is := &harness.Schedule{}
		r.Into(s.t, is)
		return is
	case 404:
		return nil
	}
	s.t.Fatalf("GET %s: %d %s", key, r.Status, r.Body)
	return nil
}

// counts are the source's.
func (s *source) counts() harness.Counts {
	s.t.Helper()
	r := s.call("GET", "", "")
	if r.Status != 200 {
		s.t.Fatalf("GET %s: %d %s", s.address, r.Status, r.Body)
	}
	var c harness.Counts
	r.Into(s.t, &c)
	return c
}

// send sends a CloudEvent without data to the address, with attributes in
// turn with their values, and wants it taken.
func (s *source) send(data string, attributes ...string) {
	s.t.Helper()
	if r := s.call("POST", "", data, eventHeaders(attributes)...); r.Status != 202 {
		s.t.Fatalf("POST %s: %d %s", s.address, r.Status, r.Body)
	}
}

// eventHeaders are the headers of an event with attributes, in turn with their values.
func eventHeaders(attributes []string) []string {
	headers := []string{"Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "/e2e", "Ce-Type", "dev.reschedule.e2e"}
	for i := 0; i < len(attributes); i += 2 {
		headers = append(headers, "Ce-"+attributes[i], attributes[i+1])
	}
	return headers
}

// warned waits for a Warning on the source with a reason, and returns what it
// says.
func (s *source) warned(reason string) string {
	s.t.Helper()
	uid := string(s.get().UID)
	said := ""
	eventually(s.t, patience, "an Event "+reason+" on "+s.name, func() error {
		list, err := s.Client.CoreV1().Events(s.namespace.name).List(s.t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + uid})
		if err != nil {
			return err
		}
		var others []string
		for _, e := range list.Items {
			if e.Reason == reason && e.Type == corev1.EventTypeWarning {
				said = e.Message
				return nil
			}
			others = append(others, e.Reason)
		}
		return fmt.Errorf("there are %v", others)
	})
	return said
}

// notEarly fails if a run began before its time. Whether it did is for the
// adapter's clock to say, and another node's may be off by a little.
func notEarly(n *namespace, runs ...run) {
	n.t.Helper()
	nodes, err := n.Client.CoreV1().Nodes().List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	skew := time.Duration(0)
	if len(nodes.Items) > 1 {
		skew = 100 * time.Millisecond
	}
	for _, r := range runs {
		if early := r.DueAt.Sub(r.Start); early > skew {
			n.t.Errorf("%s early: %s", early, r)
		}
	}
}
