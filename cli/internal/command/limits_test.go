package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// A token is renewed before it expires, and when the adapter refuses it: top --watch, a
// drain, an export and an import last longer than a token.
func TestToken_IsRenewed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	s := c.session()
	now := time.Now()
	s.now = func() time.Time { return now }
	src, err := s.open(t.Context(), "web")
	if err != nil {
		t.Fatal(err)
	}
	c.answers["PUT /ops/web/schedules/k"] = `201 {"key":"k","result":"created","revision":1,"state":"waiting","dueAt":"2050-01-01T00:00:00Z"}`
	call := func(tokens int) {
		t.Helper()
		if _, err := src.Counts(t.Context()); err != nil {
			t.Error(err)
		}
		if _, err := src.Schedule(t.Context(), "k", sdk.After(time.Hour)); err != nil {
			t.Error(err)
		}
		if len(c.tokens) != tokens {
			t.Errorf("%d tokens were requested, want %d", len(c.tokens), tokens)
		}
	}
	call(1)
	now = now.Add(7 * time.Minute)
	call(1)
	now = now.Add(2 * time.Minute)
	call(2)
	const refused = `401 {"status":401,"code":"unauthenticated","detail":"expired"}`
	c.once["PUT /ops/web/schedules/k"] = refused
	call(3)
	c.answers["GET /ops/web"] = refused
	if _, err := src.Counts(t.Context()); !errors.Is(err, sdk.ErrUnauthorized) || len(c.tokens) != 4 {
		t.Errorf("a token that is refused for good: %v, %d requests", err, len(c.tokens))
	}
}

// doctor and top end in time however many sources do not answer.
func TestDoctorAndTop_EndInTime(t *testing.T) {
	t.Parallel()
	for command, p := range map[string]struct {
		code int
		says string
	}{
		"doctor": {exitProblem, "no answer came in time"},
		"top":    {exitSome, "20 of 21 sources did not answer"},
	} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			for name := range strings.SplitSeq("abcdefghijklmnopqrst", "") {
				c.source("ops", "z-"+name, nil)
			}
			c.hangs = "/ops/z-"
			begin := time.Now()
			code, out, errs := c.run(false, command, "--timeout", "2s")
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("it took %s", took)
			}
			if code != p.code || !strings.Contains(out+errs, p.says) {
				t.Errorf("%d: %s%s", code, out, errs)
			}
			if code, _, errs := c.run(false, command, "--timeout", "0s"); code != exitUsage || !strings.Contains(errs, "--timeout") {
				t.Errorf("no time at all: %d: %s", code, errs)
			}
		})
	}
}

// fullDevice is an output that takes nothing.
type fullDevice struct{}

func (fullDevice) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

