package ingest

import (
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// Bounds of an expression. The cost limit is the one of a whole CEL rule in a
// Kubernetes CRD, far above any sensible key and worth well under a second.
const (
	maxExpression = 4096 // code points
	maxCost       = 1_000_000
)

// Fields of the spec that errors name.
const (
	keyField  = "spec.ingest.key"
	whenField = "spec.ingest.when"
)

// Rules are a source's ingest settings, compiled. They are safe for
// concurrent use.
type Rules struct {
	key, when cel.Program // nil: none
}

// Compile compiles the source's expressions. Its error quotes the compiler and
// names the field at fault.
func Compile(src *schedule.Source) (*Rules, error) {
	r := &Rules{}
	var err error
	if r.key, err = compile(keyField, src.IngestKey, cel.StringType); err != nil {
		return nil, err
	}
	if r.when, err = compile(whenField, src.IngestWhen, cel.BoolType); err != nil {
		return nil, err
	}
	return r, nil
}

var environment = sync.OnceValues(func() (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable("event", cel.MapType(cel.StringType, cel.DynType)),
		cel.CustomTypeAdapter(adapter{types.DefaultTypeAdapter}),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(maxExpression),
		cel.ParserRecursionLimit(100),
	)
})

func compile(field, text string, want *cel.Type) (cel.Program, error) {
	if text == "" {
		return nil, nil
	}
	env, err := environment()
	if err != nil {
		return nil, fmt.Errorf("ingest: setting up CEL: %w", err)
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

var errType = errors.New("yields another type")

// evalKey is the key that the expression yields.
func (r *Rules) evalKey(event map[string]any) (string, error) {
	out, _, err := r.key.Eval(map[string]any{"event": event})
	if err != nil {
		return "", err
	}
	s, ok := out.(types.String)
	if !ok {
		return "", fmt.Errorf("%w: %s, not string", errType, out.Type().TypeName())
	}
	return string(s), nil
}

// wanted is what spec.ingest.when says. An error counts as true: an event too
// many is safe, one too few is not.
func (r *Rules) wanted(event map[string]any) bool {
	out, _, err := r.when.Eval(map[string]any{"event": event})
	return err != nil || out != types.False
}
