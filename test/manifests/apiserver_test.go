package manifests

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	crdv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"
)

const crdFile = "300-reschedulesource.yaml"

// apiServer does to a RescheduleSource what the API server does, with its code.
type apiServer struct {
	crd       *crdv1.CustomResourceDefinition
	schema    *schema.Structural
	validator validation.SchemaCreateValidator
	rules     *cel.Validator
}

// loadAPIServer is done once: compiling the rules takes a while, and all of it
// is safe for concurrent use.
var loadAPIServer = sync.OnceValues(func() (*apiServer, error) {
	raw, err := os.ReadFile(filepath.Join(configDir, crdFile))
	if err != nil {
		return nil, err
	}
	s := &apiServer{crd: &crdv1.CustomResourceDefinition{}}
	if err := yaml.UnmarshalStrict(raw, s.crd); err != nil {
		return nil, err
	}
	internal, err := s.internal()
	if err != nil {
		return nil, err
	}
	props := internal.Spec.Validation.OpenAPIV3Schema // the internal form keeps one schema for all versions here
	if s.schema, err = schema.NewStructural(props); err != nil {
		return nil, err
	}
	if s.validator, _, err = validation.NewSchemaValidator(props); err != nil {
		return nil, err
	}
	s.rules = cel.NewValidator(s.schema, true, celconfig.PerCallLimit)
	return s, nil
})

// internal is the CRD as the API server's own validation takes it.
func (s *apiServer) internal() (*apiextensions.CustomResourceDefinition, error) {
	withDefaults := s.crd.DeepCopy()
	crdv1.SetDefaults_CustomResourceDefinition(withDefaults)
	crdv1.SetDefaults_CustomResourceDefinitionSpec(&withDefaults.Spec)
	out := &apiextensions.CustomResourceDefinition{}
	return out, crdv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(withDefaults, out, nil)
}

func server(t *testing.T) *apiServer {
	t.Helper()
	s, err := loadAPIServer()
	if err != nil {
		t.Fatalf("%s: %v", crdFile, err)
	}
	return s
}

// admit is a creation with fieldValidation=Strict: it returns the object as it
// would be stored, and everything that is wrong with it.
func (s *apiServer) admit(ctx context.Context, object map[string]any) (stored map[string]any, errs []string) {
	unknown := pruning.PruneWithOptions(object, s.schema, true, schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown {
		errs = append(errs, "unknown field "+path)
	}
	unfit := false
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.schema)
	defaulting.Default(object, s.schema)
	for _, err := range validation.ValidateCustomResource(nil, object, s.validator) {
		errs = append(errs, err.Error())
		switch err.Type {
		case field.ErrorTypeTypeInvalid, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany:
			unfit = true // for rules: their types and costs rest on these
		}
	}
	for _, err := range listtype.ValidateListSetsAndMaps(nil, s.schema, object) {
		errs = append(errs, err.Error())
	}
	if unfit {
		return object, errs
	}
	found, _ := s.rules.Validate(ctx, nil, s.schema, object, nil, celconfig.RuntimeCELCostBudget)
	for _, err := range found {
		errs = append(errs, err.Error())
	}
	return object, errs
}

// An API server takes the CRD.
func TestCRD_IsAccepted(t *testing.T) {
	t.Parallel()
	internal, err := server(t).internal()
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range crdvalidation.ValidateCustomResourceDefinition(t.Context(), internal) {
		if !strings.HasPrefix(err.Field, "status.") { // the API server's own to fill in
			t.Error(err)
		}
	}
}

// integers turns float64 into int64 where nothing is lost, as the API server
// reads JSON.
func integers(value any) any {
	switch v := value.(type) {
	case map[string]any:
		for k := range v {
			v[k] = integers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = integers(v[i])
		}
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
			return int64(v)
		}
	}
	return value
}

func toTree(t *testing.T, object any) map[string]any {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	return integers(tree).(map[string]any)
}
