package calendar

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// What never comes, is no calendar, or means another thing on each machine is refused, by the name of its field.
func TestParse_Refuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cron, zone, field, detail string }{
		{"", "", FieldCron, "is empty"},
		{"", "Europe/Berlin", FieldTimeZone, "without"},
		{"* * * *", "", FieldCron, "five fields"},
		{"0 * * * * *", "", FieldCron, "five fields"},
		{"60 * * * *", "", FieldCron, "60"},
		{"* 24 * * *", "", FieldCron, "24"},
		{"* * 0 * *", "", FieldCron, "0"},
		{"* * * 13 *", "", FieldCron, "13"},
		{"* * * * 7", "", FieldCron, "7"},
		{"*/0 * * * *", "", FieldCron, "step"},
		{", * * * *", "", FieldCron, "never comes"},
		{"* , * * *", "", FieldCron, "never comes"},
		{"* * , * *", "", FieldCron, "never comes"},
		{"* * * , *", "", FieldCron, "never comes"},
		{"* * * * ,", "", FieldCron, "never comes"},
		{"0 0 30 2 *", "", FieldCron, "never comes"},
		{"0 0 31 2,4,6,9,11 *", "", FieldCron, "never comes"},
		{"0 0 30-31 feb ?", "", FieldCron, "never comes"},
		{"@every 5m", "", FieldCron, "maxInterval"},
		{"@every", "", FieldCron, "maxInterval"},
		{"@reboot", "", FieldCron, "no instant"},
		{"@Hourly", "", FieldCron, "descriptor"},
		{"@fortnightly", "", FieldCron, "descriptor"},
		{"TZ=Europe/Berlin 0 9 * * *", "", FieldCron, "use timeZone"},
		{"CRON_TZ=Europe/Berlin 0 9 * * *", "", FieldCron, "use timeZone"},
		{" TZ=Europe/Berlin", "", FieldCron, "use timeZone"},
		{"TZ=UTC", "", FieldCron, "use timeZone"},
		{"0 9 * * *\n", "", FieldCron, "control character"},
		{"0\t9 * * *", "", FieldCron, "control character"},
		{"0\u00a09 * * *", "", FieldCron, "not ASCII"},
		{"0 9 * * *" + strings.Repeat(" ", 248), "", FieldCron, "257 bytes"},
		{"0 9 * * *", "Local", FieldTimeZone, "not the name"},
		{"0 9 * * *", "localtime", FieldTimeZone, "not the name"},
		{"0 9 * * *", "right/Europe/Berlin", FieldTimeZone, "not the name"},
		{"0 9 * * *", "Europe/Bonn", FieldTimeZone, "not the name"},
		{"0 9 * * *", "europe/berlin", FieldTimeZone, "not the name"},
		{"0 9 * * *", "Europe", FieldTimeZone, "not the name"},
		{"0 9 * * *", "Europe//Berlin", FieldTimeZone, "not the name"},
		{"0 9 * * *", "../Europe/Berlin", FieldTimeZone, "not the name"},
		{"0 9 * * *", "/etc/localtime", FieldTimeZone, "not the name"},
		{"0 9 * * *", "CEST", FieldTimeZone, "not the name"},
		{"0 9 * * *", "+02:00", FieldTimeZone, "not the name"},
		{"0 9 * * *", " ", FieldTimeZone, "not the name"},
		{"0 9 * * *", strings.Repeat("a", 65), FieldTimeZone, "not the name"},
	} {
		_, err := Parse(c.cron, c.zone)
		got, ok := errors.AsType[*Error](err)
		if !ok || got.Field != c.field || !strings.Contains(got.Detail, c.detail) || !strings.HasPrefix(err.Error(), c.field+": ") {
			t.Errorf("%q in %q: %v, want %s: ... %s", c.cron, c.zone, err, c.field, c.detail)
		}
	}
}

