package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

var resource = v1alpha1.SchemeGroupVersion.WithResource("reschedulesources")

// namespace makes one for a test.
func namespace(t *testing.T, prefix string) string {
	t.Helper()
	ns, err := server.Client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// sourcesIn is what makes sources of manifests as they are written.
func sourcesIn(t *testing.T, prefix string) dynamic.ResourceInterface {
	t.Helper()
	return server.Dynamic.Resource(resource).Namespace(namespace(t, prefix))
}

// manifest is a source with a spec.
func manifest(t *testing.T, name, spec string) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	text, err := yaml.YAMLToJSONStrict([]byte(spec))
	if err != nil {
		t.Fatalf("the test's own YAML: %v", err)
	}
	text = fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"name":%q},"spec":%s}`,
		v1alpha1.SchemeGroupVersion, v1alpha1.Kind, name, text)
	if err := o.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	return o
}

var strict = metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}

// validate is what pkg/apis says to a manifest: which fields are wrong, or
// that it cannot be read at all.
func validate(t *testing.T, o *unstructured.Unstructured) (fields []string, err error) {
	t.Helper()
	text, err := o.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	var s v1alpha1.RescheduleSource
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&s); err != nil {
		return nil, err
	}
	plain := s.Validate(t.Context())
	s.SetDefaults(t.Context())
	if full := s.Validate(t.Context()); (full == nil) != (plain == nil) {
		t.Errorf("without its defaults: %v; with them: %v", plain, full)
	}
	if plain == nil {
		return nil, nil
	}
	for _, e := range plain.WrappedErrors() {
		fields = append(fields, e.Paths...)
	}
	return fields, plain
}

// The API server and Validate accept the same good specs.
func TestCRD_AcceptsGoodSpecs(t *testing.T) {
	t.Parallel()
	sources := sourcesIn(t, "good")
	for i, c := range slices.Concat(goodSpecs, goodCertificates(certificate(t))) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := manifest(t, fmt.Sprint("good-", i), c.yaml)
			if _, err := sources.Create(t.Context(), o, strict); err != nil {
				t.Errorf("the API server: %v", err)
			}
			if _, err := validate(t, o); err != nil {
				t.Errorf("Validate: %v", err)
			}
		})
	}
}

// The API server and Validate refuse the same bad specs.
func TestCRD_RefusesBadSpecs(t *testing.T) {
	t.Parallel()
	sources := sourcesIn(t, "bad")
	for i, c := range slices.Concat(badSpecs, bigSpecs, badCertificates(certificate(t))) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			o := manifest(t, fmt.Sprint("bad-", i), c.yaml)
			fields, err := validate(t, o)
			if (err == nil) != (c.early != "") {
				t.Errorf("Validate: %v; the exception is %q", err, c.early)
			} else if fields != nil && c.field != "" && !names(fields, c.field) {
				t.Errorf("Validate: %q does not name %s", err, c.field)
			}
			_, err = sources.Create(t.Context(), o, strict)
			if c.late != "" {
				if err != nil {
					t.Errorf("the API server: %v, although %s", err, c.late)
				}
				return
			}
			refused(t, err, c.field, c.words)
		})
	}
}

// refused wants an error of the API server that names a field and has words.
func refused(t *testing.T, err error, field, words string) {
	t.Helper()
	var status apierrors.APIStatus
	switch {
	case err == nil:
		t.Error("the API server: accepted")
		return
	case apierrors.IsBadRequest(err) && strings.Contains(err.Error(), fmt.Sprintf("unknown field %q", field)):
		return
	case !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil:
		t.Errorf("the API server: %v", err)
		return
	}
	var fields []string
	for _, cause := range status.Status().Details.Causes {
		fields = append(fields, cause.Field)
	}
	// A rule that breaks off refuses too, and shows the user its own text, as one does for a fragment that is none,
	// and for an unknown zone.
	says := err.Error()
	if field != "" && !names(fields, field) || !strings.Contains(says, words) || strings.Contains(says, "evaluating rule") && !strings.Contains(says, "#%zz") && !strings.Contains(says, "unknown time zone") {
		t.Errorf("the API server: %q does not name %s with the words %q", err, field, words)
	}
}

// names says whether one of the fields is the wanted one or below it.
func names(fields []string, wanted string) bool {
	for _, f := range fields {
		if rest, ok := strings.CutPrefix(f, wanted); ok && (rest == "" || rest[0] == '.' || rest[0] == '[') {
			return true
		}
	}
	return false
}

// A good source cannot be made a bad one.
func TestCRD_RefusesBadUpdates(t *testing.T) {
	t.Parallel()
	sources := sourcesIn(t, "update")
	o, err := sources.Create(t.Context(), manifest(t, "x", toURI), strict)
	if err != nil {
		t.Fatal(err)
	}
	for _, patch := range []struct{ json, field string }{
		{`{"spec":{"sink":{"uri":"/path"}}}`, "spec.sink"},
		{`{"spec":{"delay":"soon"}}`, "spec.delay"},
		{`{"spec":{"ceOverrides":{"extensions":{"id":"x"}}}}`, "spec.ceOverrides.extensions"},
		{`{"spec":{"limits":{"maxPending":0}}}`, "spec.limits.maxPending"},
	} {
		_, err := sources.Patch(t.Context(), o.GetName(), "application/merge-patch+json", []byte(patch.json), metav1.PatchOptions{})
		refused(t, err, patch.field, "")
	}
}
