//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

var eventPolicy = schema.GroupVersionKind{Group: "eventing.knative.dev", Version: "v1alpha1", Kind: "EventPolicy"}

// The flags hold for all of Knative Eventing, so one test turns them once.
func tokensAndTLS(t *testing.T, turn func()) {
	n := newNamespace(t, "secure")
	n.deploy("operator", 1, rule{"", behaviour{}})
	s := n.source("site", toService("operator"))
	if s.caCerts != "" {
		t.Fatal("the source has CACerts before TLS is on: config-features is not as Knative has it at first")
	}
	turn()
	ca := newAuthority(t)
	makeSecret(n, system, "reschedule-adapter-server-tls", ca.certificate(t, "reschedule-adapter."+system+".svc.cluster.local", "reschedule-adapter."+system+".svc"))
	trustsAuthority(n, ca)
	plainAgain(n, s)
	setFeatures(n, map[string]string{"authentication-oidc": "enabled", "transport-encryption": "permissive"})
	s.secure(ca)

	for _, part := range []struct {
		name string
		test func(*testing.T, *source)
	}{
		{"senders", sendersNeedTokens},
		{"other namespaces", othersNeedAPolicy},
		{"ApiServerSource", knativeSourcesBringTokens},
		{"deliveries", deliveriesBearTokens},
		{"sinks", sinksAreToBeTrusted},
		{"strict", strictIsHTTPSOnly},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, s.in(t)) })
	}
}

// in is the source in a part of its test.
func (s *source) in(t *testing.T) *source {
	part := *s
	part.namespace = &namespace{cluster: s.cluster, t: t, name: s.namespace.name}
	return &part
}

