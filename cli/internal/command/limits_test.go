package command

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
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
			code, out, errs := c.run(false, command, "--timeout", "3s")
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

// doctor asks for the right that the calls need: to a token of the service account, in its
// own namespace.
func TestDoctor_AccountOfAnotherNamespace(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.source("shop", "web", nil)
	if code, out, errs := c.run(false, "doctor", "-A", "--as-service-account", "knative-eventing/reschedule-viewer"); code != 0 {
		t.Errorf("%d: %s%s", code, out, errs)
	}
	asked := slices.DeleteFunc(c.reviews, func(r string) bool { return strings.Contains(r, "/pods/") })
	if want := "knative-eventing/serviceaccounts/token/reschedule-viewer"; len(asked) != 1 || asked[0] != want {
		t.Errorf("it asked about %q, want %s", asked, want)
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

// An interval of no time would be a busy loop.
func TestTop_IntervalIsPositive(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for _, every := range []string{"0s", "-1s"} {
		if code, _, errs := c.run(false, "top", "--watch", "--interval", every); code != exitUsage || !strings.Contains(errs, "--interval") {
			t.Errorf("%s: %d, %s", every, code, errs)
		}
	}
}

// Without the metrics why says that it did not look at the disk and the quotas.
func TestWhy_WithoutMetrics(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const unseen = "or refused by a quota or a full disk"
	if code, out, errs := c.run(false, "why", "web", "k", "--server", c.adapter.URL, "-n", "ops"); code != exitProblem || !strings.Contains(out, unseen) || !strings.Contains(out, "--metrics-server") {
		t.Errorf("%d: %s%s", code, out, errs)
	}
	c.answers["GET /metrics"] = "200 " + fullDisk
	if code, out, errs := c.run(false, "why", "web", "k", "--server", c.adapter.URL, "-n", "ops", "--metrics-server", c.adapter.URL); code != exitProblem || !strings.Contains(out, "disk is full") {
		t.Errorf("%d: %s%s", code, out, errs)
	}
	c.answers["GET /metrics"] = "503 "
	if code, out, errs := c.run(false, "why", "web"); code != 0 || !strings.Contains(out, "not known") {
		t.Errorf("%d: %s%s", code, out, errs)
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

// Flags that contradict each other are wrong usage.
func TestSuspend_NotWithNoSuspend(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	if code, _, errs := c.run(false, "update", "web", "--suspend", "--no-suspend"); code != exitUsage {
		t.Errorf("%d, %s", code, errs)
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

// A drain that cannot end says that the source stays suspended.
func TestDrain_StaysSuspended(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	for name, stage := range map[string]func(){
		"no token": func() { c.refuse["POST /token"] = 403 },
		"no answer": func() {
			delete(c.refuse, "POST /token")
			c.answers["GET /ops/web"] = `403 {"status":403,"code":"permission_denied","detail":"no"}`
		},
		"too late": func() { c.hangs = "/ops/web" },
	} {
		stage()
		code, _, errs := c.run(false, "drain", "web", "--timeout", "3s")
		if code == 0 || !strings.Contains(errs, "web stays suspended") || strings.Contains(errs, "-1") {
			t.Errorf("%s: %d, %s", name, code, errs)
		}
		c.hangs = ""
	}
	if code, _, errs := c.run(false, "drain", "nix"); code != exitNotFound || strings.Contains(errs, "suspended") {
		t.Errorf("no source: %d, %s", code, errs)
	}
}

// describe -v shows the whole object, clean.
func TestDescribe_Verbose(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.source("ops", "web", func(o map[string]any) { o["metadata"].(map[string]any)["labels"] = map[string]any{"team": "a\u202eb"} })
	code, out, errs := c.run(false, "describe", "web", "-v")
	if code != 0 || !strings.Contains(out, "  maxInFlight: 7\n") && !strings.Contains(out, "    maxInFlight: 7\n") || !strings.Contains(out, "sinkUri: http://sink") || strings.Contains(out, "\u202e") {
		t.Errorf("%d: %s%s", code, out, errs)
	}
}

// The question before a delete said "about 0 keys" of a source whose keys are not known yet,
// and named a flag that the command does not have.
func TestDelete_KeysNotKnownYet(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.source("ops", "new", func(o map[string]any) { delete(o["status"].(map[string]any), "pending") })
	for args, want := range map[string]string{
		"delete new":     "Delete 1 source of namespace ops for good, with at least 0 keys?",
		"delete web":     "Delete 1 source of namespace ops for good, with about 3 keys?",
		"delete web new": "Delete 2 sources of namespace ops for good, with at least 3 keys?",
		"suspend --all":  "Suspend 2 sources of namespace ops?",
	} {
		if code, _, errs := c.run(false, strings.Fields(args)...); code != exitUsage || !strings.Contains(errs, want) || strings.Contains(errs, "--dry-run") {
			t.Errorf("%s: %d, %s\nwant %s", args, code, errs, want)
		}
	}
}

// describe showed nothing of a source when there was no token, though the object was read.
func TestDescribe_WithoutAToken(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.refuse["POST /token"] = 404
	if code, out, errs := c.run(false, "describe", "web"); code == 0 || !strings.Contains(out, "Condition Ready:") || strings.Contains(out, "Keys:") || !strings.Contains(errs, "requesting a token") {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	if code, out, _ := c.run(false, "describe", "nix"); code != exitNotFound || out != "" {
		t.Errorf("of no source: exit code %d, %s", code, out)
	}
}

// top of one source said "some of many failed" whatever the error was, and an unknown shell
// was no wrong usage.
func TestExit_SaysWhatFailed(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.answers["GET /ops/web"] = `401 {"status":401,"code":"unauthenticated","detail":"not signed by this cluster"}`
	c.source("ops", "ok", nil)
	for args, want := range map[string]int{"top web": exitDenied, "top web ok": exitSome, "top ok": 0, "completion nosuchshell": exitUsage, "completion bash": 0} {
		if code, _, errs := c.run(false, strings.Fields(args)...); code != want {
			t.Errorf("%s: exit code %d, want %d: %s", args, code, want, errs)
		}
	}
}

// A dry run said of keys that are not there that they would be run, cancelled or redriven.
func TestDryRun_OfAbsentKeys(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"key run web k", "key delete web k", "deadletter redrive web k", "deadletter delete web k"} {
		c := newCluster(t)
		path := "GET /ops/web/schedules/k"
		if strings.HasPrefix(args, "dead") {
			path = "GET /ops/web/deadletters/k"
		}
		c.answers[path] = notFound
		if code, out, errs := c.run(false, strings.Fields(args+" --dry-run")...); code != exitNotFound || out != "" {
			t.Errorf("%s: exit code %d, %s%s", args, code, out, errs)
		}
		c.answers[path] = `200 {"key":"k","revision":1,"state":"waiting","dueAt":"2050-01-01T00:00:00Z","at":"2026-01-01T00:00:00Z"}`
		if code, out, errs := c.run(false, strings.Fields(args+" --dry-run")...); code != 0 || out != "k (dry run)\n" {
			t.Errorf("%s of a key that is there: exit code %d, %s%s", args, code, out, errs)
		}
	}
}