// instants are some instants of a calendar, in order, from one on that is not among them.
type instants struct {
	cron, zone, after string
	want              []string
}

func (c instants) check(t *testing.T) {
	t.Helper()
	calendar, err := Parse(c.cron, c.zone)
	if err != nil {
		t.Error(err)
		return
	}
	at, err := time.Parse(time.RFC3339Nano, c.after)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range c.want {
		got := calendar.Next(at)
		if text := got.UTC().Format(time.RFC3339Nano); text != want {
			t.Errorf("%q in %q: %s after %s, want %s", c.cron, c.zone, text, at.UTC().Format(time.RFC3339Nano), want)
			return
		}
		at = got
	}
}

// An expression means what it means to Knative's PingSource: days of the month and of the week are alternatives,
// unless one of them is a wildcard.
func TestNext_Expressions(t *testing.T) {
	t.Parallel()
	const after = "2026-11-20T09:30:00.5Z" // a Friday
	for _, c := range []instants{
		{"* * * * *", "", after, []string{"2026-11-20T09:31:00Z", "2026-11-20T09:32:00Z"}},
		{"31 9 * * *", "UTC", "2026-11-20T09:31:00Z", []string{"2026-11-21T09:31:00Z"}},
		{"31 9 * * *", "", "2026-11-20T09:30:59.999999999Z", []string{"2026-11-20T09:31:00Z"}},
		{"*/25 9-10 * * *", "", after, []string{"2026-11-20T09:50:00Z", "2026-11-20T10:00:00Z", "2026-11-20T10:25:00Z", "2026-11-20T10:50:00Z", "2026-11-21T09:00:00Z"}},
		{"5/20 23 * * ?", "", after, []string{"2026-11-20T23:05:00Z", "2026-11-20T23:25:00Z", "2026-11-20T23:45:00Z", "2026-11-21T23:05:00Z"}},
		{"0 0 13 * FRI", "", after, []string{"2026-11-27T00:00:00Z", "2026-12-04T00:00:00Z", "2026-12-11T00:00:00Z", "2026-12-13T00:00:00Z"}},
		{"0 0 */10 * 1", "", after, []string{"2026-11-21T00:00:00Z", "2026-11-23T00:00:00Z", "2026-11-30T00:00:00Z", "2026-12-01T00:00:00Z"}},
		{"0 0 * * sun", "", after, []string{"2026-11-22T00:00:00Z", "2026-11-29T00:00:00Z"}},
		{"0 12 31 * *", "", after, []string{"2026-12-31T12:00:00Z", "2027-01-31T12:00:00Z", "2027-03-31T12:00:00Z"}},
		{"0 0 29 2 *", "", after, []string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"}},
		{"0 0 29 2 ?", "", "2092-03-01T00:00:00Z", []string{"2096-02-29T00:00:00Z", "2104-02-29T00:00:00Z"}},
		{"59 23 31 12 *", "", after, []string{"2026-12-31T23:59:00Z", "2027-12-31T23:59:00Z"}},
		{"@hourly", "", after, []string{"2026-11-20T10:00:00Z", "2026-11-20T11:00:00Z"}},
		{"@daily", "Asia/Kolkata", after, []string{"2026-11-20T18:30:00Z", "2026-11-21T18:30:00Z"}},
		{"@midnight", "", after, []string{"2026-11-21T00:00:00Z"}},
		{"@weekly", "", after, []string{"2026-11-22T00:00:00Z"}},
		{"@monthly", "", after, []string{"2026-12-01T00:00:00Z", "2027-01-01T00:00:00Z"}},
		{"@yearly", "", after, []string{"2027-01-01T00:00:00Z"}},
		{"@annually", "Pacific/Auckland", after, []string{"2026-12-31T11:00:00Z", "2027-12-31T11:00:00Z"}},
		{"@hourly", "Asia/Kolkata", after, []string{"2026-11-20T10:30:00Z", "2026-11-20T11:30:00Z"}},
		{"0 9 * * *", "Asia/Kathmandu", after, []string{"2026-11-21T03:15:00Z"}},
	} {
		c.check(t)
	}
}

// When clocks change, a fixed time is skipped where it does not exist, and comes at the first of two; wildcards and
// steps of hours follow real time.
func TestNext_WhenClocksChange(t *testing.T) {
	t.Parallel()
	for _, c := range []instants{
		// Berlin 2027: on March 28 from 02:00 to 03:00 at 01:00Z, on October 31 from 03:00 to 02:00 at 01:00Z.
		{"30 2 * * *", "Europe/Berlin", "2027-03-26T12:00:00Z", []string{"2027-03-27T01:30:00Z", "2027-03-29T00:30:00Z"}},
		{"0 3 * * *", "Europe/Berlin", "2027-03-27T12:00:00Z", []string{"2027-03-28T01:00:00Z", "2027-03-29T01:00:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2027-10-30T12:00:00Z", []string{"2027-10-31T00:30:00Z", "2027-11-01T01:30:00Z"}},
		{"*/30 1-3 * * *", "Europe/Berlin", "2027-10-30T22:59:00Z", []string{
			"2027-10-30T23:00:00Z", "2027-10-30T23:30:00Z", "2027-10-31T00:00:00Z", "2027-10-31T00:30:00Z", "2027-10-31T02:00:00Z", "2027-10-31T02:30:00Z", "2027-11-01T00:00:00Z",
		}},
		{"30 2 * * *", "Europe/Berlin", "2027-10-31T00:45:00Z", []string{"2027-11-01T01:30:00Z"}}, // between the two
		{"30 2 * * *", "Europe/Berlin", "2027-10-31T01:15:00Z", []string{"2027-11-01T01:30:00Z"}},
		{"30 * * * *", "Europe/Berlin", "2027-10-30T23:45:00Z", []string{"2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z", "2027-10-31T02:30:00Z"}},
		{"30 */2 * * *", "Europe/Berlin", "2027-10-30T23:45:00Z", []string{"2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z", "2027-10-31T03:30:00Z"}},
		{"30 2/22 * * *", "Europe/Berlin", "2027-10-30T23:45:00Z", []string{"2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z", "2027-11-01T01:30:00Z"}},
		{"30 0-23 * * *", "Europe/Berlin", "2027-10-30T23:45:00Z", []string{"2027-10-31T00:30:00Z", "2027-10-31T02:30:00Z"}},
		{"30 ? * * *", "Europe/Berlin", "2027-03-27T23:45:00Z", []string{"2027-03-28T00:30:00Z", "2027-03-28T01:30:00Z"}},
		{"@hourly", "Europe/Berlin", "2027-10-30T23:30:00Z", []string{"2027-10-31T00:00:00Z", "2027-10-31T01:00:00Z", "2027-10-31T02:00:00Z"}},
		{"30 2 28 3 *", "Europe/Berlin", "2026-12-01T00:00:00Z", []string{"2028-03-28T00:30:00Z"}},
		// New York 2026: on March 8 at 07:00Z, on November 1 at 06:00Z.
		{"30 2 * * *", "America/New_York", "2026-03-07T00:00:00Z", []string{"2026-03-07T07:30:00Z", "2026-03-09T06:30:00Z"}},
		{"30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", []string{"2026-11-01T05:30:00Z", "2026-11-02T06:30:00Z"}},
		{"*/30 * * * *", "America/New_York", "2026-11-01T04:45:00Z", []string{
			"2026-11-01T05:00:00Z", "2026-11-01T05:30:00Z", "2026-11-01T06:00:00Z", "2026-11-01T06:30:00Z", "2026-11-01T07:00:00Z",
		}},
		// Lord Howe 2026: half an hour. On April 5 from 02:00 to 01:30 at 15:00Z of the day before; on October 4 from
		// 02:00 to 02:30 at 15:30Z of the day before.
		{"45 1 * * *", "Australia/Lord_Howe", "2026-04-03T20:00:00Z", []string{"2026-04-04T14:45:00Z", "2026-04-05T15:15:00Z"}},
		{"15,45 * * * *", "Australia/Lord_Howe", "2026-04-04T14:20:00Z", []string{"2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z", "2026-04-04T15:45:00Z"}},
		{"15 2 * * *", "Australia/Lord_Howe", "2026-10-02T00:00:00Z", []string{"2026-10-02T15:45:00Z", "2026-10-04T15:15:00Z"}},
		{"15 * * * *", "Australia/Lord_Howe", "2026-10-03T14:00:00Z", []string{"2026-10-03T14:45:00Z", "2026-10-03T16:15:00Z"}},
		// Asuncion 2023: on October 1 from 00:00 to 01:00 at 04:00Z, on March 26 from 00:00 to 23:00 of the day before at 03:00Z.
		{"0 0 * * *", "America/Asuncion", "2023-09-29T12:00:00Z", []string{"2023-09-30T04:00:00Z", "2023-10-02T03:00:00Z"}},
		{"@daily", "America/Asuncion", "2023-09-29T12:00:00Z", []string{"2023-09-30T04:00:00Z", "2023-10-02T03:00:00Z"}},
		{"30 23 * * *", "America/Asuncion", "2023-03-25T12:00:00Z", []string{"2023-03-26T02:30:00Z", "2023-03-27T03:30:00Z"}},
		{"0 0 * * *", "America/Asuncion", "2023-03-25T12:00:00Z", []string{"2023-03-26T04:00:00Z", "2023-03-27T04:00:00Z"}},
		{"30 */23 * * *", "America/Asuncion", "2023-03-25T12:00:00Z", []string{"2023-03-26T02:30:00Z", "2023-03-26T03:30:00Z", "2023-03-26T04:30:00Z"}},
		// Beirut 2026: on March 29 from 00:00 to 01:00 at 22:00Z of the day before.
		{"0 0 * * 0", "Asia/Beirut", "2026-03-22T12:00:00Z", []string{"2026-04-04T21:00:00Z"}},
		// Apia 2011: after December 29 comes December 31, at 10:00Z.
		{"0 12 * * *", "Pacific/Apia", "2011-12-29T00:00:00Z", []string{"2011-12-29T22:00:00Z", "2011-12-30T22:00:00Z"}},
		{"0 12 30 12 *", "Pacific/Apia", "2011-12-01T00:00:00Z", []string{"2012-12-29T22:00:00Z"}},
		{"0 * * * *", "Pacific/Apia", "2011-12-30T08:30:00Z", []string{"2011-12-30T09:00:00Z", "2011-12-30T10:00:00Z", "2011-12-30T11:00:00Z"}},
		// Kolkata and Phoenix have no such changes.
		{"30 2 * * *", "Asia/Kolkata", "2027-10-30T12:00:00Z", []string{"2027-10-30T21:00:00Z", "2027-10-31T21:00:00Z"}},
		{"30 2 * * *", "America/Phoenix", "2026-03-07T12:00:00Z", []string{"2026-03-08T09:30:00Z", "2026-03-09T09:30:00Z"}},
		// The rules hold for ever, and the last day of a leap year ends.
		{"0 1 1 * *", "Europe/Berlin", "2040-12-31T12:00:00Z", []string{"2041-01-01T00:00:00Z"}},
		{"@hourly", "America/New_York", "2040-12-31T23:30:00Z", []string{"2041-01-01T00:00:00Z", "2041-01-01T01:00:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2094-03-27T12:00:00Z", []string{"2094-03-29T00:30:00Z"}},
		{"30 2 * * *", "Europe/Berlin", "2094-10-30T12:00:00Z", []string{"2094-10-31T00:30:00Z", "2094-11-01T01:30:00Z"}},
	} {
		c.check(t)
	}
}
