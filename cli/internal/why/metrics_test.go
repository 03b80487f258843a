package why

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

const metrics = `# HELP x
go_goroutines 12
reschedule_storage_free_bytes{otel_scope_name="a"} 3e+07
reschedule_storage_reserve_bytes 1e+07
reschedule_storage_corrupt_total 2
reschedule_deliveries_paused{otel_scope_name="a"} 1
reschedule_source_suspended{kn_source_name="a",kn_source_namespace="ops"} 1
reschedule_limit{kn_source_name="a",kn_source_namespace="ops",limit="limits.maxPending"} 3
reschedule_stored_bytes{kn_source_name="a",kn_source_namespace="ops"} 1.9e+07
reschedule_stored_bytes{kn_source_name="b",kn_source_namespace="ops"} 5e+06
reschedule_quota_refused_total{kn_source_name="b",kn_source_namespace="ops",quota="disk"} 1
reschedule_quota_refused_total{kn_source_name="a",kn_source_namespace="ops",quota="limits.maxPending"} 4
reschedule_source_suspended{kn_source_name="a",kn_source_namespace="shop"} 0
`

// The metrics of an adapter, read once, are what each source gets of it.
func TestMetrics_OfEachSource(t *testing.T) {
	t.Parallel()
	m := ReadMetrics(strings.NewReader(metrics))
	a := Facts{Namespace: "ops", Name: "a"}
	a.Measure(m, nil)
	if !a.Source.Suspended || a.Source.MaxPending != 3 || a.StoredBytes != 1.9e7 || a.QuotaRefused["limits.maxPending"] != 4 || !a.NamespaceFull || a.StorageFull || a.Unreadable != 2 || !a.Paused || a.Unmeasured != "" {
		t.Errorf("%+v, %+v", a, a.Source)
	}
	shop := Facts{Namespace: "shop", Name: "a"}
	shop.Measure(m, nil)
	if shop.Source == nil || shop.Source.Suspended || shop.NamespaceFull || shop.StoredBytes != 0 {
		t.Errorf("%+v", shop)
	}
	other := Facts{Namespace: "shop", Name: "z"}
	other.Measure(m, nil)
	if other.Source != nil || m.Source("shop", "z") != nil {
		t.Errorf("a source that the metrics do not have: %+v", other)
	}
	none := Facts{}
	none.Measure(nil, errors.New("no answer"))
	if none.Unmeasured != "no answer" || (*Metrics)(nil).Source("ops", "a") != nil {
		t.Error("metrics that were not read are unknown")
	}
}