// An answer that cannot be printed is an error, and ends what repeats.
func TestOutput_FullDevice(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"why web", "why web -o json", "why web k", "why nix", "key describe web k", "key describe web --all", "describe web -v", "describe web -o yaml", "top web", "top web --watch", "key watch web", "version", "doctor",
		"key list web", "key list web -o name", "key list web -o jsonpath={.items[0].key}", "token web", "list", "suspend web", "resume --all --yes", "drain web", "create new --sink x", "update web --delay 1s", "apply web --delay 1s",
		"delete web --yes", "key set web k --in 1h", "key run web k", "key delete web k", "key delete web --all --yes", "deadletter list web", "deadletter describe web k", "deadletter redrive web k", "deadletter delete web --all --yes",
		"export web", "ui", "completion bash", "--help", "key",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.answers["GET /ops/web/schedules/k"] = `200 {"key":"k","revision":1,"state":"waiting","dueAt":"2050-01-01T00:00:00Z"}`
			c.answers["GET /ops/web/schedules/k/history"] = `200 {"items":[],"since":"2026-01-01T00:00:00Z"}`
			c.answers["GET /ops/web/schedules"] = `200 {"items":[{"key":"k","revision":1,"state":"waiting","dueAt":"2050-01-01T00:00:00Z"}]}`
			const letter = `{"key":"k","at":"2026-01-01T00:00:00Z","dueAt":"2026-01-01T00:00:00Z","attempts":1,"status":400,"event":{}}`
			c.answers["GET /ops/web/deadletters/k"], c.answers["GET /ops/web/deadletters"] = "200 "+letter, `200 {"items":[`+letter+`],"continue":""}`
			c.answers["POST /ops/web/deadletters/k/redrive"], c.answers["DELETE /ops/web/deadletters/k"] = `200 {"redriven":1}`, "204 "
			c.answers["PUT /ops/web/schedules/k"], c.answers["DELETE /ops/web/schedules/k"] = c.answers["GET /ops/web/schedules/k"], "204 "
			c.answers["POST /ops/web/schedules/k/run"], c.answers["DELETE /ops/web/schedules"] = c.answers["GET /ops/web/schedules/k"], `200 {"deleted":1}`
			c.answers["GET /ops/web/events"] = "200 id: e-1\nevent: started\ndata: {\"key\":\"k\",\"at\":\"2026-01-01T00:00:00Z\"}\n\n"
			var errs strings.Builder
			e := c.program(false, fullDevice{}, &errs)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if code := e.run(ctx, append(strings.Fields(args), "--kubeconfig", c.kubeconfig())); code != exitOther || ctx.Err() != nil || !strings.Contains(errs.String(), "no space left") || strings.Count(errs.String(), "Error:") != 1 {
				t.Errorf("%d: %s", code, &errs)
			}
		})
	}
}

// Flags with few values complete them.
func TestComplete_ValuesOfFlags(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for args, want := range map[string]string{
		"key list --state": "waiting due retrying inflight", "key list --order": "key due", "key set --policy": "replace earliest latest keep fail",
		"import --policy": "replace earliest latest keep fail", "create --conflict-policy": "replace earliest latest keep fail",
		"update --backoff-policy": "linear exponential", "why -o": "json yaml",
	} {
		var out strings.Builder
		if code := c.program(false, &out, io.Discard).run(t.Context(), append(append([]string{"__complete"}, strings.Fields(args)...), "")); code != 0 || !strings.HasPrefix(out.String(), strings.ReplaceAll(want, " ", "\n")+"\n:") {
			t.Errorf("%s: %d, %q", args, code, out.String())
		}
	}
}

