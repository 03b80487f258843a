package sources

import (
	gojson "encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/json"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// manifest is a RescheduleSource as a user wrote it. Its status is ignored, as an
// API server does on creation.
type manifest struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   v1alpha1.RescheduleSourceSpec `json:"spec"`
	Status any                           `json:"status"`
}

// header is the part of a document with its kind and its name.
type header struct {
	metav1.TypeMeta `json:",inline"`
	Metadata        struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
	} `json:"metadata"`
}

// peek reads what it can; what it cannot, decoding complains about.
func peek(raw []byte) (h header) {
	_ = json.UnmarshalCaseSensitivePreserveInts(raw, &h)
	return h
}

func (h *header) isList() bool {
	return h.Kind == "List" && h.APIVersion == "v1" ||
		h.Kind == v1alpha1.Kind+"List" && h.APIVersion == v1alpha1.SchemeGroupVersion.String()
}

// label is the object's name for an error, "" if it has none.
func (h *header) label() string {
	switch {
	case h.Metadata.Name == "":
		return ""
	case h.Metadata.Namespace == "":
		return fmt.Sprintf(" (%.253s)", printable(h.Metadata.Name))
	}
	return fmt.Sprintf(" (%.63s/%.253s)", printable(h.Metadata.Namespace), printable(h.Metadata.Name))
}

func decodeList(raw []byte) ([]gojson.RawMessage, []error) {
	var list struct {
		metav1.TypeMeta `json:",inline"`
		Metadata        any                 `json:"metadata"`
		Items           []gojson.RawMessage `json:"items"`
	}
	errs := strict(raw, &list)
	if len(errs) == 0 && list.Items == nil {
		errs = append(errs, errors.New("items: is missing; for an empty List write items: []"))
	}
	return list.Items, errs
}

func decodeObject(raw []byte) (*v1alpha1.RescheduleSource, []error) {
	if len(raw) == 0 || raw[0] != '{' {
		return nil, []error{errors.New("is not an object")}
	}
	want := v1alpha1.SchemeGroupVersion.String()
	switch h := peek(raw); {
	case h.Kind != v1alpha1.Kind:
		return nil, []error{fmt.Errorf("kind: %.64q is not %s", h.Kind, v1alpha1.Kind)}
	case h.APIVersion != want:
		return nil, []error{fmt.Errorf("apiVersion: %.64q is not %s", h.APIVersion, want)}
	}
	var m manifest
	if errs := strict(raw, &m); len(errs) > 0 {
		return nil, errs
	}
	o := &v1alpha1.RescheduleSource{TypeMeta: m.TypeMeta, ObjectMeta: m.ObjectMeta, Spec: m.Spec}
	if o.Namespace == "" {
		o.Namespace = metav1.NamespaceDefault
	}
	return o, nil
}

// strict decodes as an API server does with strict field validation.
func strict(raw []byte, into any) []error {
	unknown, err := json.UnmarshalStrict(raw, into)
	if err != nil {
		return []error{explain(raw, err)}
	}
	return unknown
}

// embedded are the parts of a decoder's path that no manifest has.
var embedded = strings.NewReplacer("SourceSpec.", "", "DeliverySpec.", "", "ObjectMeta.", "", "ListMeta.", "", "TypeMeta.", "")

// explain names the field of a decoding error.
func explain(raw []byte, err error) error {
	var typeErr *gojson.UnmarshalTypeError
	if errors.As(err, &typeErr) && typeErr.Field != "" {
		field := embedded.Replace(typeErr.Field)
		return fmt.Errorf("%s: is a %s where a %s belongs", field, typeErr.Value, typeErr.Type)
	}
	if errors.Is(err, resource.ErrFormatWrong) || errors.Is(err, resource.ErrNumeric) || errors.Is(err, resource.ErrSuffix) {
		return fmt.Errorf("spec.limits.maxBytes: %w", err) // the only quantity of a spec
	}
	var urlErr *url.Error
	if !errors.As(err, &urlErr) {
		return err
	}
	// The only URLs of a spec; the decoder does not say which it was.
	var uris struct {
		Spec struct {
			Sink     struct{ URI any }
			Delivery struct{ DeadLetterSink struct{ URI any } }
		}
	}
	_ = gojson.Unmarshal(raw, &uris)
	field := "spec.delivery.deadLetterSink.uri"
	if s, ok := uris.Spec.Sink.URI.(string); ok {
		if _, sinkErr := url.Parse(s); sinkErr != nil {
			field = "spec.sink.uri"
		}
	}
	return fmt.Errorf("%s: %w", field, urlErr.Err)
}

// A uid given by hand must not be taken for the namespace and name of another
// source.
var validUID = regexp.MustCompile(`^[!-.0-~]{1,128}$`)

// checkMeta is what an API server would check of an object's metadata, as far
// as it matters here.
func checkMeta(o *v1alpha1.RescheduleSource) (errs []error) {
	refuse := func(field, why string) { errs = append(errs, fmt.Errorf("metadata.%s: %s", field, why)) }
	if o.Name == "" {
		refuse("name", "is missing")
	} else if why := validation.IsDNS1123Subdomain(o.Name); len(why) > 0 {
		refuse("name", fmt.Sprintf("%.64q: %s", o.Name, strings.Join(why, "; ")))
	}
	if why := validation.IsDNS1123Label(o.Namespace); len(why) > 0 {
		refuse("namespace", fmt.Sprintf("%.64q: %s", o.Namespace, strings.Join(why, "; ")))
	}
	if o.UID != "" && !validUID.MatchString(string(o.UID)) {
		refuse("uid", fmt.Sprintf("%.64q is not 1 to 128 printable characters without a slash", o.UID))
	}
	return errs
}

// printable keeps what a manifest holds from writing lines of its own.
func printable(s string) string {
	if q := fmt.Sprintf("%q", s); q != `"`+s+`"` {
		return q
	}
	return s
}
