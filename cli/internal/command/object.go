package command

import (
	"cmp"
	"encoding/json"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
	"github.com/reschedule-dev/reschedule/pkg/duration"
	"github.com/reschedule-dev/reschedule/sdk"
)

// The kinds that the command line reads and writes.
var (
	sourceKind     = schema.GroupVersionKind{Group: "sources.reschedule.dev", Version: "v1alpha1", Kind: "RescheduleSource"}
	sourceResource = sourceKind.GroupVersion().WithResource("reschedulesources")
	statefulSets   = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"}
	podResource    = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	accounts       = schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}
)

// adapterName is the name of the adapter's StatefulSet.
const adapterName = "reschedule-adapter"

// object is the part of a RescheduleSource that the command line understands. All of it is
// in raw, which is nil without a cluster: then only the name is known.
type object struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Sink     map[string]any `json:"sink"`
		Suspend  bool           `json:"suspend"`
		Delivery struct {
			Timeout string `json:"timeout"`
		} `json:"delivery"`
		Ingest struct {
			When string `json:"when"`
		} `json:"ingest"`
		Slack       string `json:"slack"`
		MaxInterval string `json:"maxInterval"`
		Watch       struct {
			ServiceAccountName string `json:"serviceAccountName"`
		} `json:"watch"`
		Scale *struct {
			TargetRef          workloadRef `json:"targetRef"`
			Replicas           *int64      `json:"replicas"`
			Cooldown           string      `json:"cooldown"`
			StartTimeout       string      `json:"startTimeout"`
			ServiceAccountName string      `json:"serviceAccountName"`
			Mode               string      `json:"mode"`
		} `json:"scale"`
		Limits struct {
			MaxInFlight  *int64             `json:"maxInFlight"`
			MaxPerSecond *int64             `json:"maxPerSecond"`
			MaxPending   *int64             `json:"maxPending"`
			MaxBytes     *resource.Quantity `json:"maxBytes"`
		} `json:"limits"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1Condition `json:"conditions"`
		SinkURI    string            `json:"sinkUri"`
		Address    *struct {
			URL      string  `json:"url"`
			CACerts  string  `json:"CACerts"`
			Audience *string `json:"audience"`
		} `json:"address"`
		Pending   *int64       `json:"pending"`
		InFlight  *int64       `json:"inFlight"`
		Retrying  *int64       `json:"retrying"`
		NextDueAt *metav1.Time `json:"nextDueAt"`
		Scale     *struct {
			sdk.Scale
			Held *workloadRef `json:"held"`
		} `json:"scale"`
	} `json:"status"`

	raw *unstructured.Unstructured
}

// workloadRef names a workload in the namespace of a source.
type workloadRef struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
}

// metav1Condition is a Knative condition: unlike Kubernetes' it has a severity.
type metav1Condition struct {
	Type, Status, Severity, Reason, Message string
}

// read understands a RescheduleSource.
func read(raw *unstructured.Unstructured) (*object, error) {
	b, err := raw.MarshalJSON()
	if err != nil {
		return nil, err
	}
	o := &object{raw: raw}
	return o, json.Unmarshal(b, o)
}

// nameOnly is a source of which the name alone is known.
func nameOnly(namespace, name string) *object {
	return &object{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// audience is the audience of tokens for the source.
func (o *object) audience() string {
	return strings.ToLower("sources.reschedule.dev/reschedulesource/" + o.Namespace + "/" + o.Name)
}

func (o *object) condition(name string) metav1Condition {
	for _, c := range o.Status.Conditions {
		if c.Type == name {
			return c
		}
	}
	return metav1Condition{Type: name, Status: "Unknown"}
}

// workload is what the object says of its workload, nil without one.
func (o *object) workload() *why.Workload {
	scale, status := o.Spec.Scale, o.Status.Scale
	if scale == nil && (status == nil || status.Held == nil) {
		return nil
	}
	w := &why.Workload{}
	if scale != nil {
		w.Kind, w.Name, w.Mode = scale.TargetRef.Kind, scale.TargetRef.Name, cmp.Or(scale.Mode, "Auto")
		w.StartTimeout, _ = duration.Parse(cmp.Or(scale.StartTimeout, "2m")) // 0: unknown
		w.Cooldown, _ = duration.Parse(cmp.Or(scale.Cooldown, "10s"))
		w.Sinkless = len(o.Spec.Sink) == 0
		w.Account = cmp.Or(scale.ServiceAccountName, o.Spec.Watch.ServiceAccountName, "default")
	}
	if status != nil {
		w.Status = &status.Scale
		if held := status.Held; held != nil {
			w.Held = true
			if scale == nil || o.DeletionTimestamp != nil {
				w.Kind, w.Name = held.Kind, held.Name
			}
		}
	}
	return w
}

// sinkText says where the source delivers to, "" if that is not known.
func (o *object) sinkText() string {
	return (&why.Source{SinkURI: o.Status.SinkURI, Workload: o.workload()}).Sink()
}

// facts are what why wants to know of the object, nil if only the name is known.
func (o *object) facts() *why.Source {
	if o.raw == nil {
		return nil
	}
	s := &why.Source{
		Suspended: o.Spec.Suspend, Deleting: o.DeletionTimestamp != nil, SinkURI: o.Status.SinkURI, Timeout: 10 * time.Minute,
		MaxInFlight: 100, When: o.Spec.Ingest.When,
	}
	for _, c := range o.Status.Conditions {
		s.Conditions = append(s.Conditions, why.Condition(c))
	}
	if len(s.Conditions) == 0 {
		s.Conditions = []why.Condition{{Type: "Ready", Status: "Unknown", Reason: "NotReconciled", Message: "the controller has not seen the source yet"}}
	}
	if d, err := duration.Parse(o.Spec.Delivery.Timeout); err == nil {
		s.Timeout = d
	}
	s.Workload = o.workload()
	limits := &o.Spec.Limits
	for to, from := range map[*int64]*int64{&s.MaxInFlight: limits.MaxInFlight, &s.MaxPerSecond: limits.MaxPerSecond, &s.MaxPending: limits.MaxPending} {
		if from != nil {
			*to = *from
		}
	}
	if limits.MaxBytes != nil {
		s.MaxBytes = limits.MaxBytes.Value()
	}
	return s
}
