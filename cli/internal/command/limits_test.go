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
	c.answers["PUT /ops/web/schedules/k"] = `201 {"key":"k","result":"created","revision":1,"state":"waiting"}`
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
			code, out, errs := c.run(false, command, "--timeout", "1s")
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
		"why web", "why web -o json", "why web k", "key describe web k", "describe web", "top web --watch", "key watch web", "version", "doctor", "key list web", "token web", "suspend web",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			c.answers["GET /ops/web/schedules/k"] = `200 {"key":"k","revision":1,"state":"waiting","dueAt":"2050-01-01T00:00:00Z"}`
			c.answers["GET /ops/web/schedules/k/history"] = `200 {"items":[]}`
			c.answers["GET /ops/web/schedules"] = `200 {"items":[{"key":"k","revision":1,"state":"waiting","dueAt":"2050-01-01T00:00:00Z"}]}`
			c.answers["GET /ops/web/events"] = "200 id: e-1\nevent: started\ndata: {\"key\":\"k\",\"at\":\"2026-01-01T00:00:00Z\"}\n\n"
			var errs strings.Builder
			e := c.env(false, fullDevice{}, &errs)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if code := e.run(ctx, append(strings.Fields(args), "--kubeconfig", c.kubeconfig())); code != exitOther || ctx.Err() != nil || !strings.Contains(errs.String(), "no space left") {
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
		if code := c.env(false, &out, io.Discard).run(t.Context(), append(append([]string{"__complete"}, strings.Fields(args)...), "")); code != 0 || !strings.HasPrefix(out.String(), strings.ReplaceAll(want, " ", "\n")+"\n:") {
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
