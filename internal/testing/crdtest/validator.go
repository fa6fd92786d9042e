package crdtest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
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

// A Validator does with an object of one kind what the API server does: refuse unknown
// fields (kubectl asks for that), fill in defaults, check the schema, and if that passes
// lists and CEL.
type Validator struct {
	// Structural is the CRD's schema.
	Structural *schema.Structural

	schema validation.SchemaValidator
	cel    *cel.Validator
}

// Load reads the CRD of a kind by its plural. The test's package is two directories
// below the module's root.
func Load(t testing.TB, plural string) Validator {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root(t), "manifests", "crds", "fanfare.io_"+plural+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(b, &crd); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(&crd)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
	var in apiextensions.CustomResourceDefinition
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, &in,
		nil); err != nil {
		t.Fatal(err)
	}
	// This is what makes the API server refuse a CRD: not structural, CEL that
	// does not compile, CEL whose estimated cost is over the budget.
	if errs := crdvalidation.ValidateCustomResourceDefinition(context.Background(), &in); len(errs) != 0 {
		t.Fatal(errs.ToAggregate())
	}
	props := in.Spec.Validation.OpenAPIV3Schema
	st, err := schema.NewStructural(props)
	if err != nil {
		t.Fatal(err)
	}
	sv, _, err := validation.NewSchemaValidator(props)
	if err != nil {
		t.Fatal(err)
	}
	return Validator{st, sv, cel.NewValidator(st, true, celconfig.PerCallLimit)}
}

// Create is what the API server says to a new object, whose defaults it fills in.
func (v Validator) Create(obj map[string]any) field.ErrorList { return v.Update(obj, nil) }

// Update is what the API server says to obj in the place of old; old is nil when obj is
// new.
func (v Validator) Update(obj map[string]any, old any) field.ErrorList {
	if errs := v.unknown(obj); len(errs) != 0 {
		return errs
	}
	defaulting.Default(obj, v.Structural)
	if errs := validation.ValidateCustomResource(nil, obj, v.schema); len(errs) != 0 {
		return errs
	}
	if errs := listtype.ValidateListSetsAndMaps(nil, v.Structural, obj); len(errs) != 0 {
		return errs
	}
	errs, _ := v.cel.Validate(context.Background(), nil, v.Structural, obj, old, celconfig.RuntimeCELCostBudget)
	return errs
}

// unknown removes the fields that the schema does not have, and names them.
func (v Validator) unknown(obj map[string]any) (errs field.ErrorList) {
	paths := pruning.PruneWithOptions(obj, v.Structural, true,
		schema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range paths {
		errs = append(errs, field.Forbidden(field.NewPath(path), "unknown field"))
	}
	return errs
}

// Integers makes integers of the float64 that encoding/json decodes to, as the API
// server's decoder does.
func Integers(v any) any {
	switch v := v.(type) {
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	case map[string]any:
		for k := range v {
			v[k] = Integers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = Integers(v[i])
		}
	}
	return v
}

// root is the module's root, as seen from the directory of a test.
func root(t testing.TB) string {
	t.Helper()
	for dir := "."; len(dir) < 100; dir = filepath.Join("..", dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
	}
	t.Fatal("no go.mod above the test")
	return ""
}
