package monitoring

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

type rule struct {
	Alert, Expr, For    string
	Labels, Annotations map[string]string
}

func rules(t *testing.T) (all []rule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	if err := yaml.Unmarshal([]byte(read(t, rulesFile)), &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	return all
}

// Each alert has a summary, a description, a severity, and a runbook: a section of
// docs/monitoring.md.
func TestRules_HaveRunbooks(t *testing.T) {
	t.Parallel()
	const page = "https://github.com/reschedule-dev/reschedule/blob/main/docs/monitoring.md#"
	docs := read(t, docsFile)
	for _, r := range rules(t) {
		if !strings.Contains(docs, "\n#### "+r.Alert+"\n") || r.Annotations["runbook_url"] != page+strings.ToLower(r.Alert) {
			t.Errorf("%s: docs/monitoring.md has no section #### %s, or %q does not lead there", r.Alert, r.Alert, r.Annotations["runbook_url"])
		}
		if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || !slices.Contains([]string{"critical", "warning"}, r.Labels["severity"]) {
			t.Errorf("%s is not whole: %+v", r.Alert, r)
		}
	}
}

// source are the labels of a source, with more.
func source(metric string, more ...string) string {
	return adapter(metric, append([]string{`kn_source_namespace="team"`, `kn_source_name="s"`}, more...)...)
}

// neighbour is a metric of another source of the namespace.
func neighbour(metric string) string {
	return adapter(metric, `kn_source_namespace="team"`, `kn_source_name="t"`)
}

func adapter(metric string, more ...string) string {
	return metric + "{" + strings.Join(append([]string{`job="reschedule-adapter"`, `instance="i"`}, more...), ",") + "}"
}

// healthy is a run of nine hours, a sample a minute: keys fail now and then and are
// delivered later, quotas are half used, the disk fills and is compacted.
func healthy() map[string]string {
	s := map[string]string{
		adapter("up"): "1x540", adapter("process_start_time_seconds"): "1000x540",
		`kube_statefulset_replicas{statefulset="reschedule-adapter",namespace="knative-eventing"}`: "1x540",
		source("reschedule_oldest_due_age_seconds"):                                                strings.Repeat("0 2 0 7 ", 135),
		source("reschedule_retrying"):                                                              strings.Repeat("0 1 2 0 ", 135),
		source("reschedule_source_suspended"):                                                      "0x540",
		source("reschedule_deliveries_total", `result="delivered"`):                                "0+60x540",
		source("reschedule_deliveries_total", `result="retrying"`):                                 "0+1x540",
		source("reschedule_dead_letters_pending"):                                                  "0x540",
		source("reschedule_stored_keys"):                                                           "50x540",
		source("reschedule_limit", `limit="limits.maxPending"`):                                    "100x540",
		source("reschedule_stored_bytes"):                                                          "5000x540",
		source("reschedule_limit", `limit="limits.maxBytes"`):                                      "10000x540",
		source("reschedule_watch_lists_total", `result="complete"`):                                "0+1x540",
		source("reschedule_workload_asleep"):                                                       strings.Repeat("0 1 1 1 ", 135),
		adapter("reschedule_namespace_limit", `kn_source_namespace="team"`, `limit="max-pending"`): "100x540",
		adapter("reschedule_namespace_limit", `kn_source_namespace="team"`, `limit="max-bytes"`):   "10000x540",
		adapter("reschedule_deliveries_paused"):                                                    "0x540",
		adapter("reschedule_storage_free_bytes"):                                                   strings.Repeat("9e9-1e6x29 ", 18),
		adapter("reschedule_storage_reserve_bytes"):                                                "268435456x540",
		adapter("reschedule_storage_corrupt_total"):                                                "0x540",
		adapter("reschedule_sources_refused"):                                                      "0x540",
		adapter("reschedule_connections_ended_total", `address="api"`, `why="idle"`):               "0x540",
		adapter("reschedule_api_requests_total", `status="201"`):                                   "0+100x540",
		adapter("reschedule_api_requests_total", `status="404"`):                                   "0+20x540",
		adapter("reschedule_api_requests_total", `status="503"`):                                   "0+1x540",
	}
	for _, le := range []string{"0.01", "1", "+Inf"} {
		s[adapter("reschedule_lateness_seconds_bucket", `kn_source_namespace="team"`, `le="`+le+`"`)] = "0+60x540"
		s[adapter("reschedule_storage_sync_duration_seconds_bucket", `le="`+le+`"`)] = "0+60x540"
	}
	return s
}

// trio is a group of three, i, j and k, in a healthy run, with other series.
// Its second member owns it.
func trio(other map[string]string) map[string]string {
	s := map[string]string{}
	for _, name := range []string{"i", "j", "k"} {
		s[member(name, "up")] = "1x540"
		s[member(name, "reschedule_group_owner")] = "0x540"
		s[member(name, "reschedule_group_behind_seconds")] = strings.Repeat("0.1 0.2 3 ", 180)
		s[member(name, "reschedule_group_tenures_total")] = "1x300 2x240" // an upgrade
		s[certificate(name)] = "2000000x540"
		s[member(name, "reschedule_clock_offset_seconds", `peer="another"`)] = strings.Repeat("0.001 -0.002 0.2 ", 180)
	}
	s[member("j", "reschedule_group_owner")] = "1x540"
	maps.Copy(s, other)
	return s
}

func certificate(name string) string {
	return fmt.Sprintf(`reschedule_certificate_expiry_timestamp_seconds{job="reschedule-adapter",instance=%q,address="members"}`, name)
}

func member(name, metric string, more ...string) string {
	labels := append([]string{`job="reschedule-adapter"`, `instance="` + name + `"`}, more...)
	return metric + "{" + strings.Join(labels, ",") + "}"
}

// fault is a healthy run with other series; "" removes one.
type fault struct {
	name   string
	series map[string]string
	at     string
	fires  []string
}

var faults = []fault{
	{"healthy, early", nil, "3m", nil},
	{"healthy", nil, "90m", nil},
	{"healthy, late", nil, "530m", nil},
	{"suspended", map[string]string{
		source("reschedule_source_suspended"):                       "1x540",
		source("reschedule_oldest_due_age_seconds"):                 "0x540",
		source("reschedule_retrying"):                               "5x540",
		source("reschedule_dead_letters_pending"):                   "3x540",
		source("reschedule_deliveries_total", `result="delivered"`): "60x540",
	}, "90m", nil},
	{"adapter down", map[string]string{adapter("up"): "1x9 0x540"}, "20m", []string{"RescheduleAdapterDown"}},
	{"no pod", map[string]string{adapter("up"): ""}, "20m", []string{"RescheduleAdapterDown"}},
	{"a restart", map[string]string{adapter("process_start_time_seconds"): "1000x9 2000x540"}, "20m", nil},
	{"restarts", map[string]string{adapter("process_start_time_seconds"): "1x9 2x3 3x3 4x3 5x3 6x540"}, "25m", []string{"RescheduleRestarts"}},
	{"not woken", map[string]string{source("reschedule_oldest_due_age_seconds"): "0+60x540"}, "20m", []string{"RescheduleNotWoken"}},
	{"no sink, the workload works for hours", map[string]string{
		source("reschedule_oldest_due_age_seconds"):                   "0+60x540",
		source("reschedule_workload_asleep"):                          "0x540",
		source("reschedule_throttled_seconds_total", `limit="scale"`): "0+59x540",
	}, "90m", nil},
	{"no sink, the adapter has restarted meanwhile", map[string]string{
		source("reschedule_oldest_due_age_seconds"):                   "_x30 1800+60x500",
		source("reschedule_workload_asleep"):                          "_x30 0x500",
		source("reschedule_throttled_seconds_total", `limit="scale"`): "_x30 0+59x500",
	}, "33m", nil},
	{"no sink, it works for hours after a start that failed", map[string]string{
		source("reschedule_retrying"):                                 "3x540",
		source("reschedule_workload_asleep"):                          "0x540",
		source("reschedule_throttled_seconds_total", `limit="scale"`): "0+59x540",
		source("reschedule_deliveries_total", `result="delivered"`):   "",
	}, "90m", nil},
	{"not woken, the workload does not start", map[string]string{
		source("reschedule_oldest_due_age_seconds"):                   "0+60x540",
		source("reschedule_workload_asleep"):                          "1x540",
		source("reschedule_throttled_seconds_total", `limit="scale"`): "0+59x540",
	}, "20m", []string{"RescheduleNotWoken"}},
	{"not woken, the workload is awake and deliveries hang", map[string]string{
		source("reschedule_oldest_due_age_seconds"):                   "0+60x540",
		source("reschedule_workload_asleep"):                          "0x540",
		source("reschedule_throttled_seconds_total", `limit="scale"`): "0x1 2x540",
	}, "20m", []string{"RescheduleNotWoken"}},
	{"sink of a workload down, each attempt starts it", map[string]string{
		source("reschedule_retrying"):                                 "3x540",
		source("reschedule_workload_asleep"):                          strings.Repeat("0 1 1 1 1 ", 108),
		source("reschedule_throttled_seconds_total", `limit="scale"`): "0+2x540",
		source("reschedule_deliveries_total", `result="delivered"`):   "",
	}, "45m", []string{"RescheduleSinkFailing"}},
	{"sink down", map[string]string{
		source("reschedule_retrying"):                               "0x9 3x540",
		source("reschedule_deliveries_total", `result="delivered"`): "0+60x9 540x540",
	}, "45m", []string{"RescheduleSinkFailing"}},
	{"sink down, new source", map[string]string{
		source("reschedule_retrying"):                               "3x540",
		source("reschedule_deliveries_total", `result="delivered"`): "",
	}, "45m", []string{"RescheduleSinkFailing"}},
	{"one key fails", map[string]string{source("reschedule_retrying"): "1x540"}, "90m", []string{"RescheduleKeysRetrying"}},
	{"first drop", map[string]string{source("reschedule_deliveries_total", `result="dropped"`): "_x30 1x540"}, "35m", []string{"RescheduleEventsDropped"}},
	{"another drop", map[string]string{source("reschedule_deliveries_total", `result="dropped"`): "1x30 2x540"}, "35m", []string{"RescheduleEventsDropped"}},
	{"long after a drop", map[string]string{source("reschedule_deliveries_total", `result="dropped"`): "_x30 1x540"}, "55m", nil},
	{"first dead letter", map[string]string{source("reschedule_deliveries_total", `result="dead_lettered"`): "_x30 1x540"}, "35m", []string{"RescheduleDeadLetters"}},
	{"kept", map[string]string{source("reschedule_deliveries_total", `result="kept"`): "4x30 5x540"}, "35m", []string{"RescheduleDeadLetters"}},
	{"dead letters taken", map[string]string{
		source("reschedule_dead_letters_pending"):                               "3x540",
		source("reschedule_dead_letter_deliveries_total", `result="delivered"`): "0+1x540",
	}, "90m", nil},
	{"dead letters stuck", map[string]string{
		source("reschedule_dead_letters_pending"):                              "3x540",
		source("reschedule_dead_letter_deliveries_total", `result="retrying"`): "0+1x540",
	}, "90m", []string{"RescheduleDeadLettersStuck"}},
	{"late", map[string]string{
		adapter("reschedule_lateness_seconds_bucket", `kn_source_namespace="team"`, `le="0.01"`): "0x540",
		adapter("reschedule_lateness_seconds_bucket", `kn_source_namespace="team"`, `le="1"`):    "0x540",
		adapter("reschedule_lateness_seconds_bucket", `kn_source_namespace="team"`, `le="5"`):    "0+60x540",
	}, "30m", []string{"RescheduleLate"}},
	{"slow disk", map[string]string{
		adapter("reschedule_storage_sync_duration_seconds_bucket", `le="0.01"`): "0x540",
	}, "30m", []string{"RescheduleSlowDisk"}},
	{"refused", map[string]string{source("reschedule_quota_refused_total", `quota="limits.maxPending"`): "_x30 1x540"}, "35m", []string{"RescheduleQuotaRefused"}},
	{"a dead letter dropped", map[string]string{source("reschedule_given_up_timestamp_seconds", `result="dropped"`): "_x30 1800x540"}, "35m", []string{"RescheduleEventsDropped"}},
	{"long after a dead letter", map[string]string{source("reschedule_given_up_timestamp_seconds", `result="dropped"`): "_x30 1800x540"}, "55m", nil},
	{"keys near", map[string]string{source("reschedule_stored_keys"): "95x540"}, "30m", []string{"RescheduleQuotaNear"}},
	{"keys of a namespace near", map[string]string{neighbour("reschedule_stored_keys"): "45x540"}, "30m", []string{"RescheduleQuotaNear"}},
	{"bytes of a namespace near", map[string]string{neighbour("reschedule_stored_bytes"): "4500x540"}, "30m", []string{"RescheduleQuotaNear"}},
	{"watched objects of a namespace near", map[string]string{source("reschedule_watch_stored_bytes"): "4500x540"}, "30m", []string{"RescheduleQuotaNear"}},
	{"a namespace, while the owner changes", map[string]string{
		strings.Replace(neighbour("reschedule_stored_keys"), `"i"`, `"x"`, 1):                                              "80x540",
		`reschedule_namespace_limit{job="reschedule-adapter",instance="x",kn_source_namespace="team",limit="max-pending"}`: "100x540",
	}, "30m", nil},
	{"bytes near", map[string]string{source("reschedule_stored_bytes"): "9500x540"}, "30m", []string{"RescheduleQuotaNear"}},
	{"calls fail", map[string]string{adapter("reschedule_api_requests_total", `status="503"`): "0+50x540"}, "30m", []string{"RescheduleCallsFailing"}},
	{"connections", map[string]string{adapter("reschedule_connections_ended_total", `address="api"`, `why="idle"`): "0+5x540"}, "30m", []string{"RescheduleConnections"}},
	{"watch", map[string]string{source("reschedule_watch_lists_total", `result="failed"`): "0+1x540"}, "45m", []string{"RescheduleWatchFailing"}},
	{"a workload fails", map[string]string{source("reschedule_workload_problem", `reason="Forbidden"`): "_x30 1x540"}, "45m", []string{"RescheduleWorkloadFailing"}},
	{"a workload fails for a moment", map[string]string{source("reschedule_workload_problem", `reason="StartTimeout"`): "_x30 1x5 _x540"}, "45m", nil},
	{"disk fills", map[string]string{adapter("reschedule_storage_free_bytes"): "2e9-2e6x540"}, "450m", []string{"RescheduleDiskLow"}},
	{"disk full", map[string]string{adapter("reschedule_storage_free_bytes"): "9e9x29 1e8x540"}, "35m", []string{"RescheduleDiskFull"}},
	{"deliveries paused", map[string]string{adapter("reschedule_deliveries_paused"): "0x29 1x540"}, "35m", []string{"RescheduleDeliveriesPaused"}},
	{"deliveries paused for a moment", map[string]string{adapter("reschedule_deliveries_paused"): "0x29 1x1 0x540"}, "35m", nil},
	{"a group, early", trio(nil), "3m", nil},
	{"a group", trio(nil), "310m", nil},
	{"no owner", trio(map[string]string{member("j", "reschedule_group_owner"): "1x9 0x540"}), "12m", []string{"RescheduleNoOwner"}},
	{"a member down", trio(map[string]string{
		member("k", "up"): "1x9 0x540", member("k", "reschedule_group_owner"): "0x9 _x540", member("k", "reschedule_group_behind_seconds"): "0x9 _x540",
	}), "20m", []string{"RescheduleMemberDown"}},
	{"all members down", trio(map[string]string{
		member("i", "up"): "0x540", member("j", "up"): "0x540", member("k", "up"): "0x540",
		member("i", "reschedule_group_owner"): "", member("j", "reschedule_group_owner"): "", member("k", "reschedule_group_owner"): "",
	}), "20m", []string{"RescheduleAdapterDown"}},
	{"a member cut off", trio(map[string]string{member("k", "reschedule_group_behind_seconds"): "0+60x540"}), "20m", []string{"RescheduleMemberBehind"}},
	{"other owners", trio(map[string]string{member("k", "reschedule_group_tenures_total"): "0+1x540"}), "35m", []string{"RescheduleOwnerChanges"}},
	{"a wrong clock", trio(map[string]string{member("k", "reschedule_clock_offset_seconds", `peer="another"`): "-0.3x540"}), "20m", []string{"RescheduleClocksDiffer"}},
	{"a certificate ends", trio(map[string]string{certificate("k"): "1000000x540"}), "20m", []string{"RescheduleCertificateEnds"}},
	{"sources refused", map[string]string{adapter("reschedule_sources_refused"): "0x9 1x540"}, "15m", []string{"RescheduleSourcesRefused"}},
	{"corrupt", map[string]string{adapter("reschedule_storage_corrupt_total"): "0x9 1x540"}, "12m", []string{"RescheduleCorruption"}},
}

// Each alert fires in its fault, and then no other one does. None fires in a healthy run,
// with a suspended source, or in a cluster without a source.
func TestRules_FireInTheirFaults(t *testing.T) {
	t.Parallel()
	silent := map[string]bool{}
	for _, r := range rules(t) {
		silent[r.Alert] = true
	}
	var tests []any
	add := func(f fault, series map[string]string) {
		expected := []any{}
		for _, alert := range f.fires {
			expected = append(expected, map[string]any{"labels": fmt.Sprintf("{alertname=%q}", alert), "value": 1})
			delete(silent, alert)
		}
		tests = append(tests, map[string]any{"name": f.name, "interval": "1m", "input_series": input(series), "promql_expr_test": []any{map[string]any{
			"expr": `group by (alertname) (ALERTS{alertstate="firing"})`, "eval_time": f.at, "exp_samples": expected,
		}}})
	}
	for _, f := range faults {
		add(f, healthyBut(f.series))
	}
	add(fault{name: "empty cluster", at: "90m"}, map[string]string{`kube_statefulset_replicas{statefulset="reschedule-adapter"}`: "0x540"})
	for alert := range silent {
		t.Errorf("no test makes %s fire", alert)
	}
	testRules(t, tests...)
}

// RescheduleQuotaNear names the source and its limit, or the namespace and the limit that
// its sources share.
func TestRules_QuotaNearNamesTheLimit(t *testing.T) {
	t.Parallel()
	const runbook = "https://github.com/reschedule-dev/reschedule/blob/main/docs/monitoring.md#reschedulequotanear"
	expected := func(labels map[string]string, summary, description string) any {
		labels["severity"], labels["kn_source_namespace"] = "warning", "team"
		return map[string]any{"exp_labels": labels, "exp_annotations": map[string]string{"summary": summary, "description": description, "runbook_url": runbook}}
	}
	var tests []any
	for _, c := range []struct {
		series map[string]string
		want   []any
	}{
		{map[string]string{source("reschedule_limit", `limit="limits.maxPending"`): "51x60"}, []any{expected(map[string]string{"kn_source_name": "s", "limit": "limits.maxPending"},
			"team/s has nearly used up a quota", "It is at 98.04% of its limits.maxPending.")}},
		{map[string]string{source("reschedule_limit", `limit="limits.maxBytes"`): "5000x60"}, []any{expected(map[string]string{"kn_source_name": "s", "limit": "limits.maxBytes"},
			"team/s has nearly used up a quota", "It is at 100% of its limits.maxBytes.")}},
		{map[string]string{neighbour("reschedule_stored_keys"): "50x60"}, []any{expected(map[string]string{"limit": "max-pending"},
			"The sources of namespace team have together nearly used up a quota", "They are at 100% of max-pending in ConfigMap config-reschedule.")}},
		{map[string]string{neighbour("reschedule_stored_bytes"): "4500x60"}, []any{expected(map[string]string{"limit": "max-bytes"},
			"The sources of namespace team have together nearly used up a quota", "They are at 95% of max-bytes in ConfigMap config-reschedule.")}},
	} {
		tests = append(tests, map[string]any{"interval": "1m", "input_series": input(healthyBut(c.series)), "alert_rule_test": []any{map[string]any{
			"eval_time": "30m", "alertname": "RescheduleQuotaNear", "exp_alerts": c.want,
		}}})
	}
	testRules(t, tests...)
}

// healthyBut is a healthy run with other series.
func healthyBut(other map[string]string) map[string]string {
	series := healthy()
	maps.Copy(series, other)
	return series
}

// input are series as promtool reads them; "" is none.
func input(series map[string]string) []any {
	input := []any{}
	for _, name := range slices.Sorted(maps.Keys(series)) {
		if series[name] != "" {
			input = append(input, map[string]string{"series": name, "values": strings.TrimSpace(series[name])})
		}
	}
	return input
}

// testRules has promtool check the rules and run the tests.
func testRules(t *testing.T, tests ...any) {
	t.Helper()
	path, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "check", "rules", path)
	text, err := yaml.Marshal(map[string]any{"rule_files": []string{path}, "evaluation_interval": "1m", "tests": tests})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rules_test.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "", "test", "rules", file)
}
