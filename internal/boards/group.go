package boards

var group = Board{
	UID: "reschedule-group", Title: "RescheduleSource / Group",
	Description: "Three adapters that keep the schedules together: who owns the group, who is behind, do their clocks agree? Empty where the adapter is alone.",
	Variables:   []Variable{{"job", "Job", "label_values(reschedule_group_owner, job)", true}},
	Rows: []Row{
		{"Now", []Panel{
			{"Members", "Members of the group that answer; 3 is normal.", "short", true, one(`count(reschedule_group_owner`+of+`)`, "members")},
			{"Owners", "Members that own the group; 1 is normal.", "short", true, one(`sum(reschedule_group_owner`+of+`)`, "owners")},
			{"With a majority", "Members whose log has a majority; 3 is normal. With 0 nothing is scheduled or delivered.", "short", true,
				one(`sum(reschedule_group_majority`+of+`)`, "with a majority")},
		}},
		{"Ownership and the log", []Panel{
			{"Owner", "1 for the member that owns the group.", "short", false, one(`reschedule_group_owner`+of, "{{instance}}")},
			{"Changes of the owner", "How often a member became the owner, an hour.", "short", false,
				one(`3600 * sum by (instance) (rate(reschedule_group_tenures_total`+of+`[$__rate_interval]))`, "{{instance}}")},
			{"Behind", "For how long a member may have missed changes.", "s", false, one(`reschedule_group_behind_seconds`+of, "{{instance}}")},
			{"Entries behind", "Entries of the log that another member has applied, and this one has not.", "short", false,
				one(`scalar(max(reschedule_group_applied`+of+`)) - reschedule_group_applied`+of, "{{instance}}")},
			{"Entries kept", "Entries of the log that are kept for a member that is away, and of the last seconds.", "short", false,
				one(`max(reschedule_group_applied`+of+`) - max(reschedule_group_trimmed`+of+`)`, "entries")},
			{"Bytes of the log", "That the log takes in the file of each member.", "bytes", false, one(`reschedule_group_log_bytes`+of, "{{instance}}")},
			{"Views that differ", "Other members whose views differ from the member's; 0 unless a disk is damaged.", "short", false,
				one(`reschedule_group_differing`+of, "{{instance}}")},
			{"Copies of views", "Copies that a member took of another one's view, and that it began to send.", "short", false, []Query{
				{`sum by (instance) (increase(reschedule_group_copied_total` + of + `[$__rate_interval]))`, "{{instance}} took"},
				{`sum by (instance) (increase(reschedule_group_sent_total` + of + `[$__rate_interval]))`, "{{instance}} sent"},
			}},
		}},
		{"Calls and clocks", []Panel{
			{"Forwarded calls", "Calls that a member sent to the owner, by what became of them.", "reqps", false,
				one(`sum by (result) (rate(reschedule_forwarded_total`+of+`[$__rate_interval]))`, "{{result}}")},
			{"Clocks", "How far the clocks of two members differ.", "s", false, one(`abs(reschedule_clock_offset_seconds`+of+`)`, "{{instance}} and {{peer}}")},
			{"Certificates", "How long the certificate of a port is valid.", "s", false, one(`min by (instance, address) (reschedule_certificate_expiry_timestamp_seconds`+of+`) - time()`, "{{instance}} {{address}}")},
			{"Clock held back", "How far the owner holds its clock back, so that nothing is early after a failover.", "s", false,
				one(`reschedule_group_clock_held_seconds`+of, "{{instance}}")},
		}},
	},
}
