package expression

import (
	"errors"
	"fmt"
	"regexp/syntax"
	"runtime"
	"sync/atomic"

	"github.com/google/cel-go/common/ast"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

// Bounds of what the text alone decides. An expression of so many nodes is
// some hundred kilobytes when compiled. Computed keys of maps are refused for
// the time to check types: {x: x} has twice the type of x.
const (
	maxNodes          = 1000
	maxComprehensions = 16
	// MaxPattern is the size of the program that the regular patterns of one
	// expression compile to together, in instructions.
	MaxPattern = 1000
)

// patterns are the sizes of the regular patterns of one expression.
type patterns map[string]uint64

// check walks a parsed expression, whose macros are expanded, and counts its nodes.
func check(e ast.Expr) (found patterns, nodes int, err error) {
	c := &checker{patterns: patterns{}}
	ast.PreOrderVisit(e, ast.NewExprVisitor(c.visit))
	return c.patterns, c.nodes, c.err
}

type checker struct {
	nodes, comprehensions int
	size                  uint64
	patterns              patterns
	err                   error
}

func (c *checker) visit(e ast.Expr) {
	c.nodes++
	switch e.Kind() {
	case ast.ComprehensionKind:
		c.comprehensions++
	case ast.MapKind:
		for _, entry := range e.AsMap().Entries() {
			if entry.AsMapEntry().Key().Kind() != ast.LiteralKind {
				c.err = errors.New("the key of a map is computed: write it as a literal")
			}
		}
	case ast.CallKind:
		if call := e.AsCall(); call.FunctionName() == matches && c.err == nil {
			c.err = c.pattern(call.Args())
		}
	default:
	}
	switch {
	case c.err != nil:
	case c.nodes > maxNodes:
		c.err = fmt.Errorf("has more than %d parts: write less", maxNodes)
	case c.comprehensions > maxComprehensions:
		c.err = fmt.Errorf("has more than %d of all, exists, exists_one, map and filter", maxComprehensions)
	}
}

const matches = "matches"

var errComputed = errors.New("matches: the pattern is computed: write it as a string")

// pattern checks the pattern of a call of matches. What else is wrong with the
// call is for the compiler to say.
func (c *checker) pattern(args []ast.Expr) error {
	if len(args) == 0 {
		return nil
	}
	last := args[len(args)-1]
	if last.Kind() != ast.LiteralKind {
		return errComputed
	}
	text, ok := last.AsLiteral().(types.String)
	if !ok {
		return nil
	}
	re, err := syntax.Parse(string(text), syntax.Perl)
	if err != nil {
		return fmt.Errorf("matches: %w", err)
	}
	n := programSize(re)
	if c.size += n; c.size > MaxPattern {
		return fmt.Errorf("matches: the patterns compile to more than %d instructions at %.64q: repeat less", MaxPattern, string(text))
	}
	c.patterns[string(text)] = n
	return nil
}

// programSize is no less than the number of instructions that the pattern
// compiles to, found without compiling it. A class counts its ranges too.
func programSize(re *syntax.Regexp) uint64 {
	n := uint64(0)
	for _, sub := range re.Sub {
		n += programSize(sub)
	}
	switch re.Op {
	case syntax.OpLiteral:
		return uint64(max(len(re.Rune), 1))
	case syntax.OpCharClass:
		return uint64(1 + len(re.Rune)/128)
	case syntax.OpConcat:
		return max(n, 1)
	case syntax.OpAlternate:
		return n + uint64(len(re.Sub))
	case syntax.OpCapture, syntax.OpStar, syntax.OpPlus, syntax.OpQuest:
		return n + 2
	case syntax.OpRepeat: // the parser holds nested ones to 1,000 together
		if re.Max < 0 {
			return uint64(max(re.Min, 1))*n + 2
		}
		return uint64(re.Min)*n + uint64(re.Max-re.Min)*(n+1) + 1
	default:
		return 1
	}
}

// stepsPerCost are the steps of a regular pattern that cost as much as a step
// of CEL.
const stepsPerCost = 64

// An evaluation lets other goroutines go first about every 100 µs: Go's scheduler
// would let it run for 10 ms, and a delivery that is due would wait for as long.
const callsToYield = 256

var calls atomic.Uint32

// CallCost implements interpreter.ActualCostEstimator for what CEL charges by
// the number of elements only, or not at all.
func (p patterns) CallCost(function, _ string, args []ref.Val, result ref.Val) *uint64 {
	if calls.Add(1)%callsToYield == 0 {
		runtime.Gosched()
	}
	cost := uint64(1)
	switch function {
	case equals, notEquals, in, add, matches:
		if types.IsError(result) {
			return &cost // it was not even begun
		}
	}
	switch function {
	case equals, notEquals, in:
		cost += uint64(weigh(args...) / 4)
	case add:
		n := length(args[1])
		if _, ok := args[0].(traits.MutableLister); !ok {
			n += length(args[0])
		}
		cost += uint64(n / 8)
	case matches:
		if pattern, ok := args[len(args)-1].(types.String); ok {
			cost += uint64(length(args[0])) * p[string(pattern)] / stepsPerCost
		}
	default: // size counts the characters of a text, duration parses it
		n := 0
		for _, a := range args {
			switch a.(type) {
			case types.String, types.Bytes:
				n += length(a)
			}
		}
		if n < bytesOfPart {
			return nil
		}
		cost += uint64(n / 8)
	}
	return &cost
}
