package expression

import (
	"container/list"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/google/cel-go/cel"

	"github.com/reschedule-dev/reschedule/internal/heap"
)

// greedy are expressions that take much once they are compiled, each with a number of its own.
var greedy = map[string]func(n int) string{
	"a list":         func(n int) string { return fmt.Sprintf("%d in [%s1]", n, strings.Repeat("1,", 900)) },
	"texts":          func(n int) string { return fmt.Sprintf("'%d' in [%s'']", n, strings.Repeat("'',", 900)) },
	"sums":           func(n int) string { return fmt.Sprintf("[%s size('%d')] == []", strings.Repeat("1+1,", 240), n) },
	"conditions":     func(n int) string { return fmt.Sprintf("%d == 1 || %strue", n, strings.Repeat("object.a||", 240)) },
	"fields":         func(n int) string { return fmt.Sprintf("object.x%d == object%s", n, strings.Repeat(".a", 90)) },
	"maps":           func(n int) string { return fmt.Sprintf("size({%s'%d': 1}) == 1", manyKeys(300), n) },
	"comprehensions": func(n int) string { return fmt.Sprintf("[%d]", n) + strings.Repeat(".map(x, [x])", 16) + " == []" },
	"a pattern":      func(n int) string { return fmt.Sprintf("'%d'.matches('(x|y){300}')", n) },
	"classes":        func(n int) string { return fmt.Sprintf(`'%d'.matches('\\pL{9}\\pN{9}')`, n) },
	"one long text":  func(n int) string { return fmt.Sprintf("'%d%s' == ''", n, strings.Repeat("x", 4000)) },
	"the least":      func(n int) string { return fmt.Sprintf("%d == 1", n) },
}

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "'%d':1,", i)
	}
	return b.String()
}

func newProgram(t *testing.T, text string) *Program {
	t.Helper()
	p, err := compile(ofObject, "key", text, cel.BoolType)
	if err != nil {
		t.Fatalf("%.60s: %v", text, err)
	}
	return p
}

// use evaluates an expression, which compiles it.
func use(t *testing.T, text string) *WatchKey {
	t.Helper()
	k := &WatchKey{newProgram(t, text), maxWatchKeyTime}
	_, _ = k.Eval(t.Context(), map[string]any{}) // compiled, whatever it yields
	return k
}

// What is counted of a program is no less than what it takes.
func TestPrograms_TakeWhatIsCounted(t *testing.T) {
	// Not in parallel: it reads what the process holds.
	const programs = 20
	newProgram(t, "1 == 1") // what all share is there now
	for name, text := range greedy {
		shelf := cache{most: 1 << 40, of: map[identity]*list.Element{}}
		before := heap.Held()
		for n := range programs {
			p := newProgram(t, text(n))
			if _, err := shelf.get(p.identity, p.compile); err != nil {
				t.Fatal(err)
			}
		}
		held := (heap.Held() - before) / programs
		if counted := shelf.bytes / programs; held > counted || counted > 4*held {
			t.Errorf("%s: a program takes %d bytes, and %d are counted", name, held, counted)
		}
		runtime.KeepAlive(&shelf)
	}
}

// A tenant's thousands of large expressions took gigabytes, for as long as their sources were there.
func TestPrograms_TogetherTakeABoundedAmount(t *testing.T) {
	// Not in parallel: it reads what the process holds.
	before := heap.Held()
	var keys []*WatchKey
	for n := range 250 { // 27 MB
		keys = append(keys, use(t, greedy["conditions"](n)))
	}
	if held := heap.Held() - before; held > MaxBytes {
		t.Errorf("they hold %d MiB", held>>20)
	}
	runtime.KeepAlive(keys)
}
