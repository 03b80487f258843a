package expression

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
)

const (
	// WatchKeyField is the field that errors name, below spec.watch.resources[i].
	WatchKeyField = "key"
	// MaxWatchKeys is how many keys one object may map to.
	MaxWatchKeys = 64

	maxWatchKeyTime  = time.Second // for one try of one object
	maxWatchKeyTries = 3
)

// WatchKey is a compiled key of spec.watch.resources. It is safe for concurrent use.
type WatchKey struct {
	program *Program
	time    time.Duration
}

// CompileWatchKey compiles a key of spec.watch.resources, which has to yield a string
// or a list of strings. The text must not be "". Its error quotes the compiler.
func CompileWatchKey(text string) (*WatchKey, error) {
	if text == "" {
		return nil, errors.New(WatchKeyField + ": is empty")
	}
	p, err := compile(ofObject, WatchKeyField, text, cel.StringType, cel.ListType(cel.StringType), cel.ListType(cel.DynType))
	if err != nil {
		return nil, err
	}
	return &WatchKey{p, maxWatchKeyTime}, nil
}

var errSlow = errors.New("takes too long for one object: write less")

// Eval returns the keys of an object, without empty ones: none is no error. The keys
// themselves are not checked. The cost limit bounds the work. The time may also pass while
// the process stands still, as in a virtual machine that is moved: so Eval tries again.
func (k *WatchKey) Eval(ctx context.Context, object map[string]any) (keys []string, err error) {
	for range maxWatchKeyTries {
		if keys, err = k.eval(ctx, object); !errors.Is(err, errSlow) {
			break
		}
	}
	return keys, err
}

func (k *WatchKey) eval(ctx context.Context, object map[string]any) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, k.time, errSlow)
	defer cancel()
	out, _, err := k.program.Eval(ctx, object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", WatchKeyField, err)
	}
	list, ok := out.(traits.Lister)
	if !ok {
		return appendKey(nil, out)
	}
	n, _ := list.Size().(types.Int)
	if n > MaxWatchKeys {
		return nil, fmt.Errorf("%s: yields %d keys, more than %d", WatchKeyField, n, MaxWatchKeys)
	}
	keys := make([]string, 0, n)
	for i := range n {
		if keys, err = appendKey(keys, list.Get(i)); err != nil {
			return nil, err
		}
	}
	return keys, nil
}

func appendKey(keys []string, v ref.Val) ([]string, error) {
	s, ok := v.(types.String)
	switch {
	case !ok:
		return nil, fmt.Errorf("%s: yields %s, not a string or a list of strings", WatchKeyField, v.Type().TypeName())
	case s == "":
		return keys, nil
	}
	return append(keys, string(s)), nil
}
