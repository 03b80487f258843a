package manifests

import (
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"knative.dev/pkg/apis"
	duckv1 "knative.dev/pkg/apis/duck/v1"

	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
)

// hidden are fields of the Go types that the schema leaves out on purpose.
var hidden = map[string]string{
	"spec.sink.ref.group":                    "experimental in Knative, and refused by Validate: strict clients say unknown field",
	"spec.delivery.deadLetterSink.ref.group": "the same",
}

// walk compares a schema with the Go type whose JSON it describes.
func walk(t *testing.T, path string, s *schema.Structural, typ reflect.Type) {
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	if s.Description == "" && !strings.HasSuffix(path, "[]") && !strings.HasSuffix(path, "{}") {
		t.Errorf("%s has no description for kubectl explain", path)
	}
	if s.XPreserveUnknownFields || s.XIntOrString != (typ == reflect.TypeFor[resource.Quantity]()) || s.XEmbeddedResource {
		t.Errorf("%s is not structural to its end", path)
	}
	is := func(want, format string) {
		got := ""
		if s.ValueValidation != nil {
			got = s.ValueValidation.Format
		}
		if s.Type != want || got != format {
			t.Errorf("%s is %s %s, want %s %s", path, s.Type, got, want, format)
		}
	}
	switch typ {
	case reflect.TypeFor[apis.URL]():
		is("string", "")
		return
	case reflect.TypeFor[resource.Quantity]():
		is("", "")
		return
	case reflect.TypeFor[metav1.Time](), reflect.TypeFor[apis.VolatileTime]():
		is("string", "date-time")
		return
	}
	switch typ.Kind() {
	case reflect.String:
		is("string", "")
	case reflect.Bool:
		is("boolean", "")
	case reflect.Int32, reflect.Int64:
		is("integer", typ.Kind().String())
	case reflect.Float64:
		is("number", "")
	case reflect.Slice:
		is("array", "")
		walk(t, path+"[]", s.Items, typ.Elem())
	case reflect.Map:
		is("object", "")
		walk(t, path+"{}", s.AdditionalProperties.Structural, typ.Elem())
	case reflect.Struct:
		is("object", "")
		walkFields(t, path, s, typ)
	default:
		t.Errorf("%s is a %v, which this test does not know", path, typ)
	}
}

func walkFields(t *testing.T, path string, s *schema.Structural, typ reflect.Type) {
	fields := map[string]reflect.Type{}
	jsonFields(typ, fields)
	for name, field := range fields {
		at := strings.TrimPrefix(path+"."+name, ".")
		property, ok := s.Properties[name]
		switch reason := hidden[at]; {
		case ok && reason != "":
			t.Errorf("%s is in the schema, but hidden: %s", at, reason)
		case ok:
			walk(t, at, &property, field)
		case reason == "":
			t.Errorf("%s is in the Go types, but not in the schema: the API server would drop it", at)
		}
	}
	for name := range s.Properties {
		if fields[name] == nil {
			t.Errorf("%s.%s is in the schema, but not in the Go types", path, name)
		}
	}
}

// jsonFields are a struct's fields by the names that they have in JSON.
func jsonFields(typ reflect.Type, out map[string]reflect.Type) {
	for f := range typ.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "" && f.Anonymous:
			jsonFields(f.Type, out)
		case name != "" && name != "-":
			out[name] = f.Type
		}
	}
}

// The schema has every field of the Go types and no other.
func TestSchema_HasTheFieldsOfTheTypes(t *testing.T) {
	t.Parallel()
	root := server(t).schema
	if root.Description == "" {
		t.Error("the kind has no description")
	}
	spec, status := root.Properties["spec"], root.Properties["status"]
	walk(t, "spec", &spec, reflect.TypeFor[v1alpha1.RescheduleSourceSpec]())
	walk(t, "status", &status, reflect.TypeFor[v1alpha1.RescheduleSourceStatus]())
}

// docs/conformance.md: what every Knative source may carry survives.
func TestSchema_StoresTheDuckType(t *testing.T) {
	t.Parallel()
	duck := &duckv1.Source{}
	duck.Populate()
	object := toTree(t, duck)
	object["apiVersion"], object["kind"] = v1alpha1.SchemeGroupVersion.String(), v1alpha1.Kind
	want := toTree(t, object)
	stored, errs := server(t).admit(t.Context(), object)
	if len(errs) > 0 {
		t.Errorf("refused: %v", errs)
	}
	for _, path := range [][]string{{"spec", "sink"}, {"spec", "ceOverrides"}, {"status"}} {
		if diff := cmp.Diff(at(want, path), at(stored, path)); diff != "" {
			t.Errorf("%v changes (-written +stored):\n%s", path, diff)
		}
	}
}

func at(tree map[string]any, path []string) any {
	var value any = tree
	for _, name := range path {
		value = value.(map[string]any)[name]
	}
	return value
}

// Whatever a rule looks at has an end, and whatever a client could decode wrongly.
func TestSchema_BoundsEveryValue(t *testing.T) {
	t.Parallel()
	var look func(path string, s schema.Structural)
	look = func(path string, s schema.Structural) {
		v := s.ValueValidation
		if v == nil {
			v = &schema.ValueValidation{}
		}
		switch s.Type {
		case "string":
			if v.MaxLength == nil && len(v.Enum) == 0 {
				t.Errorf("%s has no maxLength", path)
			}
		case "integer":
			if v.Minimum == nil || v.Maximum == nil || v.Format == "int32" && *v.Maximum > math.MaxInt32 {
				t.Errorf("%s has no bounds", path)
			}
		case "array":
			if v.MaxItems == nil {
				t.Errorf("%s has no maxItems", path)
			}
			look(path+"[]", *s.Items)
		}
		if s.AdditionalProperties != nil {
			if v.MaxProperties == nil {
				t.Errorf("%s has no maxProperties", path)
			}
			look(path+"{}", *s.AdditionalProperties.Structural)
		}
		for name, property := range s.Properties {
			look(path+"."+name, property)
		}
	}
	look("spec", server(t).schema.Properties["spec"])
}