// A value that a flag cannot have is refused once, before any call is made: import --policy
// bogus was refused for each key.
func TestFlags_RefusedBeforeAnyCall(t *testing.T) {
	t.Parallel()
	for args, says := range map[string]string{
		"import web -f - --policy bogus":                    `--policy "bogus" is not one of replace, earliest, latest, keep, fail`,
		"import web -f - --policy=":                         `--policy "" is not one of`,
		"import web -f - --spread soon":                     "--spread",
		"key set web k --in 1h --policy bogus":              "--policy",
		"key set web k --in -5m":                            "--in",
		"key set web k --at noon":                           "--at",
		"key set web k --in 1h --expires-at 1":              "--expires-at",
		"key set web k --in 1h --max-interval 1":            "--max-interval",
		"key list web --order bogus":                        "--order",
		"key list web --state bogus":                        "--state",
		"key list web --limit 0":                            "--limit",
		"key list web --overdue=-1m":                        "--overdue",
		"create new --sink x --conflict-policy bogus":       "--conflict-policy",
		"update web --backoff-policy bogus":                 "--backoff-policy",
		"create new --sink x --wait --wait-timeout 0s":      "--wait-timeout",
		"drain web --timeout 0s":                            "--timeout",
		"drain web --timeout -1m":                           "--timeout",
		"token web --lifetime 1m":                           "--lifetime",
		"key list web --request-timeout -1s":                "--request-timeout",
		"deadletter redrive web --all --yes --older-than x": "--older-than",
		"deadletter list web --older-than 7y":               "--older-than",
		"ui --port 70000":                                   "--port",
		"top --interval 0s":                                 "--interval",
		"why":                                               "accepts between 1 and 2 arg(s)",
		"nonsense":                                          "has no command",
		"key nonsense":                                      "has no command",
		"key run web":                                       "give KEY, --prefix or --all",
		"key run web a --all":                               "give KEY, --prefix or --all",
		"key list web -o xml":                               "is not one of wide, json, yaml, name, ndjson, jsonpath=TEMPLATE",
		"key list web -o jsonpath":                          "is not one of wide, json, yaml, name, ndjson, jsonpath=TEMPLATE",
		"key list web -o jsonpath={.items":                  "--output: unclosed action",
		"key set web k":                                     "give --in, --at or --cron",
		"key set web k --in 1h --priority urgent":           "is not one of high, normal, low",
		"key set web k --nonsense":                          "unknown flag",
		"import web":                                        "give -f FILE",
		"import web -f - --resume":                          "--resume needs a file",
		"deadletter delete web a --older-than 1h":           "goes with --prefix or --all",
		"suspend web --server http://127.0.0.1:1":           "suspend needs a cluster",
		"create web --sink x --server http://127.0.0.1:1":   "create needs a cluster",
		"list --server http://127.0.0.1:1":                  "list needs a cluster",
		"update web --suspend --no-suspend":                 "suspend",
		"top --watch --interval -1s":                        "--interval",
	} {
		c := newCluster(t)
		code, out, errs := c.run(false, strings.Fields(args)...)
		if code != exitUsage || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, says) || out != "" || len(c.asked)+len(c.calls) > 0 {
			t.Errorf("%s: %d, %s%s after %q", args, code, out, errs, append(c.calls, c.asked...))
		}
	}
}

// Days are a duration too: 7d.
func TestDuration_Days(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"7d": 7 * 24 * time.Hour, "0d": 0, "P7D": 7 * 24 * time.Hour, "12h": 12 * time.Hour, "1.5d": -1, "d": -1, "-1d": -1, "99999d": -1} {
		if got, err := parseDuration("x", text); err != nil && want >= 0 || err == nil && got != want {
			t.Errorf("%s is %s, %v", text, got, err)
		}
	}
}

// A redrive of many that is interrupted says what was done, and of which one it does not know; the rest is unchanged.
func TestRedrive_Interrupted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var letters []string
	for i := range 6 {
		letters = append(letters, fmt.Sprintf(`{"key":"k%d","at":"2026-01-01T00:00:00Z","dueAt":"2026-01-01T00:00:00Z","attempts":1,"status":400,"event":{}}`, i))
		c.answers[fmt.Sprintf("GET /ops/web/deadletters/k%d", i)] = "200 " + letters[i]
		c.answers[fmt.Sprintf("POST /ops/web/deadletters/k%d/redrive", i)] = `200 {"redriven":1}`
	}
	c.answers["GET /ops/web/deadletters"] = `200 {"items":[` + strings.Join(letters, ",") + `],"continue":""}`
	c.hangs = "/k3/redrive"
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-c.begun
		cancel()
	}()
	var out, errs strings.Builder
	code := c.program(false, &out, &errs).run(ctx, []string{"deadletter", "redrive", "web", "--all", "--yes", "--kubeconfig", c.kubeconfig()})
	if code != exitOther || out.String() != "3 redriven\n" || !strings.Contains(errs.String(), `interrupted: 3 done, 0 failed, of "k3" it is not known, the rest is unchanged`) {
		t.Errorf("%d: %s%s", code, &out, &errs)
	}
	if calls := strings.Join(c.asked, "\n"); strings.Contains(calls, "k4/redrive") {
		t.Errorf("it went on: %s", calls)
	}
}