// secure waits until the source must be called by https, and has the tests do
// so.
func (s *source) secure(ca *authority) {
	s.t.Helper()
	began := time.Now()
	eventually(s.t, patience, "the source has an https address", func() error {
		o := s.get()
		for _, a := range o.Status.Addresses {
			if a.URL.Scheme != "https" {
				continue
			}
			if a.CACerts == nil || *a.CACerts != ca.pem {
				return fmt.Errorf("its CACerts are %v", a.CACerts)
			}
			if a.Audience == nil || *a.Audience != s.audience() {
				return fmt.Errorf("its audience is %v", a.Audience)
			}
			s.address, s.caCerts = a.URL.String(), *a.CACerts
			return nil
		}
		return fmt.Errorf("the addresses are %v", o.Status.Addresses)
	})
	s.namespace.ready(rescheduling, s.name)
	// The kubelet looks after the Secrets of a running pod once a minute or so, and at once when
	// the pod changes.
	eventually(s.t, patience, "the adapter has its certificate", func() error {
		_, err := s.try("GET", "", "")
		if err == nil {
			return nil
		}
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{"e2e/looked":%q}}}`, time.Now())
		_, failed := s.Client.CoreV1().Pods(system).Patch(s.t.Context(), adapter+"-0", types.MergePatchType, patch, metav1.PatchOptions{})
		return errors.Join(err, failed)
	})
	s.t.Logf("called by https %s after the flags were turned", time.Since(began).Round(time.Second))
}

// offered is a call with a token, or with none.
func (s *source) offered(n *namespace, token, method, path, body string, headers ...string) (*harness.Reply, error) {
	if token != "" {
		headers = append(headers, "Authorization", "Bearer "+token)
	}
	return doTrusting(n, s.caCerts, method, s.address+path, body, headers...)
}

// sent is an event with a token, or with none.
func (s *source) sent(n *namespace, token, key string) (*harness.Reply, error) {
	return s.offered(n, token, "POST", "", "{}", "Ce-Specversion", "1.0", "Ce-Id", key, "Ce-Source", "/e2e", "Ce-Type", "dev.reschedule.e2e", "Ce-Subject", key)
}

// answers waits until an event and a call with a token are answered with these
// statuses; it takes a moment for the adapter to know of a policy.
func (s *source) answers(n *namespace, token, key string, event, call int) (said string) {
	s.t.Helper()
	eventually(s.t, patience, fmt.Sprintf("an event is answered with %d and a call with %d", event, call), func() error {
		e, err := s.sent(n, token, key)
		if err != nil {
			return err
		}
		c, err := s.offered(n, token, "PUT", harness.KeyPath(key), "{}")
		if err != nil {
			return err
		}
		if said = fmt.Sprintf("%d %s; %d %s", e.Status, e.Body, c.Status, c.Body); e.Status != event || c.Status != call && !(call == 201 && c.Status == 200) {
			return fmt.Errorf("%s", said)
		}
		return nil
	})
	return said
}

func sendersNeedTokens(t *testing.T, s *source) {
	n := s.namespace
	right := tokenOf(n, "sender", s.audience())
	for _, c := range []struct {
		name, token string
		event, call int
		says        string
	}{
		{"the right token", right, 202, 201, ""},
		{"no token", "", 401, 401, "token"},
		{"no JWT", "secret", 401, 401, "JSON Web Token"},
		{"another audience", tokenOf(n, "sender", "https://kubernetes.default.svc"), 401, 401, s.audience()},
		{"the audience of another source", tokenOf(n, "sender", s.audience()+"2"), 401, 401, s.audience()},
		{"expired", expired(t, right), 401, 401, "expired"},
		{"forged", forged(t, right), 401, 401, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			key := strings.ReplaceAll(c.name, " ", "-")
			if said := s.in(t).answers(n, c.token, key, c.event, c.call); !strings.Contains(said, c.says) {
				t.Errorf("nothing of %q in %s", c.says, said)
			}
			if c.call == 201 {
				n.awaitRuns(patience, key, 1)
			}
		})
	}
	// Whom one does not trust, one tells no token.
	if r, err := doTrusting(n, newAuthority(t).pem, "GET", s.address, "", "Authorization", "Bearer "+right); err == nil || !strings.Contains(err.Error(), "x509") {
		t.Errorf("who trusts others calls it all the same: %+v, %v", r, err)
	}
	// Permissive: as well without TLS.
	plain := strings.Replace(s.address, "https://", "http://", 1)
	if r, err := n.do("GET", plain, "", "Authorization", "Bearer "+right); err != nil || r.Status != http.StatusOK {
		t.Errorf("http: %+v, %v", r, err)
	}
	if r, err := n.do("GET", plain, ""); err != nil || r.Status != http.StatusUnauthorized {
		t.Errorf("http without a token: %+v, %v", r, err)
	}
}

// claims of a token.
func claims(t *testing.T, token string) map[string]any {
	t.Helper()
	var of map[string]any
	text, err := base64.RawURLEncoding.DecodeString(strings.Split(token, ".")[1])
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if err := d.Decode(&of); err != nil {
		t.Fatal(err)
	}
	return of
}

// altered is a token that says something else, under the signature it had: the
// API server hands out none that has expired.
func altered(t *testing.T, token, claim string, value any) string {
	t.Helper()
	of := claims(t, token)
	of[claim] = value
	text, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(token, ".")
	return parts[0] + "." + base64.RawURLEncoding.EncodeToString(text) + "." + parts[2]
}

func expired(t *testing.T, token string) string {
	return altered(t, token, "exp", time.Now().Add(-time.Hour).Unix())
}

func forged(t *testing.T, token string) string {
	return altered(t, token, "sub", "system:serviceaccount:"+system+":"+controller)
}

func othersNeedAPolicy(t *testing.T, s *source) {
	o := newNamespace(t, "stranger")
	stranger, neighbour := tokenOf(o, "stranger", s.audience()), tokenOf(s.namespace, "neighbour", s.audience())

	if said := s.answers(o, stranger, "stranger", 403, 403); !strings.Contains(said, "system:serviceaccount:"+o.name+":stranger") {
		t.Errorf("it does not say who is refused: %s", said)
	}
	s.answers(o, neighbour, "neighbour", 202, 201)

	s.admit("stranger", "sub: system:serviceaccount:"+o.name+":stranger", "")
	s.answers(o, stranger, "stranger", 202, 201)
	s.answers(o, tokenOf(o, "another", s.audience()), "another", 403, 403)
	// Now that there is a policy, events of the same namespace want one too.
	s.answers(o, neighbour, "neighbour", 403, 201)
	s.awaitRuns(patience, "stranger", 1)
	s.withdraw("stranger")
	s.answers(o, neighbour, "neighbour", 202, 201)
	s.answers(o, stranger, "stranger", 403, 403)

	// A filter is about events: it says nothing of the schedule API.
	s.admit("events", "sub: system:serviceaccount:"+o.name+":stranger", `filters: [{exact: {type: dev.reschedule.e2e}}]`)
	s.answers(o, stranger, "stranger", 202, 403)
	s.withdraw("events")
	s.answers(o, neighbour, "neighbour", 202, 201)
}

// admit makes an EventPolicy for the source and waits until it is ready.
func (s *source) admit(name, from, more string) {
	s.t.Helper()
	s.apply(fmt.Sprintf(`
apiVersion: eventing.knative.dev/v1alpha1
kind: EventPolicy
metadata: {name: %s}
spec:
  to: [{ref: {apiVersion: sources.reschedule.dev/v1alpha1, kind: RescheduleSource, name: %s}}]
  from: [{%s}]
  %s
`, name, s.name, from, more))
	s.namespace.ready(eventPolicy, name)
}

func (s *source) withdraw(name string) {
	s.t.Helper()
	policies, err := s.Resource(eventPolicy, s.namespace.name)
	if err == nil {
		err = policies.Delete(s.t.Context(), name, metav1.DeleteOptions{})
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// secureSink deploys a recorder that has a certificate, and returns the
// authority that signed it, which no program trusts yet.
func secureSink(t *testing.T, n *namespace, name string) (url string, ca *authority) {
	t.Helper()
	ca = newAuthority(t)
	host := name + "." + n.name + ".svc"
	makeSecret(n, n.name, name+"-tls", ca.certificate(t, host, host+".cluster.local"))
	n.apply(strings.NewReplacer("NAME", name, "IMAGE", images.recorder).Replace(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: NAME}
spec:
  selector: {matchLabels: {app: NAME}}
  template:
    metadata: {labels: {app: NAME}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: recorder
        image: IMAGE
        env: [{name: TLS_DIR, value: /etc/tls}]
        ports: [{containerPort: 8080}, {containerPort: 8443}]
        readinessProbe: {httpGet: {path: /healthz, port: 8443, scheme: HTTPS}, periodSeconds: 1}
        volumeMounts: [{name: tls, mountPath: /etc/tls}]
      volumes: [{name: tls, secret: {secretName: NAME-tls}}]
---
apiVersion: v1
kind: Service
metadata: {name: NAME}
spec:
  selector: {app: NAME}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: https, port: 443, targetPort: 8443}]
`))
	n.ready(deployment, name)
	return "https://" + host, ca
}

