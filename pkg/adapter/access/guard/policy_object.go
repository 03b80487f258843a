package guard

import (
	stdjson "encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/json"
)

// eventPolicy is the part of an EventPolicy that the guard uses.
type eventPolicy struct {
	metav1.ObjectMeta // for the informer

	to      []policyTarget
	filters []policyFilter
	from    []string // status.from
	ready   bool
	broken  error // why it cannot be read
}

// policyTarget is one entry of spec.to.
type policyTarget struct {
	Ref *struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Name       string `json:"name"`
	} `json:"ref"`
	Selector *policySelector `json:"selector"`
}

// policySelector is Knative's: no labels and an empty set of labels differ.
type policySelector struct {
	*metav1.LabelSelector `json:",inline"`
	*metav1.TypeMeta      `json:",inline"`
}

// policyFilter is one of spec.filters, in one dialect.
type policyFilter struct {
	All    []policyFilter    `json:"all"`
	Any    []policyFilter    `json:"any"`
	Not    *policyFilter     `json:"not"`
	Exact  map[string]string `json:"exact"`
	Prefix map[string]string `json:"prefix"`
	Suffix map[string]string `json:"suffix"`
	CESQL  string            `json:"cesql"`
}

// ReadPolicy is the transform of the informer whose indexer is Config.Policies. It
// reads an unstructured EventPolicy. It never fails: an informer drops an object
// that its transform fails on, and without the policy more callers would be
// admitted instead of fewer.
func ReadPolicy(o any) (any, error) {
	object, ok := o.(*unstructured.Unstructured)
	if !ok {
		return o, nil // a tombstone, or already read
	}
	p := &eventPolicy{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
	}}
	p.broken = p.read(object)
	return p, nil
}

func (p *eventPolicy) read(object *unstructured.Unstructured) error {
	raw, err := object.MarshalJSON()
	if err != nil {
		return err
	}
	var read struct {
		Spec struct {
			To      []policyTarget     `json:"to"`
			Filters stdjson.RawMessage `json:"filters"`
		} `json:"spec"`
		Status struct {
			From       []string `json:"from"`
			Conditions []struct {
				Type   string `json:"type"`
				Status string `json:"status"`
			} `json:"conditions"`
		} `json:"status"`
	}
	if err := json.UnmarshalCaseSensitivePreserveInts(raw, &read); err != nil {
		return err // without targets it is about every source
	}
	p.to, p.from = read.Spec.To, read.Status.From
	for _, c := range read.Status.Conditions {
		if c.Type == "Ready" {
			p.ready = c.Status == string(metav1.ConditionTrue)
			break
		}
	}
	if read.Spec.Filters == nil {
		return nil
	}
	// An unknown dialect would be one condition less.
	unknown, err := json.UnmarshalStrict(read.Spec.Filters, &p.filters)
	if err = errors.Join(append(unknown, err)...); err != nil {
		return fmt.Errorf("spec.filters: %w", err)
	}
	return nil
}
