package expression

import (
	"context"
	"encoding/json"
	"errors"
	"regexp/syntax"
	"strings"
	"testing"
	"time"

	"github.com/google/cel-go/common/types"

	"github.com/reschedule-dev/reschedule/internal/heap"
)

// event is what expressions see of an event with the data.
func event(t testing.TB, data string) map[string]any {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		t.Fatal(err)
	}
	return map[string]any{
		"id": "i", "source": "/s", "type": "t", "subject": "", "namespace": "team-a", "kind": "GitRepo", "name": "site", "data": v,
	}
}

func when(t testing.TB, text string) *Program {
	t.Helper()
	p, err := Compile("", text)
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return p.When
}

// Whole numbers of 64 bits are exact, larger ones are an error. As doubles two ids were one key.
func TestNumbers_WholeOnesAreExact(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"0": "0", "-0": "0", "9007199254740993": "9007199254740993", "-9223372036854775808": "-9223372036854775808",
		"9223372036854775807": "9223372036854775807", "9223372036854775808": "9223372036854775808", "9223372036854775809": "9223372036854775809",
		"18446744073709551614": "18446744073709551614", "18446744073709551615": "18446744073709551615",
		"18446744073709551616": "error: 18446744073709551616 is beyond the whole numbers of 64 bits", "-9223372036854775809": "error: -9223372036854775809 is beyond",
		"1.0": "1", "1e3": "1000", "-0.0": "-0", "9223372036854775808.0": "9.223372036854776e+18", "1E400": "error: 1E400 is not a number",
	} {
		p, err := Compile("string(event.data.id)", "event.data.id == event.data.id && event.data.id <= 18446744073709551615u")
		if err != nil {
			t.Fatal(err)
		}
		e := event(t, `{"id":`+text+`}`)
		for _, program := range []*Program{p.Key, p.When} {
			out, _, err := program.Eval(t.Context(), e)
			says, fails := strings.CutPrefix(want, "error: ")
			switch {
			case fails && (err == nil || !strings.Contains(err.Error(), says)):
				t.Errorf("%s: %v %v, want the error %s", text, out, err, says)
			case !fails && (err != nil || out != types.String(want) && out != types.True):
				t.Errorf("%s: %v %v, want %s", text, out, err, want)
			}
		}
	}
}

// Expressions as in the documentation cost at most 200, so that the limits do not affect ordinary use.
func TestExpression_SensibleOnesAreCheap(t *testing.T) {
	t.Parallel()
	object := event(t, `{"metadata":{"generation":2,"labels":{"app":"x"},"ownerReferences":[{"kind":"A","name":"a"},{"kind":"B","name":"b"}]},
		"spec":{"url":"https://example.com/`+strings.Repeat("x", 200)+`"},"status":{"observedGeneration":1,"conditions":[{"type":"Ready","status":"True"},{"type":"Healthy","status":"False"}]}}`)
	for _, text := range []string{
		"event.kind + '/' + event.namespace + '/' + event.name == 'GitRepo/team-a/site'",
		"event.data.metadata.generation != event.data.status.observedGeneration",
		"event.data.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')",
		"event.type in ['t', 'u', 'v'] && !has(event.data.metadata.deletionTimestamp)",
		"event.data.metadata.ownerReferences.filter(o, o.kind == 'B').map(o, o.name)[0] == 'b'",
		"event.data.spec.url.matches('^https?://[a-z0-9.-]+/.*$') && event.name.matches('^[\\\\pL0-9-]{1,63}$')",
		"event.data.spec == event.data.spec && event.data.status != event.data.metadata",
		"(['a'] + ['b', event.name]).size() == 3 && event.name in (['a'] + ['site'])",
		"{'a': [1, 2], 'b': [event.name]}['b'][0] == 'site'",
		"timestamp('2026-01-02T03:04:05Z') + duration('1h') > timestamp('2026-01-02T03:04:05Z') && b'x' + b'y' == b'xy'",
		"event.kind == 'Website' ? !event.type.endsWith('.update') || !has(event.data.status) || !has(event.data.status.observedGeneration) " +
			"|| event.data.metadata.generation != event.data.status.observedGeneration : has(event.data.metadata) && has(event.data.metadata.ownerReferences) " +
			"&& event.data.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && o.kind == 'Website') || true",
		"(has(event.data.metadata) && has(event.data.metadata.ownerReferences) && event.data.metadata.ownerReferences.exists(o, has(o.controller) && o.controller && o.kind == 'Website') " +
			"? 'Website/' + event.namespace + '/' + event.data.metadata.ownerReferences.filter(o, has(o.controller) && o.controller)[0].name " +
			": event.kind + '/' + event.namespace + '/' + event.name) == 'GitRepo/team-a/site'",
		"'a' + event.name + string(1) + string(2.5) == 'asite12.5'",
	} {
		out, cost, err := when(t, text).Eval(t.Context(), object)
		if err != nil || out != types.True || cost > 200 {
			t.Errorf("%s: %v %v, cost %d", text, out, err, cost)
		}
	}
}

