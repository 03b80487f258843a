// Package expression compiles and evaluates the CEL expressions of spec.ingest and
// spec.watch.
//
// It guarantees that the controller and the adapter accept the same expressions:
// both compile them here, in one environment. The cost of an expression is
// bounded for every author and every event or object: the length of the text, its nodes
// and comprehensions, the program of its regular expressions, the steps of one
// evaluation, and the size of each value. An evaluation ends with its context.
//
// How it works: bounds on the text are checked on the parsed expression, before
// the types are checked, because the time of the type check and the size of a
// compiled pattern can grow exponentially with the text (limits.go). CEL counts
// the steps of an evaluation, but not the cost of one step. So comparing, adding
// lists and matching are replaced by functions that check the size of their
// operands first (bounded.go).
//
// It leaves to others: decoding events and objects, the number of evaluations and the
// use of the value (ingest, watch), and reporting an expression that does not compile (the
// controller, in a condition).
package expression

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/interpreter"
)

// Bounds of an expression.
const (
	MaxLength = 4096 // code points
	// MaxCost bounds the cost of one evaluation in CEL's units: about ten thousand
	// steps. The expressions in the documentation cost less than 50.
	MaxCost = 100_000
)

// Fields of the spec that errors name.
const (
	KeyField  = "spec.ingest.key"
	WhenField = "spec.ingest.when"
)

// Programs are compiled expressions; nil for one that is "". They are safe for
// concurrent use.
type Programs struct{ Key, When *Program }

// Program is one expression that compiles. Its compiled form is held while it is used.
type Program struct {
	identity
	scope scope
}

// Compile compiles spec.ingest.key, which has to yield a string, and
// spec.ingest.when, a bool. Its error quotes the compiler and names the field
// at fault.
func Compile(key, when string) (Programs, error) {
	var p Programs
	var err error
	if p.Key, err = compile(ofEvent, KeyField, key, cel.StringType); err != nil {
		return Programs{}, err
	}
	if p.When, err = compile(ofEvent, WhenField, when, cel.BoolType); err != nil {
		return Programs{}, err
	}
	return p, nil
}

// scope is what an expression is about: the one variable that it sees.
type scope struct {
	variable    string
	environment func() (*cel.Env, error)
}

func newScope(variable string) scope {
	return scope{variable, sync.OnceValues(func() (*cel.Env, error) { return newEnvironment(variable) })}
}

var ofEvent, ofObject = newScope("event"), newScope("object")

func newEnvironment(variable string) (*cel.Env, error) {
	return cel.NewEnv(
		cel.Variable(variable, cel.MapType(cel.StringType, cel.DynType)),
		cel.CustomTypeAdapter(adapter{types.DefaultTypeAdapter}),
		cel.CrossTypeNumericComparisons(true),
		cel.DefaultUTCTimeZone(true),
		cel.ParserExpressionSizeLimit(MaxLength),
		cel.ParserRecursionLimit(100),
	)
}

// compile checks that a text compiles, and yields one of the wanted types or a type that only
// the evaluation knows.
func compile(s scope, field, text string, want ...*cel.Type) (*Program, error) {
	if text == "" {
		return nil, nil
	}
	p := &Program{identity{s.variable, text}, s}
	made, err := p.compile()
	if err != nil {
		return nil, quoted(field, err)
	}
	if !slices.ContainsFunc(append(want, cel.DynType), made.yields.IsExactType) {
		return nil, fmt.Errorf("%s: yields %s, not %s", field, made.yields, want[0])
	}
	return p, nil
}

func (p *Program) compile() (*program, error) {
	env, err := p.scope.environment()
	if err != nil {
		return nil, fmt.Errorf("setting up CEL: %w", err)
	}
	parsed, issues := env.Parse(p.text)
	if err := issues.Err(); err != nil {
		return nil, err
	}
	patterns, nodes, err := check(parsed.NativeRep().Expr())
	if err != nil {
		return nil, err
	}
	ast, issues := env.Check(parsed)
	if err := issues.Err(); err != nil {
		return nil, err
	}
	made, err := env.Program(ast, cel.CustomDecorator(bounded), cel.CostTracking(patterns), cel.CostLimit(MaxCost), cel.InterruptCheckFrequency(1))
	if err != nil {
		return nil, err
	}
	bytes := bytesOfProgram + int64(len(p.text)) + bytesOfNode*int64(nodes)
	for _, size := range patterns {
		bytes += bytesOfInstruction * int64(size)
	}
	return &program{made, p.identity, ast.OutputType(), bytes}, nil
}

// maxQuoted bounds the text of an error: the compiler quotes the line of each
// of up to a hundred errors, and an evaluation the values at fault.
const maxQuoted = 1024

func quoted(field string, err error) error {
	text := err.Error()
	if len(text) > maxQuoted {
		text = fmt.Sprintf("%.*s…", maxQuoted, text)
	}
	return fmt.Errorf("%s: %s", field, text)
}

var errValue = errors.New("no value")

// Eval evaluates the expression for an event or an object and says what that cost. Its
// error is the error of ctx where ctx ended the evaluation.
func (p *Program) Eval(ctx context.Context, value map[string]any) (out ref.Val, cost uint64, err error) {
	program, err := compiled.get(p.identity, p.compile)
	if err != nil {
		return nil, 0, quoted("compilation", err)
	}
	out, details, err := program.ContextEval(ctx, map[string]any{p.variable: value})
	cost = MaxCost
	if details != nil && details.ActualCost() != nil {
		cost = min(*details.ActualCost(), MaxCost)
	}
	var cancelled interpreter.EvalCancelledError
	switch {
	case ctx.Err() != nil: // whatever came of what was cut off
		return nil, cost, context.Cause(ctx)
	case errors.As(err, &cancelled):
		return nil, MaxCost, err
	case err != nil:
		return nil, cost, quoted("evaluation", err)
	case out == nil:
		return nil, cost, errValue
	}
	return out, cost, nil
}

// adapter gives JSON numbers their CEL type when an expression reads them.
type adapter struct{ types.Adapter }

func (a adapter) NativeToValue(value any) ref.Val {
	switch v := value.(type) {
	case json.Number:
		return number(string(v))
	case map[string]any:
		return types.NewStringInterfaceMap(a, v)
	case []any:
		return types.NewDynamicList(a, v)
	}
	return a.Adapter.NativeToValue(value)
}

// number is the value of a JSON number. A whole number is exact or an error: as a double, ids of 64 bits would be
// equal to their neighbours. 1.0 and 1e3 are doubles: JSON writes them as numbers with a fraction or an exponent.
func number(text string) ref.Val {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return types.Int(n)
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return types.Uint(n)
	}
	f, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil:
		return types.NewErr("%.64s is not a number that CEL has", text)
	case !strings.ContainsAny(text, ".eE"):
		return types.NewErr("%.64s is beyond the whole numbers of 64 bits", text)
	}
	return types.Double(f)
}
