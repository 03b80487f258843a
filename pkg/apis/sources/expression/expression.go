// Package expression compiles the CEL expressions of spec.ingest.
//
// It guarantees that the controller and the adapter agree on what compiles:
// both compile here, in one environment. An expression sees one variable,
// event, a map; its length, depth and cost are bounded.
//
// It leaves to others: what is in an event, and what becomes of the value
// (ingest), and where to say that an expression does not compile (the
// controller, in a condition).
package expression

import (
	"encoding/json"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
)

// Bounds of an expression. The cost limit is the one of a whole CEL rule in a
// Kubernetes CRD, far above any sensible key and worth well under a second.
const (
	MaxLength = 4096 // code points
	maxCost   = 1_000_000
)

// Fields of the spec that errors name.
const (
	KeyField  = "spec.ingest.key"
	WhenField = "spec.ingest.when"
)

// Programs are compiled expressions; nil for one that is "". They are safe for
// concurrent use.
type Programs struct{ Key, When cel.Program }

// Compile compiles spec.ingest.key, which has to yield a string, and
// spec.ingest.when, a bool. Its error quotes the compiler and names the field
// at fault.
func Compile(key, when string) (Programs, error) {
	var p Programs
	var err error
	if p.Key, err = compile(KeyField, key, cel.StringType); err != nil {
		return Programs{}, err
	}
	if p.When, err = compile(WhenField, when, cel.BoolType); err != nil {
		return Programs{}, err
	}
	return p, nil
}

var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("event", cel.MapType(cel.StringType, cel.DynType)),
		cel.CustomTypeAdapter(adapter{types.DefaultTypeAdapter}),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(MaxLength),
		cel.ParserRecursionLimit(100),
	)
})

func compile(field, text string, want *cel.Type) (cel.Program, error) {
	if text == "" {
		return nil, nil
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("expression: setting up CEL: %w", err)
	}
	ast, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	if got := ast.OutputType(); !got.IsExactType(want) && !got.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("%s: yields %s, not %s", field, got, want)
	}
	program, err := env.Program(ast, cel.EvalOptions(cel.OptOptimize), cel.CostLimit(maxCost))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", field, err)
	}
	return program, nil
}

// adapter gives JSON numbers their CEL type when an expression looks at them.
type adapter struct{ types.Adapter }

func (a adapter) NativeToValue(value any) ref.Val {
	switch v := value.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return types.Int(n)
		}
		f, err := v.Float64()
		if err != nil {
			return types.NewErr("%.64s is not a number that CEL has", v)
		}
		return types.Double(f)
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return types.NewDynamicList(a, v)
	}
	return a.Adapter.NativeToValue(value)
}
