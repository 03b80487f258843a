package ingest

import (
	"errors"
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
)

// Rules are a source's ingest settings, compiled. They are safe for
// concurrent use.
type Rules struct {
	key, when cel.Program // nil: none
}

// Compile compiles the source's expressions. Its error quotes the compiler and
// names the field at fault.
func Compile(src *schedule.Source) (*Rules, error) {
	p, err := expression.Compile(src.IngestKey, src.IngestWhen)
	if err != nil {
		return nil, err
	}
	return &Rules{key: p.Key, when: p.When}, nil
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
