package guard

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

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

const (
	// maxPolicies bounds the compiled policies; more than that works, at the
	// price of compiling again.
	maxPolicies = 4096
	// policyTTL is when a compiled policy that was not used is dropped.
	policyTTL = time.Hour
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

// policy is one compiled EventPolicy. It does not change.
type policy struct {
	// object is what was compiled: an informer replaces objects and never changes
	// them, so another version is another pointer.
	object *eventPolicy

	everything bool // spec.to is empty
	names      []string
	selectors  []labels.Selector
	unreadable bool // so it may be about any source

	usable   bool // ready, and all of it can be read
	subjects []string
	filters  []predicate
}

// policyVerdict is what the policies decide about a sender.
type policyVerdict struct {
	applies  bool      // at least one policy applies
	unusable bool      // at least one policy applies and cannot be used
	admitted bool      // a policy without filters names the sender
	filtered []*policy // the policies with filters that name the sender
}

// grant reports whether a policy admits the caller to the schedule API. A policy
// with filters does not: filters are about events, and there is none.
func (p *policies) grant(who *caller, a access.Request, l labels.Set) (bool, error) {
	v, err := p.evaluate(who, a, l)
	return v.admitted, err
}

// evaluate applies the policies that apply to the source.
func (p *policies) evaluate(who *caller, a access.Request, l labels.Set) (policyVerdict, error) {
	var v policyVerdict
	all, err := p.all.ByIndex(cache.NamespaceIndex, a.Namespace)
	if err != nil {
		return v, unavailable(retryLater, "the EventPolicies cannot be looked up")
	}
	for _, o := range all {
		c := p.compile(o.(*eventPolicy))
		if !c.applies(a.Name, l) {
			continue
		}
		v.applies = true
		switch {
		case !c.usable:
			v.unusable = true
		case !c.namesSubject(who.Username):
		case len(c.filters) == 0:
			v.admitted = true
		default:
			v.filtered = append(v.filtered, c)
		}
	}
	return v, nil
}

// compile returns the compiled policy, from the cache if this version is there.
func (p *policies) compile(o *eventPolicy) *policy {
	key := o.Namespace + "/" + o.Name
	if v, ok := p.compiled.Get(key); ok && v.(*policy).object == o {
		return v.(*policy)
	}
	c, err := compilePolicy(o)
	if err != nil {
		p.log.Warn("an EventPolicy cannot be used and admits no sender", "namespace", o.Namespace, "policy", o.Name, "error", err)
	}
	p.compiled.Add(key, c, policyTTL)
	return c
}

// compilePolicy compiles a policy. A part that cannot be read makes it admit no
// sender; when it is not clear which sources it is about, it also applies to every
// source of its namespace. Knative ignores a filter that it cannot read, and so
// admits more instead of less.
func compilePolicy(o *eventPolicy) (*policy, error) {
	c := &policy{object: o, everything: len(o.to) == 0, subjects: o.from}
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

// target adds one entry of spec.to, if it is about RescheduleSources. Case does
// not matter, as in Knative.
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

// applies reports whether the policy is about the source.
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

// namesSubject reports whether the policy names the subject. A name that ends with
// a star is a prefix. Case matters, as in Kubernetes.
func (c *policy) namesSubject(subject string) bool {
	for _, s := range c.subjects {
		if prefix, ok := strings.CutSuffix(s, "*"); s == subject || ok && strings.HasPrefix(subject, prefix) {
			return true
		}
	}
	return false
}

// passes reports whether the event passes all filters. A filter that panics on an
// event, as an expression does that is no condition, does not pass it.
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