// A key that changes between the look and the act is a conflict: the act has the revision of the look as a condition.
func TestKeys_ChangedMeanwhile(t *testing.T) {
	t.Parallel()
	for args, call := range map[string]string{
		"key run web k": "POST /ops/web/schedules/k/run", "key delete web k": "DELETE /ops/web/schedules/k", "key set web k --in 0s --if-match 7": "PUT /ops/web/schedules/k",
	} {
		c := newCluster(t)
		c.answers["GET /ops/web/schedules/k"] = `200 {"key":"k","revision":7,"state":"waiting","dueAt":"2050-01-01T00:00:00Z"}`
		c.answers[call] = `412 {"status":412,"code":"precondition_failed","detail":"it has revision 8"}`
		code, out, errs := c.run(false, strings.Fields(args)...)
		if conditional := func(asked string) bool { return strings.HasPrefix(asked, call+" ") && strings.HasSuffix(asked, ` "7"`) }; code != exitConflict || strings.Count(errs, "\n") != 1 || !slices.ContainsFunc(c.asked, conditional) {
			t.Errorf("%s: %d, %s%s after %q", args, code, out, errs, c.asked)
		}
	}
}

// bash puts what completions have in common on the command line without quotes, and runs that line at the next Tab: the
// keys of a tenant that a shell does not take as they are are not completed.
func TestComplete_HostileKeys(t *testing.T) {
	t.Parallel()
	good := []string{"Git/\u00fc@x+y%2F_z.1", "good/one"}
	c := newCluster(t)
	var items []string
	for _, key := range append(good, "$(touch x)a", "`touch x`", ";touch x", "a b", "a\u202eb", "-x", "=x", "${HOME}", "~root", "*", "a!b", "a#b", "a&b", "a|b", "a>x", "'", "\"", "a\\b") {
		name, err := json.Marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		items = append(items, fmt.Sprintf(`{"key":%s,"revision":1,"state":"waiting","dueAt":"2050-01-01T00:00:00Z","at":"2026-01-01T00:00:00Z"}`, name))
	}
	c.answers["GET /ops/web/schedules"] = `200 {"items":[` + strings.Join(items, ",") + `],"continue":""}`
	c.answers["GET /ops/web/deadletters"] = c.answers["GET /ops/web/schedules"]
	for _, group := range []string{"key", "deadletter"} {
		var out strings.Builder
		c.program(false, &out, io.Discard).run(t.Context(), []string{"__complete", "--kubeconfig", c.kubeconfig(), group, "describe", "web", ""})
		if !strings.HasPrefix(out.String(), strings.Join(good, "\n")+"\n:") {
			t.Errorf("%s: offered are %q", group, out.String())
		}
	}
}