// awaitKept waits for the first request.
func awaitKept(n *namespace, recorder, path string) record {
	n.t.Helper()
	var first record
	eventually(n.t, patience, "a delivery to "+recorder+path, func() error {
		records, err := keptRecords(n, recorder, path)
		if err != nil || len(records) == 0 {
			return fmt.Errorf("none: %w", err)
		}
		first = records[0]
		return nil
	})
	return first
}

func deliveriesBearTokens(t *testing.T, s *source) {
	n := s.namespace
	url, ca := secureSink(t, n, "audience")
	s = secureSource(n, "audience", fmt.Sprintf("sink: {uri: %q, audience: the-sink, CACerts: %q}", url+"/in", ca.pem))
	s.put("a", `{}`)

	d := awaitKept(n, "audience", "/in")
	token, ok := strings.CutPrefix(d.Header.Get("Authorization"), "Bearer ")
	if !ok {
		t.Fatalf("the delivery has no token: %v", d.Header)
	}
	account := s.get().Status.Auth
	if account == nil || account.ServiceAccountName == nil {
		t.Fatal("the source says nothing of its ServiceAccount")
	}
	for audience, want := range map[string]bool{"the-sink": true, "another-sink": false, s.audience(): false} {
		review, err := n.Client.AuthenticationV1().TokenReviews().Create(t.Context(),
			&authv1.TokenReview{Spec: authv1.TokenReviewSpec{Token: token, Audiences: []string{audience}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		user := "system:serviceaccount:" + n.name + ":" + *account.ServiceAccountName
		if review.Status.Authenticated != want || want && review.Status.User.Username != user {
			t.Errorf("for %s the token is %+v, want the token of %s: %t", audience, review.Status, user, want)
		}
	}
}

func sinksAreToBeTrusted(t *testing.T, s *source) {
	n := s.namespace
	url, ca := secureSink(t, n, "untrusted")
	spec := fmt.Sprintf("sink: {uri: %q}\ndelivery: {backoffDelay: PT0.5S, backoffPolicy: linear, backoffMax: PT5S}\n", url+"/in")
	s = secureSource(n, "untrusting", spec)
	s.put("a", `{}`)
	eventually(t, patience, "it has been tried in vain", func() error {
		now := s.scheduled("a")
		if now == nil {
			return final{errors.New("it is delivered")}
		}
		if now.Attempt == nil || *now.Attempt < 2 {
			return fmt.Errorf("it is %+v", now)
		}
		return nil
	})
	if records, err := keptRecords(n, "untrusted", "/in"); err != nil || len(records) > 0 {
		t.Fatalf("a sink without trust received %v: %v", records, err)
	}
	// The same delivery arrives when the source says whom to trust.
	secureSource(n, "untrusting", fmt.Sprintf("sink: {uri: %q, CACerts: %q}\n", url+"/in", ca.pem))
	if d := awaitKept(n, "untrusted", "/in"); d.attr("reschedulekey") != "a" {
		t.Errorf("%v came", d)
	}
}

// secureSource makes a source and calls it by https.
func secureSource(n *namespace, name, spec string) *source {
	n.t.Helper()
	s := n.source(name, spec)
	for _, a := range s.get().Status.Addresses {
		if a.URL.Scheme == "https" && a.CACerts != nil {
			s.address, s.caCerts = a.URL.String(), *a.CACerts
			return s
		}
	}
	n.t.Fatalf("source %s has no https address: %v", name, s.get().Status.Addresses)
	return nil
}

func knativeSourcesBringTokens(t *testing.T, s *source) {
	o := newNamespace(t, "watching")
	o.account("watcher", `
- {apiGroups: [""], resources: [configmaps], verbs: [get, list, watch]}`)
	o.apply(`
apiVersion: v1
kind: ConfigMap
metadata: {name: watched, labels: {e2e: object}}
---
apiVersion: sources.knative.dev/v1
kind: ApiServerSource
metadata: {name: watching}
spec:
  serviceAccountName: watcher
  mode: Reference
  resources: [{apiVersion: v1, kind: ConfigMap, selector: {matchLabels: {e2e: object}}}]
  sink: {ref: {apiVersion: sources.reschedule.dev/v1alpha1, kind: RescheduleSource, name: ` + s.name + `, namespace: ` + s.namespace.name + `}}
`)
	o.ready(apiServerSource, "watching")
	key := "/apis/v1/namespaces/" + o.name + "/configmaps/watched"
	n := 0
	change := func() error {
		n++
		_, err := o.Client.CoreV1().ConfigMaps(o.name).Patch(t.Context(), "watched", types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%d"}}`, n), metav1.PatchOptions{})
		return err
	}

	refused := postEvents(t, o, http.StatusForbidden)
	eventually(t, patience, "its events are refused", func() error {
		if err := change(); err != nil {
			return err
		}
		if now := postEvents(t, o, http.StatusForbidden); now < refused+3 {
			return fmt.Errorf("%d were before, %d are", refused, now)
		}
		return nil
	})
	if came := s.runs(key); len(came) > 0 {
		t.Fatalf("they came all the same: %v", came)
	}

	s.admit("watching", "ref: {apiVersion: sources.knative.dev/v1, kind: ApiServerSource, name: watching, namespace: "+o.name+"}", "")
	eventually(t, patience, "its events are taken", func() error {
		if err := change(); err != nil {
			return err
		}
		came, err := s.recordedRuns(key)
		if err == nil && len(came) == 0 {
			err = fmt.Errorf("none came")
		}
		return err
	})
	s.withdraw("watching")
}

// postEvents is how many events the adapter has answered with a status since it
// started.
func postEvents(t *testing.T, n *namespace, status int) int {
	t.Helper()
	text, err := n.Client.CoreV1().Services(system).ProxyGet("http", adapter, "http-metrics", "metrics", nil).DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^reschedule_api_requests_total\{(.*)\} (\d+)$`).FindAllSubmatch(text, -1) {
		labels := string(m[1])
		if strings.Contains(labels, `method="POST"`) && strings.Contains(labels, `path="source"`) && strings.Contains(labels, fmt.Sprintf("status=%q", strconv.Itoa(status))) {
			count, err := strconv.Atoi(string(m[2]))
			if err != nil {
				t.Fatal(err)
			}
			return count
		}
	}
	return 0
}

func strictIsHTTPSOnly(t *testing.T, s *source) {
	n := s.namespace
	setFeatures(n, map[string]string{"transport-encryption": "strict"})
	token := tokenOf(n, "sender", s.audience())
	plain := strings.Replace(s.address, "https://", "http://", 1)
	eventually(t, patience, "http is refused", func() error {
		r, err := n.do("GET", plain, "", "Authorization", "Bearer "+token)
		if err == nil && (r.Status != http.StatusNotFound || !strings.Contains(string(r.Body), "https")) {
			err = fmt.Errorf("%d %s", r.Status, r.Body)
		}
		return err
	})
	eventually(t, patience, "the source has an https address only", func() error {
		o := s.get()
		if o.Status.Address == nil || o.Status.Address.URL.String() != s.address || len(o.Status.Addresses) > 1 {
			return fmt.Errorf("its address is %v, its addresses are %v", o.Status.Address, o.Status.Addresses)
		}
		return nil
	})
	n.ready(rescheduling, s.name)
	if r, err := doTrusting(n, s.caCerts, "PUT", s.address+"/schedules/strict", "{}", "Authorization", "Bearer "+token); err != nil || r.Status != http.StatusCreated {
		t.Fatalf("https: %+v, %v", r, err)
	}
	n.awaitRuns(patience, "strict", 1)
}

// setFeatures sets flags of Knative Eventing until the end of the test.
func setFeatures(n *namespace, flags map[string]string) {
	n.t.Helper()
	configuration := n.Client.CoreV1().ConfigMaps(system)
	set := func(ctx context.Context, flags map[string]string) error {
		text, err := json.Marshal(map[string]any{"data": flags})
		if err == nil {
			_, err = configuration.Patch(ctx, "config-features", types.MergePatchType, text, metav1.PatchOptions{})
		}
		return err
	}
	is, err := configuration.Get(n.t.Context(), "config-features", metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	before := map[string]string{}
	for name := range maps.Keys(flags) {
		before[name] = is.Data[name]
	}
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := poll(ctx, time.Minute, func() error { return set(ctx, before) }); err != nil {
			n.t.Errorf("config-features is not as it was, %v: %v", before, err)
		}
	})
	if err := set(n.t.Context(), flags); err != nil {
		n.t.Fatal(err)
	}
}

// plainAgain waits, at the end of the test, until the flags that were set after
// it count no more.
func plainAgain(n *namespace, s *source) {
	n.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		err := poll(ctx, patience, func() error {
			o, err := n.sources.SourcesV1alpha1().RescheduleSources(n.name).Get(ctx, s.name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if a := o.Status.Address; a == nil || a.URL.Scheme != "http" || a.Audience != nil || len(o.Status.Addresses) > 1 {
				return fmt.Errorf("the address of source %s is %v of %v", s.name, a, o.Status.Addresses)
			}
			return nil
		})
		if err != nil {
			n.t.Errorf("the flags count still: %v", err)
		}
	})
}

// makeSecret makes one with a certificate until the end of the test.
func makeSecret(n *namespace, namespace, name string, files map[string]string) {
	n.t.Helper()
	secrets := n.Client.CoreV1().Secrets(namespace)
	_, err := secrets.Create(n.t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS, StringData: files}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := secrets.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			n.t.Error(err)
		}
	})
}

// trustsAuthority has Knative's senders trust an authority until the end of the test.
func trustsAuthority(n *namespace, ca *authority) {
	n.t.Helper()
	bundles := n.Client.CoreV1().ConfigMaps(system)
	bundle, err := bundles.Create(n.t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{GenerateName: n.name + "-", Labels: map[string]string{"networking.knative.dev/trust-bundle": "true"}},
		Data:       map[string]string{"ca.crt": ca.pem},
	}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := bundles.Delete(context.Background(), bundle.Name, metav1.DeleteOptions{}); err != nil {
			n.t.Error(err)
		}
	})
}
