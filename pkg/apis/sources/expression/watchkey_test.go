package expression

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// website is what expressions see of an object.
func website() map[string]any {
	return map[string]any{"apiVersion": "v1", "kind": "Secret", "metadata": map[string]any{
		"namespace": "ops", "name": "s", "labels": map[string]any{"website": "shop"},
		"ownerReferences": []any{map[string]any{"kind": "A", "name": "a"}, map[string]any{"kind": "B", "name": "b"}},
	}}
}

// An object maps to the string or the strings that the expression yields.
func TestWatchKey_Yields(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		text string
		keys []string
		says string
	}{
		{"'Website/' + object.metadata.namespace + '/' + object.metadata.labels['website']", []string{"Website/ops/shop"}, ""},
		{"object.metadata.ownerReferences.map(o, o.kind + '//' + o.name)", []string{"A//a", "B//b"}, ""},
		{"['a', '', 'b']", []string{"a", "b"}, ""},
		{"''", nil, ""},
		{"[]", nil, ""},
		{"has(object.metadata.annotations) ? 'x' : ''", nil, ""},
		{"object.metadata.name", []string{"s"}, ""},
		{"object.metadata.labels['app']", nil, "key: evaluation: no such key: app"},
		{"object.metadata.labels", nil, "key: yields map, not a string or a list of strings"},
		{"[object.metadata.labels]", nil, "key: yields map, not a string"},
		{"object.metadata.name.matches('^s$') ? 'Kind/' + object.metadata.name : ''", []string{"Kind/s"}, ""},
		{"[1,2,3,4,5,6,7,8,9].map(a, ['1','2','3','4','5','6','7','8','9'].map(b, b))[0].map(c, c) + " + strings.Repeat("['x','y','z','u','v','w','q','r']+", 8) + "[]", nil, "key: yields 73 keys, more than 64"},
	} {
		k, err := CompileWatchKey(test.text)
		if err != nil {
			t.Errorf("%s: %v", test.text, err)
			continue
		}
		keys, err := k.Eval(t.Context(), website())
		if test.says != "" {
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%s: %v %v, want %q", test.text, keys, err, test.says)
			}
			continue
		}
		if diff := cmp.Diff(test.keys, keys, cmpopts.EquateEmpty()); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", test.text, err, diff)
		}
	}
}

// An expression that cannot yield keys does not compile, and the verdict is the same
// when it is asked for again.
func TestWatchKey_RefusesAtCompileTime(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"":                                       "key: is empty",
		"1":                                      "key: yields int, not string",
		"[1]":                                    "key: yields list(int), not string",
		"event.name":                             "undeclared reference to 'event'",
		"object.":                                "Syntax error",
		"'" + strings.Repeat("a", 4097) + "'":    "exceeds limit",
		"object.metadata.name.matches(object.x)": "pattern is computed",
	} {
		_, err := CompileWatchKey(text)
		if err == nil || !strings.HasPrefix(err.Error(), "key: ") || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40s: %v, want %q", text, err, says)
		}
		for range 2 {
			if checked := CheckWatchKey(text); text != "" && (checked == nil || checked.Error() != err.Error()) {
				t.Errorf("%.40s: checked: %v", text, checked)
			}
		}
	}
	if err := CheckWatchKey("'x'"); err != nil {
		t.Error(err)
	}
	if err := Check("'x'", ""); err != nil {
		t.Error(err)
	}
	if CheckWatchKey("event.id") == nil || Check("object.kind", "") == nil {
		t.Error("the two kinds of expressions see each other's variable")
	}
}

// An evaluation is bounded in cost and in time.
func TestWatchKey_IsBounded(t *testing.T) {
	t.Parallel()
	costly, err := CompileWatchKey("object.l.map(a, object.l.map(b, object.l.map(c, 'x'))).size() > 0 ? 'x' : ''")
	if err != nil {
		t.Fatal(err)
	}
	object := map[string]any{"l": make([]any, 1000)}
	if _, err := costly.Eval(t.Context(), object); err == nil || !strings.Contains(err.Error(), "cost limit exceeded") {
		t.Errorf("a costly one: %v", err)
	}
	costly.time = 0
	if _, err := costly.Eval(t.Context(), object); !errors.Is(err, errSlow) {
		t.Errorf("a slow one: %v", err)
	}
}

// frozen is a list during whose reading the process stands still, so many times.
type frozen struct {
	traits.Lister
	times *int
}

func (f frozen) Iterator() traits.Iterator {
	if *f.times > 0 {
		*f.times--
		time.Sleep(2 * maxWatchKeyTime)
	}
	return f.Lister.Iterator()
}

// A process that stands still while it evaluates, as in a virtual machine that is moved, loses no change.
func TestWatchKey_ProcessStandsStill(t *testing.T) {
	t.Parallel()
	k, err := CompileWatchKey("object.l.filter(c, c == 'x')")
	if err != nil {
		t.Fatal(err)
	}
	list := types.NewStringList(types.DefaultTypeAdapter, []string{"x", "y"})
	for _, times := range []int{0, 1, 2, 3} {
		synctest.Test(t, func(t *testing.T) {
			left := times
			keys, err := k.Eval(t.Context(), map[string]any{"l": frozen{list, &left}})
			if times < maxWatchKeyTries && (err != nil || len(keys) != 1) || times == maxWatchKeyTries && !errors.Is(err, errSlow) {
				t.Errorf("%d times: %q, %v", times, keys, err)
			}
		})
	}
}