// What single commands print and how they end, where the cluster or the adapter is not as it should be.
func TestCommands_SayWhatIsWrong(t *testing.T) {
	t.Parallel()
	const alone = " -n ops --server ADAPTER"
	always := func(*cluster) {}
	refuse := func(call string, status int) func(*cluster) { return func(c *cluster) { c.refuse[call] = status } }
	answer := func(call, text string) func(*cluster) { return func(c *cluster) { c.answers[call] = text } }
	unauthorized := answer("GET /ops/web", `401 {"status":401,"code":"unauthenticated","detail":"not signed by this cluster"}`)
	key := func(c *cluster) {
		for _, of := range []string{"schedules", "deadletters"} {
			c.answers["GET /ops/web/"+of+"/k"] = `200 {"key":"k","revision":1,"state":"waiting","dueAt":"2050-01-01T00:00:00Z","at":"2026-01-01T00:00:00Z"}`
		}
	}
	for _, row := range []struct {
		about string
		stage func(c *cluster)
		args  string // a command, or several with | between them
		code  int
		says  string // all of these parts, with | between them, in the output or the errors
		not   string // none of these
	}{
		{"metrics without an address", always, "why web k" + alone, exitProblem, "or refused by a quota or a full disk|--metrics-server", ""},
		{"metrics with an address", answer("GET /metrics", "200 "+fullDisk), "why web k --metrics-server ADAPTER" + alone, exitProblem, "disk is full", ""},
		{"metrics that are refused", answer("GET /metrics", "503 "), "why web", 0, "not known", ""},
		{"an adapter that does not run", always, "why web -n ops --server http://127.0.0.1:1", exitProblem, "AdapterNotReady", ""},
		{"no API server", func(c *cluster) { c.api.Close() }, "why web|list|doctor|token web", exitUnavailable, "connection refused", ""},
		{"a namespace that ends gets no tokens, whatever rights a user has", func(c *cluster) { c.ending = "ops" }, "why web", exitProblem, "it is being terminated|Unauthenticated", "may not"},
		{"the whole object, clean", func(c *cluster) {
			c.source("ops", "web", func(o map[string]any) { o["metadata"].(map[string]any)["labels"] = map[string]any{"team": "a\u202eb"} })
		}, "describe web -v", 0, "maxInFlight: 7\n|sinkUri: http://sink", "\u202e"},
		{"an object without a token", refuse("POST /token", 404), "describe web", exitNotFound, "Condition Ready:|requesting a token", "Keys:"},
		{"no object", always, "describe nix", exitNotFound, "", "Condition"},
		{"keys that are known", always, "delete web", exitUsage, "Delete 1 source of namespace ops for good, with about 3 keys?", "--dry-run"},
		{"keys that are not known yet", func(c *cluster) {
			c.source("ops", "new", func(o map[string]any) { delete(o["status"].(map[string]any), "pending") })
		}, "delete web new", exitUsage, "Delete 2 sources of namespace ops for good, with at least 3 keys?", "--dry-run"},
		{"all", always, "suspend --all", exitUsage, "Suspend 1 source of namespace ops?", ""},
		{"the only one fails", unauthorized, "top web", exitDenied, "not signed by this cluster", ""},
		{"some of many fail", func(c *cluster) { unauthorized(c); c.source("ops", "ok", nil) }, "top web ok", exitSome, "", ""},
		{"a key that the adapter cannot read", answer("GET /ops/web/schedules/k", `503 {"status":503,"code":"unavailable","detail":"busy"}`), "key set web k --in 1h", exitUnavailable, "busy", ""},
		{"a key that the adapter refuses", answer("PUT /ops/web/schedules/k", `400 {"status":400,"code":"invalid_argument","detail":"too long"}`), "key set web k --in 1h", exitUsage, "too long", ""},
		{"dead letters, without a terminal", answer("GET /ops/web/deadletters", `200 {"items":[{"key":"k","at":"2026-01-01T00:00:00Z","event":{}}],"continue":""}`),
			"deadletter redrive web --all", exitUsage, "Redrive 1 dead letter of", ""},
		{"a shell that is none", always, "completion nosuchshell", exitUsage, "", ""},
		{"absent keys", always, "key run web k --dry-run|key delete web k --dry-run|deadletter redrive web k --dry-run|deadletter delete web k --dry-run", exitNotFound, "", "k (dry run)"},
		{"keys that are there", key, "key run web k --dry-run|key delete web k --dry-run|deadletter redrive web k --dry-run|deadletter delete web k --dry-run", 0, "k (dry run)\n", ""},
		{"a key with a mark that reorders text", func(c *cluster) {
			c.answers["GET /ops/web/schedules/a\u202eb"] = `200 {"key":"a\u202eb","revision":1,"state":"waiting","dueAt":"2050-01-01T00:00:00Z"}`
			c.answers["GET /ops/web/schedules/a\u202eb/history"] = `200 {"items":[],"since":"2026-01-01T00:00:00Z"}`
			c.answers["POST /ops/web/schedules/a\u202eb/run"], c.answers["DELETE /ops/web/schedules/a\u202eb"] = c.answers["GET /ops/web/schedules/a\u202eb"], "204 "
			c.answers["PUT /ops/web/schedules/a\u202eb"] = c.answers["GET /ops/web/schedules/a\u202eb"]
		}, "key set web a\u202eb --in 1h|key describe web a\u202eb|key run web a\u202eb|why web a\u202eb|key delete web a\u202eb", 0, "", "\u202e"},
		{"a drain without a token", refuse("POST /token", 403), "drain web --timeout 1s", exitDenied, "web stays suspended", "-1"},
		{"a drain without an answer", answer("GET /ops/web", `403 {"status":403,"code":"permission_denied","detail":"no"}`), "drain web --timeout 1s", exitDenied, "web stays suspended", "-1"},
		{"a drain that takes too long", func(c *cluster) { c.hangs = "/ops/web" }, "drain web --timeout 1s", exitUnavailable, "web stays suspended", "-1"},
		{"a drain that has not ended in time", answer("GET /ops/web", strings.ReplaceAll("200 "+healthy, `"inFlight":0`, `"inFlight":2`)), "drain web --timeout 1s", exitUnavailable, "2 deliveries", "-1"},
		{"a drain of nothing", always, "drain nix", exitNotFound, "", "suspended"},
	} {
		t.Run(row.about, func(t *testing.T) {
			t.Parallel()
			for args := range strings.SplitSeq(row.args, "|") {
				c := newCluster(t)
				row.stage(c)
				code, out, errs := c.run(false, strings.Fields(strings.ReplaceAll(args, "ADAPTER", c.adapter.URL))...)
				if code != row.code || row.not != "" && strings.Contains(out+errs, row.not) {
					t.Errorf("%s: %d: %s%s", args, code, out, errs)
				}
				for text := range strings.SplitSeq(row.says, "|") {
					if !strings.Contains(out+errs, text) {
						t.Errorf("%s: it does not say %q: %s%s", args, text, out, errs)
					}
				}
			}
		})
	}
}

