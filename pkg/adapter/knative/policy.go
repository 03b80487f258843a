package knative

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/event"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	lru "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/cache"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const (
	// maxPolicies bounds the compiled policies; more than that works, at the
	// price of compiling again.
	maxPolicies = 4096
	// policyFor is when one that nobody asked about may go.
	policyFor = time.Hour
)

// policies are the EventPolicies, each compiled once.
type policies struct {
	all      cache.Indexer // of *eventPolicy, by namespace
	compiled *lru.LRUExpireCache
	log      *slog.Logger
}

func newPolicies(all cache.Indexer, log *slog.Logger) *policies {
	return &policies{all: all, compiled: lru.NewLRUExpireCache(maxPolicies), log: log}
}

// policy is one EventPolicy, read for us. It does not change.
type policy struct {
	// of is what was compiled: an informer replaces objects and never changes
	// them, so another version is another pointer.
	of *eventPolicy

	everything bool // spec.to is empty
	names      []string
	selectors  []labels.Selector
	unreadable bool // so it may be about anything

	usable   bool // ready, and all of it can be read
	subjects []string
	filters  []predicate
}

// heard is what the policies have to say about a sender.
type heard struct {
	apply    bool      // one at least applies
	unusable bool      // one at least applies and cannot be used
	admitted bool      // whatever it sends
	perhaps  []*policy // name the sender, and have filters
}

// grant says whether a policy lets the caller into the schedule API. One with
// filters does not: they are about events, and there is none.
func (p *policies) grant(who *caller, a api.Access, l labels.Set) (bool, error) {
	h, err := p.hear(who, a, l)
	return h.admitted, err
}

// hear asks the policies that apply to the source.
func (p *policies) hear(who *caller, a api.Access, l labels.Set) (heard, error) {
	var h heard
	all, err := p.all.ByIndex(cache.NamespaceIndex, a.Namespace)
	if err != nil {
		return h, unavailable(retryLater, "the EventPolicies cannot be looked up")
	}
	for _, o := range all {
		c := p.compile(o.(*eventPolicy))
		if !c.applies(a.Name, l) {
			continue
		}
		h.apply = true
		switch {
		case !c.usable:
			h.unusable = true
		case !c.namesSubject(who.Username):
		case len(c.filters) == 0:
			h.admitted = true
		default:
			h.perhaps = append(h.perhaps, c)
		}
	}
	return h, nil
}

// compile returns the policy as read before, or reads it.
func (p *policies) compile(o *eventPolicy) *policy {
	key := o.Namespace + "/" + o.Name
	if v, ok := p.compiled.Get(key); ok && v.(*policy).of == o {
		return v.(*policy)
	}
	c, err := compilePolicy(o)
	if err != nil {
		p.log.Warn("an EventPolicy cannot be used and admits nobody", "namespace", o.Namespace, "policy", o.Name, "error", err)
	}
	p.compiled.Add(key, c, policyFor)
	return c
}

// compilePolicy reads a policy. What cannot be read makes it one that admits
// nobody, and, when it is not even clear what it is about, applies to every
// source of its namespace. Knative leaves out a filter that it cannot read,
// which would let more pass instead of less.
func compilePolicy(o *eventPolicy) (*policy, error) {
	c := &policy{of: o, everything: len(o.to) == 0, subjects: o.from}
	errs := []error{o.broken}
	for i := range o.to {
		if err := c.target(&o.to[i]); err != nil {
			c.unreadable = true
			errs = append(errs, fmt.Errorf("spec.to[%d]: %w", i, err))
		}
	}
	filters, err := compileFilters(o.filters)
	if err != nil {
		err = fmt.Errorf("spec.filters%w", err)
	}
	err = errors.Join(append(errs, err)...)
	c.filters, c.usable = filters, o.ready && err == nil
	return c, err
}

// target adds what one entry of spec.to is about, when it is about our kind.
// Case does not count, as with Knative.
func (c *policy) target(to *policyTarget) error {
	if to.Ref != nil {
		ours, err := isOurs(to.Ref.APIVersion, to.Ref.Kind)
		if err != nil {
			return err
		}
		if ours {
			c.names = append(c.names, to.Ref.Name)
		}
	}
	if to.Selector == nil {
		return nil
	}
	if to.Selector.TypeMeta == nil {
		return errors.New("selector: no kind is named")
	}
	ours, err := isOurs(to.Selector.APIVersion, to.Selector.Kind)
	if err != nil || !ours {
		return err
	}
	s, err := metav1.LabelSelectorAsSelector(to.Selector.LabelSelector)
	if err != nil {
		return fmt.Errorf("selector: %w", err)
	}
	c.selectors = append(c.selectors, s)
	return nil
}

func isOurs(apiVersion, kind string) (bool, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	return strings.EqualFold(gv.Group, sources.GroupName) && strings.EqualFold(kind, v1alpha1.Kind), err
}

// applies says whether the policy is about the source.
func (c *policy) applies(name string, l labels.Set) bool {
	if c.everything || c.unreadable {
		return true
	}
	for _, n := range c.names {
		if strings.EqualFold(n, name) {
			return true
		}
	}
	for _, s := range c.selectors {
		if s.Matches(l) {
			return true
		}
	}
	return false
}

// namesSubject says whether the policy is for the subject: one that ends with
// a star is a prefix. Case counts, because it does in Kubernetes.
func (c *policy) namesSubject(subject string) bool {
	for _, s := range c.subjects {
		if prefix, ok := strings.CutSuffix(s, "*"); s == subject || ok && strings.HasPrefix(subject, prefix) {
			return true
		}
	}
	return false
}

// passes says whether the event passes all filters. One that breaks on an
// event, as an expression does that is no condition, does not let it pass.
func (c *policy) passes(e event.Event) (ok bool) {
	defer func() {
		if recover() != nil {
			ok = false
		}
	}()
	for _, f := range c.filters {
		if !f(e) {
			return false
		}
	}
	return true
}