// The limits that the sources of a namespace share are read with what all of them have: keys
// and bytes as quotas count them, deliveries of keys and of dead letters, and due keys that
// are not between two attempts. A suspended source's keys do not wait for their turn.
func TestMetrics_SharedByANamespace(t *testing.T) {
	t.Parallel()
	const text = `reschedule_namespace_limit{kn_source_namespace="ops",limit="max-pending"} 3
reschedule_namespace_limit{kn_source_namespace="ops",limit="max-bytes"} 1000
reschedule_namespace_limit{kn_source_namespace="ops",limit="max-in-flight"} 2
reschedule_namespace_limit{kn_source_namespace="ops",limit="max-per-second"} 5
reschedule_stored_keys{kn_source_name="a",kn_source_namespace="ops"} 2
reschedule_stored_keys{kn_source_name="b",kn_source_namespace="ops"} 1
reschedule_stored_keys{kn_source_name="a",kn_source_namespace="shop"} 40
reschedule_stored_bytes{kn_source_name="a",kn_source_namespace="ops"} 200
reschedule_stored_bytes{kn_source_name="b",kn_source_namespace="ops"} 60
reschedule_watch_stored_bytes{kn_source_name="b",kn_source_namespace="ops"} 40
reschedule_in_flight{kn_source_name="a",kn_source_namespace="ops"} 1
reschedule_dead_letters_in_flight{kn_source_name="b",kn_source_namespace="ops"} 1
reschedule_due{kn_source_name="a",kn_source_namespace="ops"} 9
reschedule_retrying{kn_source_name="a",kn_source_namespace="ops"} 2
reschedule_source_suspended{kn_source_name="b",kn_source_namespace="ops"} 1
reschedule_due{kn_source_name="b",kn_source_namespace="ops"} 50
reschedule_deliveries_total{kn_source_name="a",kn_source_namespace="ops",result="dropped"} 4
reschedule_deliveries_total{kn_source_name="a",kn_source_namespace="ops",result="dead_lettered"} 6
reschedule_dead_letter_deliveries_total{kn_source_name="a",kn_source_namespace="ops",result="retrying"} 7
reschedule_dead_letter_deliveries_total{kn_source_name="a",kn_source_namespace="ops",result="dropped"} 1
reschedule_dead_letters_pending{kn_source_name="a",kn_source_namespace="ops"} 2
reschedule_given_up_timestamp_seconds{kn_source_name="a",kn_source_namespace="ops",result="dropped"} 1.7955e+09
`
	m := ReadMetrics(strings.NewReader(text))
	f := Facts{Namespace: "ops", Name: "a"}
	f.Measure(m, nil)
	if want := (NamespaceLimits{MaxPending: 3, MaxBytes: 1000, MaxInFlight: 2, MaxPerSecond: 5, Keys: 3, Bytes: 300, InFlight: 2, Queued: 7}); f.NamespaceLimits == nil || *f.NamespaceLimits != want || f.StoredKeys != 2 {
		t.Errorf("%+v, %d keys, want %+v", f.NamespaceLimits, f.StoredKeys, want)
	}
	if want := (Lost{Dropped: 5, DroppedAt: time.Unix(1795500000, 0), DeadLettered: 6, Waiting: 2, Refused: 8}); f.Lost != want {
		t.Errorf("%+v, want %+v", f.Lost, want)
	}
	shop := Facts{Namespace: "shop", Name: "a"}
	if shop.Measure(m, nil); *shop.NamespaceLimits != (NamespaceLimits{Keys: 40}) {
		t.Errorf("a namespace without limits: %+v", shop.NamespaceLimits)
	}
	// An older adapter does not show what quotas count.
	if f.Measure(ReadMetrics(strings.NewReader(metrics)), nil); f.NamespaceLimits != nil {
		t.Errorf("%+v, want unknown", f.NamespaceLimits)
	}
}

// While less is free than is kept back, changes are refused, but not changes of a namespace
// that holds little, until half of what is kept back is used.
func TestMetrics_SmallNamespaceOnAFullDisk(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		stored, free string
		full         bool
	}{{"1000", "63999", false}, {"1001", "63999", true}, {"1000", "32000", false}, {"1000", "31999", true}, {"1001", "64000", false}} {
		f := Facts{Namespace: "ops", Name: "a"}
		f.Measure(ReadMetrics(strings.NewReader("reschedule_storage_free_bytes "+c.free+"\nreschedule_storage_reserve_bytes 64000\n"+
			"reschedule_stored_keys{kn_source_name=\"a\",kn_source_namespace=\"ops\"} 1\nreschedule_stored_bytes{kn_source_name=\"a\",kn_source_namespace=\"ops\"} "+c.stored+"\n"+
			"reschedule_quota_refused_total{kn_source_name=\"a\",kn_source_namespace=\"ops\",quota=\"disk\"} 1\n")), nil)
		if f.StorageFull != c.full || f.NamespaceFull && !c.full && c.free != "64000" {
			t.Errorf("%+v: %t %t", c, f.StorageFull, f.NamespaceFull)
		}
	}
}

// The metrics of a standby say nothing of the sources of its group.
func TestMetrics_OfAStandby(t *testing.T) {
	t.Parallel()
	f := Facts{Namespace: "ops", Name: "a"}
	if f.Measure(ReadMetrics(strings.NewReader("reschedule_group_owner 0\nreschedule_storage_free_bytes 1\nreschedule_storage_reserve_bytes 2\n")), nil); f.Unmeasured == "" || f.StorageFull {
		t.Errorf("%+v", f)
	}
}

