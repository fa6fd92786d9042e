package crdtest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	celgo "github.com/google/cel-go/cel"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	apiextcel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apimachinery/pkg/util/version"
	plugin "k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// The oldest Kubernetes whose API server accepts the CRDs and the admission policy. It is in docs/install.md and in the
// chart, and `make oldest-test` runs its first release. An API server accepts in new objects what its predecessor knew,
// too, so that a rollback finds nothing that it does not understand.
const oldestMinor = 32

// The expressions compile with the functions of the oldest API server, and not with those of the
// one before, so that the statement is neither too bold nor too timid.
func TestOldestKubernetes(t *testing.T) {
	if errs := compileAll(t, oldestMinor); len(errs) != 0 {
		t.Errorf("Kubernetes 1.%d does not know:\n%s", oldestMinor, strings.Join(errs, "\n"))
	}
	if errs := compileAll(t, oldestMinor-1); len(errs) == 0 {
		t.Errorf("Kubernetes 1.%d knows all functions: lower oldestMinor", oldestMinor-1)
	}
	for name, want := range map[string]string{
		"docs/install.md":           fmt.Sprintf(`version 1\.%d or later`, oldestMinor),
		"e2e/kube/oldest/go.mod":    fmt.Sprintf(`k8s\.io/kubernetes v1\.%d\.0\n`, oldestMinor),
		"charts/fanfare/Chart.yaml": fmt.Sprintf(`kubeVersion: ">= 1\.%d\.0-0"`, oldestMinor),
	} {
		text, err := os.ReadFile(filepath.Join(root(t), name))
		if err != nil || !regexp.MustCompile(want).Match(text) {
			t.Errorf("%s does not say %s: %v", name, want, err)
		}
	}
}

// compileAll returns what an API server of a version does not compile.
func compileAll(t *testing.T, minor uint) (errs []string) {
	t.Helper()
	known := environment.MustBaseEnvSet(version.MajorMinor(1, minor-1))
	files, err := filepath.Glob(filepath.Join(root(t), "manifests/crds/*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%d CRDs, %v", len(files), err)
	}
	for _, f := range files {
		plural := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "fanfare.io_"), ".yaml")
		errs = append(errs, compileRules(t, plural, Load(t, plural).Structural, known)...)
	}
	return append(errs, compilePolicy(t, known)...)
}

// compileRules compiles the rules of a schema, and of those below it.
func compileRules(t *testing.T, path string, s *schema.Structural, known *environment.EnvSet) (errs []string) {
	t.Helper()
	if len(s.XValidations) > 0 {
		typ := model.SchemaDeclType(s, !strings.Contains(path, ".")) // Only an object itself has metadata.
		results, err := apiextcel.Compile(s, typ, celconfig.PerCallLimit, known, apiextcel.NewExpressionsEnvLoader())
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		for i, r := range results {
			if r.Error != nil {
				errs = append(errs, fmt.Sprintf("%s: %s: %v", path, s.XValidations[i].Rule, r.Error))
			}
		}
	}
	for name := range s.Properties {
		below := s.Properties[name]
		errs = append(errs, compileRules(t, path+"."+name, &below, known)...)
	}
	if s.Items != nil {
		errs = append(errs, compileRules(t, path+"[]", s.Items, known)...)
	}
	if a := s.AdditionalProperties; a != nil && a.Structural != nil {
		errs = append(errs, compileRules(t, path+"[*]", a.Structural, known)...)
	}
	return errs
}

// An expression is one of the admission policy.
type expression struct{ name, text string }

func (e expression) GetName() string            { return e.name }
func (e expression) GetExpression() string      { return e.text }
func (e expression) ReturnTypes() []*celgo.Type { return []*celgo.Type{celgo.AnyType} }

// compilePolicy compiles the expressions of the admission policy.
func compilePolicy(t *testing.T, known *environment.EnvSet) (errs []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root(t), "manifests/admission.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var p admissionv1.ValidatingAdmissionPolicy
	if err := yaml.Unmarshal([]byte(strings.Split(string(text), "\n---\n")[0]), &p); err != nil {
		t.Fatal(err)
	}
	c, err := plugin.NewCompositedCompiler(known)
	if err != nil {
		t.Fatal(err)
	}
	vars := plugin.OptionalVariableDeclarations{HasAuthorizer: true}
	compiled := func(r plugin.CompilationResult) {
		if r.Error != nil {
			errs = append(errs, fmt.Sprintf("%s: %v", r.ExpressionAccessor.GetExpression(), r.Error))
		}
	}
	for _, m := range p.Spec.MatchConditions {
		compiled(c.CompileCELExpression(expression{m.Name, m.Expression}, vars, environment.NewExpressions))
	}
	for _, v := range p.Spec.Variables {
		compiled(c.CompileAndStoreVariable(expression{v.Name, v.Expression}, vars, environment.NewExpressions))
	}
	for _, v := range p.Spec.Validations {
		compiled(c.CompileCELExpression(expression{"", v.Expression}, vars, environment.NewExpressions))
	}
	return errs
}
