package boards

const (
	// this selects the chosen source, and more.
	this = `{kn_source_namespace="$namespace", kn_source_name="$source"}`
	// its is the namespace of the source: histograms have no finer label.
	its = `{kn_source_namespace="$namespace"}`
)

func limitOf(name string) string {
	return `max(reschedule_limit{kn_source_namespace="$namespace", kn_source_name="$source", limit="` + name + `"})`
}

// ofNamespace has what the sources of the namespace have together, and the limit that they
// share. Each adapter that delivers counts for itself: the panel shows the greatest sum.
func ofNamespace(metric, legend, limit string) []Query {
	return []Query{
		{`max(sum by (job, instance) (` + metric + its + `))`, legend},
		{`max(reschedule_namespace_limit{kn_source_namespace="$namespace", limit="` + limit + `"}) or vector(0)`, "limit"},
	}
}

var source = Board{
	UID: "reschedule-source", Title: "RescheduleSource / Source",
	Description: "One source: what comes in, what goes out, and what holds it up.",
	Variables: []Variable{
		{"namespace", "Namespace", "label_values(reschedule_pending, kn_source_namespace)", false},
		{"source", "Source", `label_values(reschedule_pending{kn_source_namespace="$namespace"}, kn_source_name)`, false},
	},
	Rows: []Row{
		{"Now", []Panel{
			{"Suspended", "1 while spec.suspend is true.", "short", true, one(`max(reschedule_source_suspended`+this+`)`, "suspended")},
			{"Pending keys", "Keys that wait or are due.", "short", true, one(`max(reschedule_pending`+this+`)`, "pending")},
			{"Next due", "The soonest due time that is still ahead; without one: no key waits.", "dateTimeFromNow", true,
				one(`max(reschedule_next_due_timestamp_seconds`+this+`) * 1000`, "next due")},
			{"Not woken", "How long the oldest due key waits for its first attempt; 0 while the source is suspended.", "s", true,
				one(`max(reschedule_oldest_due_age_seconds`+this+`)`, "age")},
			{"Retrying", "Keys between two attempts.", "short", true, one(`max(reschedule_retrying`+this+`)`, "retrying")},
			{"Dead letters", "Waiting for the dead letter sink, and kept.", "short", true,
				one(`(max(reschedule_dead_letters_pending`+this+`) or vector(0)) + (max(reschedule_dead_letters_kept`+this+`) or vector(0))`, "dead letters")},
		}},
		{"In and out", []Panel{
			{"Changes of keys", "What calls, events and watches made of keys.", "ops", false,
				one(`sum by (result) (rate(reschedule_changes_total`+this+`[$__rate_interval]))`, "{{result}}")},
			{"Events", "CloudEvents that were sent to this source.", "ops", false,
				one(`sum by (result) (rate(reschedule_ingested_events_total`+this+`[$__rate_interval])) or vector(0)`, "{{result}}")},
			{"Deliveries", "Attempts, by what became of them.", "ops", false,
				one(`sum by (result) (rate(reschedule_deliveries_total`+this+`[$__rate_interval]))`, "{{result}}")},
			{"Why attempts fail", "The class of the sink's answer; timeout: none within delivery.timeout; no_answer: no connection, or one that broke.", "ops", false,
				one(`sum by (error_type) (rate(reschedule_delivery_failures_total`+this+`[$__rate_interval])) or vector(0)`, "{{error_type}}")},
			{"Deliveries of dead letters", "Attempts to deliver dead letters, by what became of them.", "ops", false,
				one(`sum by (result) (rate(reschedule_dead_letter_deliveries_total`+this+`[$__rate_interval])) or vector(0)`, "{{result}}")},
			{"Expired and warm-ups", "Occurrences dropped at their expiresAt, and calls that woke the sink before a due time.", "ops", false, []Query{
				{`sum(rate(reschedule_expired_total` + this + `[$__rate_interval])) or vector(0)`, "expired"},
				{`sum(rate(reschedule_warm_ups_total` + this + `[$__rate_interval])) or vector(0)`, "warm-ups"},
			}},
		}},
		{"What holds it up", []Panel{
			{"Backlog", "Keys that are due and not being delivered, including keys between two attempts.", "short", false, []Query{
				{`max(reschedule_due` + this + `)`, "due"},
				{`max(reschedule_retrying` + this + `)`, "retrying"},
			}},
			{"In flight", "Deliveries under way, and limits.maxInFlight.", "short", false, []Query{
				{`max(reschedule_in_flight` + this + `)`, "in flight"},
				{limitOf("limits.maxInFlight"), "limit"},
			}},
			{"Limits that hold up due keys", "The part of the time that due keys wait for a limit: the source's own, its namespace's, or the adapter's.", "percentunit", false,
				one(`sum by (limit) (rate(reschedule_throttled_seconds_total`+this+`[$__rate_interval])) or vector(0)`, "{{limit}}")},
			{"Keys", "Pending and in flight, and limits.maxPending.", "short", false, []Query{
				{`max(reschedule_stored_keys` + this + `)`, "keys"},
				{limitOf("limits.maxPending"), "limit"},
			}},
			{"Stored bytes", "As quotas count them, and limits.maxBytes if it is set.", "bytes", false, []Query{
				{`max(reschedule_stored_bytes` + this + `)`, "stored"},
				{limitOf("limits.maxBytes") + ` or vector(0)`, "limit"},
			}},
			{"Refused for a quota", "Changes refused by 429, or by 507 (disk).", "ops", false,
				one(`sum by (quota) (rate(reschedule_quota_refused_total`+this+`[$__rate_interval])) or vector(0)`, "{{quota}}")},
		}},
		{"Its namespace, and what it watches", []Panel{
			{"Keys of the namespace", "Of all its sources, pending and in flight, and max-pending.", "short", false, ofNamespace("reschedule_stored_keys", "keys", "max-pending")},
			{"Stored bytes of the namespace", "Of all its sources: keys and dead letters, and what is remembered of watched objects; and max-bytes, which counts both.", "bytes", false,
				append(ofNamespace("reschedule_stored_bytes", "stored", "max-bytes"), Query{`max(sum by (job, instance) (reschedule_watch_stored_bytes` + its + `)) or vector(0)`, "of watched objects"})},
			{"In flight of the namespace", "Deliveries of keys of all its sources, and max-in-flight.", "short", false, ofNamespace("reschedule_in_flight", "in flight", "max-in-flight")},
			{"Lateness", "How long after its time an attempt starts; all sources of the namespace.", "s", false, quantiles("reschedule_lateness_seconds", its, "")},
			{"Answers of sinks", "How long an attempt takes, until the answer is read; all sources of the namespace.", "s", false,
				quantiles("reschedule_delivery_duration_seconds", its, "")},
			{"Watched objects", "Objects that spec.watch watches, and watches that are open.", "short", false, []Query{
				{`max(reschedule_watch_objects` + this + `) or vector(0)`, "objects"},
				{`max(reschedule_watch_open` + this + `) or vector(0)`, "watches"},
			}},
			{"Changes of watched objects", "Reported ones by verb, and ones that could not be reported.", "ops", false,
				one(`sum by (result) (rate(reschedule_watch_changes_total`+this+`[$__rate_interval])) or vector(0)`, "{{result}}")},
			{"Lists of watched objects", "By result.", "ops", false,
				one(`sum by (result) (rate(reschedule_watch_lists_total`+this+`[$__rate_interval])) or vector(0)`, "{{result}}")},
			{"Last event of a watch", "How long ago it came.", "s", false, one(`max(reschedule_watch_event_age_seconds`+this+`) or vector(0)`, "age")},
		}},
	},
}