// Matches pattern is bounded before it is compiled.
func TestMatches_PatternIsBoundedFirst(t *testing.T) {
	t.Parallel()
	// A pattern whose program is large is refused without compiling it, and so
	// is one that is not there before an event is.
	for name, text := range map[string]string{
		"repeated":               "event.id.matches('" + strings.Repeat("x{1000}", 500) + "')",
		"repeated in a group":    "event.id.matches('((x{30}){33}y)')",
		"optional, repeated":     "event.id.matches('x{0,1000}')",
		"open, repeated":         "event.id.matches('x{1000,}')",
		"many together":          "event.id.matches('x{600}') || event.id.matches('y{600}')",
		"large classes":          "event.id.matches('" + strings.Repeat(`\\pL`, 800) + "')",
		"as a function":          "matches(event.id, 'x{1000}')",
		"computed":               "event.id.matches(event.data.p)",
		"computed of constants":  "event.id.matches('x' + 'y')",
		"computed by a function": "event.id.matches(string(1))",
		"bound by a macro":       "['x{1000}'].all(p, event.id.matches(p))",
		"computed, as function":  "matches(event.id, event.data.p)",
		"not a pattern":          "event.id.matches('(')",
	} {
		var err error
		n := heap.Allocated(func() { _, err = Compile("", text) })
		if err == nil || !strings.HasPrefix(err.Error(), WhenField+": matches: ") {
			t.Errorf("%s: %v", name, err)
		}
		if n > 64<<20 { // other tests allocate too
			t.Errorf("%s: %d bytes were allocated to refuse it", name, n)
		}
	}
	for _, text := range []string{"event.id.matches('x{400}') || event.id.matches('y{400}')", "matches(event.id, '^a+$')", `event.id.matches('^\\pL{1,9}$')`} {
		if _, err := Compile("", text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// programSize never underestimates a compiled pattern, because the limit depends on it, and overestimates it by little.
func TestMatches_EstimateIsNoLessThanTheProgram(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "a", "abc", "^a$", "a|b|cd", "(a)(b(c))", "a*b+c?", "(a|b)*", "a{3}", "a{2,5}", "a{3,}", "a{0,9}", "(ab{2}){3,4}", "((a{3}){3}){3}",
		"[a-z]", `\pL`, `(?i)straße`, `(?i)[k-s]{2,9}`, ".*", "(?s).", `\bx\B`, "(?:)", "(|a)", "a{0}", "[^a]{1,3}?", "(?P<n>a)+?", "x{1000}",
	} {
		re, err := syntax.Parse(strings.ReplaceAll(text, `\\`, `\`), syntax.Perl)
		if err != nil {
			t.Fatal(err)
		}
		estimate := int(programSize(re))
		prog, err := syntax.Compile(re.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		if n := len(prog.Inst) - 2; estimate < n || estimate > 4*n+20 { // every program has two more
			t.Errorf("%q: estimated %d, compiles to %d", text, estimate, n)
		}
	}
}

// One match is limited by the sizes of pattern and text together, and many matches by MaxCost.
func TestMatches_LongTextMeetsItsBound(t *testing.T) {
	t.Parallel()
	p := when(t, "event.data.matches('(x{30}|y)*z')")
	if _, _, err := p.Eval(t.Context(), event(t, `"`+strings.Repeat("x", 200)+`"`)); err != nil {
		t.Error(err)
	}
	if _, _, err := p.Eval(t.Context(), event(t, `"`+strings.Repeat("x", 250_000)+`"`)); err == nil || !strings.Contains(err.Error(), "too long for the pattern") {
		t.Errorf("%v", err)
	}
	many := when(t, strings.Repeat("event.data.matches('(x{20}|y)*z') || ", 20)+"false")
	if _, cost, err := many.Eval(t.Context(), event(t, `"`+strings.Repeat("x", 100_000)+`"`)); err == nil || cost != MaxCost || !strings.Contains(err.Error(), "cost limit") {
		t.Errorf("cost %d: %v", cost, err)
	}
}

// doubling makes a value of few parts that is endless to look at as a whole.
func doubling(start, step string, n int, end string) string {
	return start + strings.Repeat(step, n) + end
}

// hostile are expressions whose evaluation would take very long, or much
// memory.
var hostile = map[string]string{
	"nested loops":              "event.data.a.all(x, event.data.a.all(y, y == x || true))",
	"a list that doubles":       doubling("[1]", ".map(x, [x, x])", 14, " == [1]"),
	"two lists that double":     doubling("[1]", ".map(x, [x, x])", 8, " == ") + doubling("[1]", ".map(x, [x, x])", 8, ""),
	"shared by every element":   doubling("event.data.a", ".map(x, event.data.a)", 8, ".size() > 0"),
	"a map that doubles":        doubling("[1]", ".map(x, {'a': x, 'b': x})", 14, " == [1]"),
	"sums of lists":             "[event.data.a].all(a, [a + a].all(b, [b + b].all(c, [c + c].all(d, [d + d].all(e, (e + e).size() > 0)))))",
	"sums of sums":              "[[1]].all(a, [a + a].all(b, [b + b].all(c, [c + c].all(d, [d + d].all(e, [e + e].all(f, [f + f].all(g, [g + g].all(h, [h + h].all(i, [i + i].all(j, [j + j].all(k, [k+k].all(l, [l+l].all(m, [m+m].all(n, [n+n].all(o, [o+o].all(p, (p+p).size() > 0))))))))))))))))",
	"texts that double":         "[event.data.s].all(a, [a + a].all(b, [b + b].all(c, [c + c].all(d, [d + d].all(e, [e + e].all(f, [f + f].all(g, (g + g).size() > 0)))))))",
	"the same text many times":  "(" + strings.Repeat("event.data.s + ", 200) + "'').size() > 0",
	"many texts":                "event.data.a.map(x, event.data.s + string(x)).size() > 0",
	"bytes of a text":           "event.data.a.map(x, bytes(event.data.s)).size() > 0",
	"comparing much":            strings.Repeat("event.data == event.data && ", 100) + "true",
	"comparing much in a list":  "[" + strings.Repeat("event.data,", 300) + "1] == [" + strings.Repeat("event.data,", 300) + "1]",
	"looking for much":          "event.data.a.all(x, !(event.data in [event.data.a, event.data.a]))",
	"an error that quotes much": "event.data.a.map(x, event.data.s)[dyn(event.data.a.map(x, event.data.s))]",
	"a key that is a list":      "event[dyn([event.data.a, event.data.a, event.data.s, event.data.s])] == 1",
	"sizes of a text":           "event.data.a.all(x, event.data.a.all(y, event.data.s.size() > 0))",
	"keys of a map":             "event.data.a.all(x, event.data.m.exists(k, true))",
	"parsing much":              "event.data.a.all(x, event.data.a.all(y, duration(event.data.d) > duration('1s') || true))",
	"time zones":                "event.data.a.all(x, event.data.a.all(y, timestamp('2026-01-02T03:04:05Z').getHours(event.data.z) > 100 || true))",
	"searching much":            "event.data.a.all(x, event.data.a.all(y, !event.data.s.contains(event.data.s + 'x')))",
	"matching much":             "event.data.a.all(x, event.data.a.all(y, !event.data.s.matches('(x{3}|y)*z')))",
}

func hostileEvent(t testing.TB) map[string]any {
	var list, object []string
	for i := range 2000 {
		list = append(list, "1")
		b, _ := json.Marshal("k" + strings.Repeat("x", i%7) + string(rune('a'+i%26)) + time.Duration(i).String())
		object = append(object, string(b)+":1")
	}
	return event(t, `{"a":[`+strings.Join(list, ",")+`],"m":{`+strings.Join(object, ",")+`},"s":"`+strings.Repeat("x", 200_000)+
		`","d":"`+strings.Repeat("1h", 20_000)+`","z":"Europe/Berlin"}`)
}

// maxAllocated bounds what one evaluation, and one compilation, may allocate;
// most of it is garbage at once.
const maxAllocated = 256 << 20

// frugal fails when f allocates too much or does not end. The bounds are far
// above what is usual, so that a busy machine does not matter.
func frugal(t testing.TB, name string, f func()) {
	t.Helper()
	allocated := heap.Allocated(func() {
		done := make(chan struct{})
		go func() {
			defer close(done)
			f()
		}()
		select {
		case <-done:
		case <-time.After(time.Minute):
			t.Fatalf("%s: does not end", name)
		}
	})
	if allocated > maxAllocated {
		t.Errorf("%s: allocated %d MiB", name, allocated>>20)
	}
}

// An evaluation ends in bounded time and memory, whatever a tenant writes and sends, and its error is short.
func TestHostileExpressions_EndInTimeAndMemory(t *testing.T) {
	// Not in parallel: it reads what the process allocates. Whatever a tenant
	// writes and sends, one evaluation ends, by its cost or by its context.
	e := hostileEvent(t)
	for name, text := range hostile {
		frugal(t, name, func() {
			p, err := Compile("", text)
			if err != nil {
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, _, err = p.When.Eval(ctx, e)
			if err != nil && len(err.Error()) > 2*maxQuoted {
				t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
			}
		})
	}
}

// At most maxComprehensions macros are accepted, because the time to check nested types grows exponentially.
func TestExpression_TypesThatDoubleAreRefused(t *testing.T) {
	// Not in parallel, as above. The time to check types grows exponentially
	// with nested macros, so there is a bound on these.
	frugal(t, "types", func() {
		if _, err := Compile("", doubling("[1]", ".map(x, {x: x})", 30, ".size() > 0")); err == nil || !strings.Contains(err.Error(), "the key of a map is computed") {
			t.Error(err)
		}
		for n, refused := range map[int]bool{maxComprehensions: false, maxComprehensions + 1: true, 100: true} {
			_, err := Compile("", doubling("[1]", ".map(x, {'a': x, 'b': [x]})", n, ".size() > 0"))
			if (err != nil) != refused {
				t.Errorf("%d macros: %v", n, err)
			}
		}
	})
}

// An expression has at most maxNodes parts, because the memory that it keeps grows with them.
func TestExpression_PartsAreBounded(t *testing.T) {
	t.Parallel()
	for n, refused := range map[int]bool{maxNodes - 10: false, maxNodes: true} {
		if _, err := Compile("", "1 in ["+strings.Repeat("1,", n)+"1]"); (err != nil) != refused {
			t.Errorf("%d elements: %v", n, err)
		}
	}
}

// The error of an expression begins with its field and is short, although the compiler quotes a line for each mistake.
func TestCompile_ErrorIsShort(t *testing.T) {
	t.Parallel()
	_, err := Compile("", strings.Repeat("nope || ", 400)+"true")
	if err == nil || len(err.Error()) > maxQuoted+100 || !strings.HasPrefix(err.Error(), WhenField) {
		t.Errorf("%d bytes: %v", len(err.Error()), err)
	}
}

// An evaluation whose context has ended returns the cause, also where the expression would ignore an error.
func TestEval_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	p := when(t, "event.data.a.all(x, event.data.a.all(y, y == x || true)) || true")
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the client hung up")
	cancel(gone)
	if out, _, err := p.Eval(ctx, hostileEvent(t)); !errors.Is(err, gone) || out != nil {
		t.Errorf("%v %v", out, err)
	}
}

// Below each limit an expression is evaluated, and above it the error names the limit.
func TestEval_LimitsAreCrossed(t *testing.T) {
	t.Parallel()
	numbers := func(n int) string { return "[" + strings.Repeat("1,", n-1) + "1]" }
	for name, tt := range map[string]struct {
		text, data string
		say        string
	}{
		"comparing":                 {"event.data == event.data", numbers(maxWeight/2 - 1), ""},
		"comparing too much":        {"event.data == event.data", numbers(maxWeight / 2), "more than 16384 parts"},
		"a list in a list":          {"[event.data].size() == 1", numbers(maxWeight - 2), ""},
		"a longer list in a list":   {"[event.data].size() == 1", numbers(maxWeight), "more than 16384 parts"},
		"a text in a list":          {"[event.data].size() == 1", `"` + strings.Repeat("x", 200_000) + `"`, ""},
		"a sum of lists":            {"(event.data + event.data).size() > 0", numbers(maxWeight / 2), ""},
		"a sum of longer lists":     {"(event.data + event.data).size() > 0", numbers(maxWeight/2 + 1), "more than 16384 parts"},
		"a list and a number":       {"(event.data + 1) == 1", numbers(2), "no such overload"},
		"a number in a number":      {"event.data[0] in dyn(1)", numbers(2), "no such overload"},
		"a number has no pattern":   {"dyn(event.data).matches('x')", numbers(2), "no such overload"},
		"a loop":                    {"event.data.all(x, x == 1)", numbers(5000), ""},
		"a longer loop":             {"event.data.all(x, x == 1 && x == 1 && x == 1)", numbers(16000), "cost limit"},
		"what map and filter make":  {"event.data.map(x, x).filter(x, x == 1).size() > 0", numbers(2000), ""},
		"large elements of a map":   {"event.data.map(x, [event.data, event.data]).size() > 0", numbers(1000), "more than 16384 parts"},
		"a number that CEL has not": {"event.data[0] == 1", "[1e999]", "is not a number"},
	} {
		_, _, err := when(t, tt.text).Eval(t.Context(), event(t, tt.data))
		if (err == nil) != (tt.say == "") || err != nil && !strings.Contains(err.Error(), tt.say) {
			t.Errorf("%s: %v, want %q", name, err, tt.say)
		}
	}
}

// Any expression is compiled and evaluated in bounded time and memory, and costs at most MaxCost.
func FuzzExpression(f *testing.F) {
	for _, text := range hostile {
		f.Add(text)
	}
	for _, text := range []string{
		"event.id.matches('x{1000}')", "event.kind + '/' + event.name == ''", "has(event.data.a) ? event.data.a[0] == 1 : false",
		"event.data.a.exists_one(x, x == 1u) || event.data.a[event.data.a] == null", "{event.data.s: event.data}.map(k, k) == [type(1)]",
	} {
		f.Add(text)
	}
	e := hostileEvent(f)
	f.Fuzz(func(t *testing.T, text string) {
		frugal(t, text, func() {
			p, err := Compile("", text)
			if err != nil || p.When == nil {
				return
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, cost, _ := p.When.Eval(ctx, e); cost > MaxCost {
				t.Errorf("cost %d", cost)
			}
		})
	})
}
