package boards

const (
	// of selects one adapter, and the labels of a source.
	of       = `{job=~"$job"}`
	bySource = "kn_source_namespace, kn_source_name"
	legend   = "{{kn_source_namespace}}/{{kn_source_name}}"
)

func one(expr, legend string) []Query { return []Query{{expr, legend}} }

// quantiles are the median and the 99th percentile of a histogram.
func quantiles(metric, selector, by string) []Query {
	suffix := ""
	if by != "" {
		suffix = " {{" + by + "}}"
		by = ", " + by
	}
	rate := "sum by (le" + by + ") (rate(" + metric + "_bucket" + selector + "[$__rate_interval])))"
	return []Query{{"histogram_quantile(0.5, " + rate, "p50" + suffix}, {"histogram_quantile(0.99, " + rate, "p99" + suffix}}
}

var overview = Board{
	UID: "reschedule-overview", Title: "RescheduleSource / Overview",
	Description: "The adapter and all of its sources: does it deliver in time, and which source does not?",
	Variables:   []Variable{{"job", "Job", "label_values(reschedule_build_info, job)", true}},
	Rows: []Row{
		{"Now", []Panel{
			{"Adapters", "Targets that answer. 0 is normal where no source exists.", "short", true, one(`sum(up`+of+`) or vector(0)`, "up")},
			{"Version", "Of the adapter that runs.", "string", true, one(`max by (version) (reschedule_build_info`+of+`)`, "{{version}}")},
			{"Sources", "Sources that the adapter serves, and ones that it has no memory for: look for the reason NoMemory.", "short", true, []Query{
				{`count(reschedule_source_suspended` + of + `) or vector(0)`, "sources"},
				{`max(reschedule_sources_refused` + of + `) or vector(0)`, "no memory"},
			}},
			{"Suspended", "Sources whose spec.suspend is true.", "short", true, one(`sum(reschedule_source_suspended`+of+`) or vector(0)`, "suspended")},
			{"Pending keys", "Keys that wait or are due.", "short", true, one(`sum(reschedule_pending`+of+`) or vector(0)`, "pending")},
			{"Corrupt places", "Places on the disk that cannot be read. More than 0: run adapter repair.", "short", true, one(`sum(reschedule_storage_corrupt_total`+of+`)`, "corrupt")},
		}},
		{"Is everything delivered?", []Panel{
			{"Deliveries", "Attempts to deliver keys, by what became of them.", "ops", false,
				one(`sum by (result) (rate(reschedule_deliveries_total`+of+`[$__rate_interval]))`, "{{result}}")},
			{"Lateness", "How long after its time an attempt starts, over all namespaces.", "s", false, quantiles("reschedule_lateness_seconds", of, "")},
			{"Not woken", "The ten sources whose oldest due key has waited longest for its first attempt. Suspended sources are 0.", "s", false,
				one(`topk(10, max by (`+bySource+`) (reschedule_oldest_due_age_seconds`+of+`))`, legend)},
			{"Backlog", "Keys that are due and not being delivered, including keys between two attempts, and deliveries under way.", "short", false, []Query{
				{`sum(reschedule_due` + of + `)`, "due"},
				{`sum(reschedule_retrying` + of + `)`, "retrying"},
				{`sum(reschedule_in_flight` + of + `)`, "in flight"},
			}},
			{"Failing sources", "The ten sources with the most keys between two attempts.", "short", false,
				one(`topk(10, sum by (`+bySource+`) (reschedule_retrying`+of+`))`, legend)},
			{"Why attempts fail", "The class of the sink's answer; timeout: none within delivery.timeout; no_answer: no connection, or one that broke.", "ops", false,
				one(`sum by (error_type) (rate(reschedule_delivery_failures_total`+of+`[$__rate_interval]))`, "{{error_type}}")},
			{"Answers of sinks", "How long an attempt takes, until the answer is read.", "s", false, quantiles("reschedule_delivery_duration_seconds", of, "")},
			{"Dead letters", "What waits for a dead letter sink, and what is kept for a person to look at.", "short", false, []Query{
				{`sum(reschedule_dead_letters_pending` + of + `) or vector(0)`, "waiting"},
				{`sum(reschedule_dead_letters_in_flight` + of + `) or vector(0)`, "in flight"},
				{`sum(reschedule_dead_letters_kept` + of + `) or vector(0)`, "kept"},
			}},
			{"Last event given up", "How long ago an event was dropped, kept, or sent to a dead letter sink, since the adapter started.", "s", false,
				one(`time() - max by (result) (reschedule_given_up_timestamp_seconds`+of+`)`, "{{result}}")},
			{"Deliveries of dead letters", "Attempts to deliver dead letters to their sinks, by what became of them.", "ops", false,
				one(`sum by (result) (rate(reschedule_dead_letter_deliveries_total`+of+`[$__rate_interval]))`, "{{result}}")},
		}},
		{"Does more come in than goes out?", []Panel{
			{"Changes of keys", "What calls, events and watches made of keys.", "ops", false,
				one(`sum by (result) (rate(reschedule_changes_total`+of+`[$__rate_interval]))`, "{{result}}")},
			{"Events", "CloudEvents that were sent to sources.", "ops", false,
				one(`sum by (result) (rate(reschedule_ingested_events_total`+of+`[$__rate_interval]))`, "{{result}}")},
			{"Limits that hold up due keys", "How many sources wait for a limit, on average: their own, their namespace's, or the adapter's slots and memory.", "short", false,
				one(`sum by (limit) (rate(reschedule_throttled_seconds_total`+of+`[$__rate_interval]))`, "{{limit}}")},
			{"Expired and warm-ups", "Occurrences dropped at their expiresAt, and calls that woke a sink before a due time.", "ops", false, []Query{
				{`sum(rate(reschedule_expired_total` + of + `[$__rate_interval])) or vector(0)`, "expired"},
				{`sum(rate(reschedule_warm_ups_total` + of + `[$__rate_interval])) or vector(0)`, "warm-ups"},
			}},
			{"Refused for a quota", "Changes refused by 429, or by 507 (disk).", "ops", false,
				one(`sum by (quota) (rate(reschedule_quota_refused_total`+of+`[$__rate_interval])) or vector(0)`, "{{quota}}")},
			{"Stored bytes", "The ten sources that store most.", "bytes", false,
				one(`topk(10, max by (`+bySource+`) (reschedule_stored_bytes`+of+`))`, legend)},
		}},
		{"The schedule API", []Panel{
			{"Requests", "By status.", "reqps", false, one(`sum by (status) (rate(reschedule_api_requests_total`+of+`[$__rate_interval]))`, "{{status}}")},
			{"Time of a request", "By kind of path, with the wait for the disk.", "s", false, quantiles("reschedule_api_request_duration_seconds", of, "path")},
			{"Memory of requests", "What bodies and requests under way hold, as a part of what they may hold.", "percentunit", false,
				one(`sum by (part) (reschedule_api_memory_bytes`+of+`) / sum by (part) (reschedule_api_memory_limit_bytes`+of+`)`, "{{part}}")},
			{"Connections", "Open ones as a part of the limit, by address.", "percentunit", false,
				one(`sum by (address) (reschedule_connections`+of+`) / sum by (address) (reschedule_connections_limit`+of+`)`, "{{address}}")},
			{"Connections ended at the limit", "idle: gave way to a new one; busy: a request gave way to a peer with fewer; refused: none could give way.", "ops", false,
				one(`sum by (address, why) (rate(reschedule_connections_ended_total`+of+`[$__rate_interval]))`, "{{address}} {{why}}")},
		}},
		{"The machine", []Panel{
			{"Wait for the disk", "How long a change waits to be on stable storage.", "s", false, quantiles("reschedule_storage_sync_duration_seconds", of, "")},
			{"Disk", "Below the reserve every call that adds something is answered 507.", "bytes", false, []Query{
				{`min(reschedule_storage_free_bytes` + of + `)`, "free"},
				{`max(reschedule_storage_reserve_bytes` + of + `)`, "reserve"},
				{`sum(reschedule_storage_used_bytes` + of + `)`, "used"},
			}},
			{"Deliveries paused", "Adapters whose disk has no space for the outcome of a delivery, so that none starts.", "short", false,
				one(`sum(reschedule_deliveries_paused`+of+`)`, "paused")},
			{"Memory", "Of the process, and what is counted for deliveries under way.", "bytes", false, []Query{
				{`sum(process_resident_memory_bytes` + of + `)`, "resident"},
				{`sum(go_memstats_heap_inuse_bytes` + of + `)`, "heap"},
				{`sum(reschedule_delivery_bytes` + of + `)`, "deliveries"},
			}},
			{"Processors", "Used by the adapter.", "short", false, one(`sum(rate(process_cpu_seconds_total`+of+`[$__rate_interval]))`, "processors")},
			{"Age of the process", "Falls to 0 at a restart.", "s", false, one(`time() - max(process_start_time_seconds`+of+`)`, "age")},
			{"Goroutines", "Of the adapter.", "short", false, one(`sum(go_goroutines`+of+`)`, "goroutines")},
		}},
	},
}
