package expression

import (
	"fmt"
	"regexp"
	"regexp/syntax"

	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

const (
	equals, notEquals, in, add = operators.Equals, operators.NotEquals, operators.In, operators.Add

	// maxWeight bounds every value that an expression makes or compares: its
	// parts, of which 64 bytes of text are one. Without a bound a list that
	// holds another one twice, again and again, makes one comparison endless.
	maxWeight   = 16 << 10
	bytesOfPart = 64
	// maxSteps bounds one match: the instructions of the pattern times the bytes
	// of the text.
	maxSteps = 4 << 20
)

// bounded replaces the functions whose cost CEL does not see.
func bounded(i interpreter.Interpretable) (interpreter.Interpretable, error) {
	switch i := i.(type) {
	case interpreter.InterpretableConst:
	case interpreter.InterpretableConstructor:
		return &constructor{i}, nil
	case interpreter.InterpretableCall:
		var function func(...ref.Val) ref.Val
		switch i.Function() {
		case equals:
			function = weighed(types.Equal)
		case notEquals:
			function = weighed(func(a, b ref.Val) ref.Val { return types.Bool(types.Equal(a, b) != types.True) })
		case in:
			function = weighed(contains)
		case add:
			function = func(v ...ref.Val) ref.Val { return sum(v[0], v[1]) }
		case matches:
			var err error
			if function, err = matcher(i); err != nil {
				return nil, err
			}
		default:
			return i, nil
		}
		return interpreter.NewCall(i.ID(), i.Function(), i.OverloadID(), i.Args(), function), nil
	}
	return i, nil
}

var errTooLarge = types.NewErr("a value has more than %d parts", maxWeight)

func weighed(f func(a, b ref.Val) ref.Val) func(...ref.Val) ref.Val {
	return func(v ...ref.Val) ref.Val {
		if weigh(v...) > maxWeight {
			return errTooLarge
		}
		return f(v[0], v[1])
	}
}

func contains(element, container ref.Val) ref.Val {
	if c, ok := container.(traits.Container); ok {
		return c.Contains(element)
	}
	return types.MaybeNoSuchOverloadErr(container)
}

// constructor weighs the list or map that an expression writes down, also each
// element that map and filter add.
type constructor struct {
	interpreter.InterpretableConstructor
}

func (c *constructor) Eval(a interpreter.Activation) ref.Val {
	if stop, found := a.ResolveName("#interrupted"); found && stop == true {
		return types.NewErr("operation interrupted")
	}
	v := c.InterpretableConstructor.Eval(a)
	if weigh(v) > maxWeight {
		return errTooLarge
	}
	return v
}

// sum adds as CEL does. Lists are copied: CEL's own sum of lists is a tree of
// them, whose size takes as long to find as it has leaves.
func sum(a, b ref.Val) ref.Val {
	left, ok := a.(traits.Adder)
	if !ok {
		return types.MaybeNoSuchOverloadErr(a)
	}
	la, ok := a.(traits.Lister)
	if !ok {
		return left.Add(b)
	}
	lb, ok := b.(traits.Lister)
	if !ok {
		return types.MaybeNoSuchOverloadErr(b)
	}
	// The larger the list, the smaller what may be added: it grows element by element.
	n, m := length(la), length(lb)
	if (n+m)*max(weigh(lb)-m, 1) > maxWeight {
		return errTooLarge
	}
	if mutable, ok := a.(traits.MutableLister); ok {
		return mutable.Add(b)
	}
	all := make([]ref.Val, 0, n+m)
	for _, l := range [...]traits.Lister{la, lb} {
		for i := range l.Size().(types.Int) {
			all = append(all, l.Get(i))
		}
	}
	return types.DefaultTypeAdapter.NativeToValue(all)
}

// length is what size says, in bytes for text.
func length(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	case traits.Sizer:
		n, _ := v.Size().(types.Int)
		return int(n)
	}
	return 1
}

// weigh counts the parts of values, until there are too many.
func weigh(values ...ref.Val) int {
	n := 0
	for _, v := range values {
		if n += weighOne(v, maxWeight-n); n > maxWeight {
			break
		}
	}
	return n
}

// weighOne stops above most.
func weighOne(v ref.Val, most int) int {
	n := 1
	switch v := v.(type) {
	case types.String:
		n += len(v) / bytesOfPart
	case types.Bytes:
		n += len(v) / bytesOfPart
	case traits.Lister:
		for it := v.Iterator(); n <= most && it.HasNext() == types.True; {
			n += weighOne(it.Next(), most-n)
		}
	case traits.Mapper:
		if size := length(v); size > most {
			return size
		}
		for it := v.Iterator(); n <= most && it.HasNext() == types.True; {
			key := it.Next()
			n += weighOne(key, most-n)
			if value, found := v.Find(key); found {
				n += weighOne(value, most-n)
			}
		}
	}
	return n
}

// matcher compiles the pattern of a call of matches, which check has bounded.
func matcher(call interpreter.InterpretableCall) (func(...ref.Val) ref.Val, error) {
	args := call.Args()
	pattern, ok := args[len(args)-1].(interpreter.InterpretableConst)
	if !ok {
		return nil, errComputed
	}
	text, _ := pattern.Value().(types.String)
	re, err := regexp.Compile(string(text))
	if err != nil {
		return nil, fmt.Errorf("matches: %w", err)
	}
	tree, err := syntax.Parse(string(text), syntax.Perl)
	if err != nil {
		return nil, fmt.Errorf("matches: %w", err)
	}
	size := int(programSize(tree))
	return func(v ...ref.Val) ref.Val {
		s, ok := v[0].(types.String)
		switch {
		case !ok:
			return types.MaybeNoSuchOverloadErr(v[0])
		case len(s)*size > maxSteps:
			return types.NewErr("matches: a text of %d bytes is too long for the pattern %.64q", len(s), string(text))
		}
		return types.Bool(re.MatchString(string(s)))
	}, nil
}