// doctor asks for the right that the calls need: to a token of the service account, in its own namespace.
func TestDoctor_AccountOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	code, out, errs := c.run(false, "doctor", "--as-service-account", "knative-eventing/reschedule-viewer")
	if want := "knative-eventing/serviceaccounts/token/reschedule-viewer"; code != 0 || !slices.Contains(c.reviews, want) || strings.Contains(fmt.Sprint(c.reviews), "ops/serviceaccounts") {
		t.Errorf("%d: it asked about %q, want %s: %s%s", code, c.reviews, want, out, errs)
	}
}

// A look takes time, and things happen meanwhile: why said of a delivery that it was "in 8s".
func TestWhy_WhatWasIsNotInTheFuture(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	begin := time.Now()
	c.answers["GET /ops/web/schedules/k"] = notFound
	c.answers["GET /ops/web/schedules/k/history"] = fmt.Sprintf(`200 {"since":"2026-01-01T00:00:00Z","items":[{"at":%q,"result":"delivered","status":204}]}`,
		begin.Add(15*time.Second).UTC().Format(time.RFC3339Nano))
	var out strings.Builder
	e := c.program(false, &out, io.Discard)
	var looks atomic.Int64
	e.now = func() time.Time { return begin.Add(time.Duration(looks.Add(1)) * 10 * time.Second) }
	if code := e.run(t.Context(), []string{"why", "web", "k", "-n", "ops", "--kubeconfig", c.kubeconfig()}); code != 0 || !strings.Contains(out.String(), "s ago") || strings.Contains(out.String(), "(in ") {
		t.Errorf("%d: %s", code, out.String())
	}
}

// Calls wait for no limiter of this process: with a deadline it answered at once, in its own
// words, that the wait would be too long.
func TestDoctor_ManyNamespaces(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for i := range 150 {
		c.source(fmt.Sprint("n", i), "web", nil)
	}
	if _, out, errs := c.run(false, "doctor", "-A", "--timeout", "2s"); strings.Contains(out+errs, "limiter") {
		t.Errorf("%s%s", out, errs)
	}
}