// A member is read from its metrics; without the metrics of a group it is no member.
func TestMember_FromMetrics(t *testing.T) {
	t.Parallel()
	const grouped = "reschedule_group_owner 1\nreschedule_group_majority 1\nreschedule_group_applied 42\nreschedule_group_behind_seconds 0.124\n"
	m := NewMember("pod-1", ReadMetrics(strings.NewReader(grouped)), nil)
	if m.Pod != "pod-1" || m.State() != MemberOwns || m.Applied != 42 || m.Behind != 120*time.Millisecond || m.Metrics == nil {
		t.Errorf("%+v", m)
	}
	if m := NewMember("pod-5", ReadMetrics(strings.NewReader(metrics)), nil); m.State() != MemberSilent {
		t.Errorf("%+v", m)
	}
}

// Keys that became due at the same time are in front of the key in the order of the list;
// one that waits for another attempt, or has another priority, is not. There may be more than are listed.
func TestAsk_Ahead(t *testing.T) {
	t.Parallel()
	const key = `{"key":"%s","revision":1,"state":"due","dueAt":"2026-11-22T0%d:00:00Z"%s},`
	early := fmt.Sprintf(key, "z", 1, "") + fmt.Sprintf(key, "retrying", 1, `,"nextAttemptAt":"2026-11-22T09:00:00Z"`) + fmt.Sprintf(key, "tries now", 1, `,"nextAttemptAt":"2026-11-22T01:30:00Z"`)
	for name, c := range map[string]struct {
		list string
		want Ahead
	}{
		"before it": {early + fmt.Sprintf(key, "a", 2, "") + fmt.Sprintf(key, "k", 2, "") + fmt.Sprintf(key, "l", 2, ""), Ahead{3, false}},
		"it went":   {early + fmt.Sprintf(key, "l", 3, ""), Ahead{2, false}},
		"others":    {fmt.Sprintf(key, "low", 1, `,"priority":"low"`) + fmt.Sprintf(key, "high", 1, `,"priority":"high"`) + early + fmt.Sprintf(key, "k", 2, ""), Ahead{2, false}},
		"more":      {strings.Repeat(early, 600), Ahead{(2*maxListed + 1) / 3, true}},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/ops/s":
				_, _ = io.WriteString(w, `{"pending":9,"due":9,"inFlight":0,"nextDueAt":null,"oldestDueAt":null}`)
			case "/ops/s/schedules":
				_, _ = io.WriteString(w, `{"items":[`+strings.TrimSuffix(c.list, ",")+"]}")
			case "/ops/s/schedules/k":
				_, _ = io.WriteString(w, strings.TrimSuffix(fmt.Sprintf(key, "k", 2, ""), ","))
			default:
				w.WriteHeader(http.StatusNotFound)
			}
		}))
		client, err := sdk.New(server.URL+"/ops/s", sdk.WithRetryBudget(0))
		if err != nil {
			t.Fatal(err)
		}
		unmeasured := func(context.Context) (*Metrics, error) { return nil, errors.New("no answer") }
		f := (&Target{Namespace: "ops", Name: "s", Client: client, Metrics: unmeasured, Now: func() time.Time { return now }}).Ask(t.Context(), "k")
		if f.Ahead == nil || *f.Ahead != c.want {
			t.Errorf("%s: %+v of %+v, want %+v", name, f.Ahead, f, c.want)
		}
		server.Close()
	}
}

// An instant is put in words, seen from now.
func TestWhen_Words(t *testing.T) {
	t.Parallel()
	for d, want := range map[time.Duration]string{
		time.Hour: "in 1h0m", time.Second: "in 1s", time.Millisecond: "in less than 1s", 0: "now", -time.Millisecond: "just now", -time.Second: "1s ago", -50 * time.Hour: "2d2h ago",
	} {
		if got := When(now, at(d)); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}
