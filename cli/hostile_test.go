package main

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/sdk"
)

// hostileKeys are keys that a path, a shell, a terminal or a parser may take for something else.
var hostileKeys = []string{
	" ", "\u00a0", "\u200b", "\ufeff", "%", "%2F", "%zz", "/", "//", "a//b", ".", "..", "../..", "a/../b", "a\u202eb", "\u2028", "a b", "'\"`$(id)", "\\", "?x=1&y#f", "a+b",
	"-x", "--all", "null", "{}", "<&>", "e\u0301", "\U0001f469\u200d\U0001f469\u200d\U0001f467", strings.Repeat("x", 512), strings.Repeat("\u00fc", 256),
}

// hostileEvents are every kind of event.
var hostileEvents = []string{
	`{"type":"t","datacontenttype":"application/octet-stream","data_base64":"AAH/gA=="}`,
	`{"type":"t","data_base64":"AAEC"}`, // no type, and no JSON
	`{"data":{ "n" : 12345678901234567890, "x": [1, 2.50, 1e400] }}`,
	`{"datacontenttype":"text/plain","data":"a\u202e\u0000\n\"b"}`,
	`{"datacontenttype":"text/plain","data":""}`,
	`{"datacontenttype":"text/plain","data":"{ \"a\" : 1 }"}`,
	`{"data":"text"}`, `{"data":null}`, `{"data":false}`, `{}`,
	`{"subject":"<&>\u202e","dataschema":"http://x/y?a=b&c","team":"platform","yes":true,"n":-2147483648,"empty":""}`,
}

// hostileTimes are every kind of time. SOON is in an hour.
var hostileTimes = []string{
	`"dueAt":"2050-01-02T03:04:05.123456789Z"`,
	`"dueAt":"2050-01-02T03:04:05.123456789Z","priority":"low"`,
	`"dueAt":"2060-01-01T00:00:00Z","cron":"0 3 29 2 *","timeZone":"Europe/Berlin","priority":"high"`, // due at its next instant
	`"dueAt":"SOON","cron":"0 3 29 FEB ?","slack":"1m0s"`,                                             // sooner than that
}

// export | import into another source keeps hostile keys, every kind of event, with the blanks of their data, and every kind of time.
func TestTransfer_HostileKeysAndEvents(t *testing.T) {
	t.Parallel()
	var lines strings.Builder
	soon := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	for i, key := range hostileKeys {
		name, err := json.Marshal(key)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&lines, `{"key":%s,%s,"uid":"u-%d","reason":"<r> \u202e","maxInterval":"1h30m0s","expiresAt":"2060-01-01T00:00:00Z","event":%s}`+"\n",
			name, strings.ReplaceAll(hostileTimes[i%len(hostileTimes)], "SOON", soon), i, hostileEvents[i%len(hostileEvents)])
	}
	own := regexp.MustCompile(`"(revision|scheduledAt)":[^,]+,`) // of each source
	transferred := func(input, source string) (export string) {
		t.Helper()
		if r := runWith(t, input, "import", source, "-f", "-"); r.code != 0 || r.stdout != fmt.Sprintf("%d keys imported, 0 kept as they were\n", len(hostileKeys)) {
			t.Fatalf("import: %d, %s%s", r.code, r.stdout, r.err)
		}
		return own.ReplaceAllString(ok(t, "export", source), "")
	}
	first := transferred(lines.String(), "one")
	second := transferred(first, "two")
	for part, kind := range map[string]int{
		`"priority":"low"`: 1, `"priority":"high"`: 2, `"cron":"0 3 29 2 *"`: 2, `"timeZone":"Europe/Berlin"`: 2, `"cron":"0 3 29 FEB ?"`: 3, `"dueAt":"` + soon + `"`: 3,
	} {
		if got, want := strings.Count(first, part), (len(hostileKeys)-kind+3)/len(hostileTimes); got != want {
			t.Errorf("%d keys have %s, want %d", got, part, want)
		}
	}
	if first != second {
		t.Errorf("exported was\n%s, and then\n%s", first, second)
	}
	var keys []string
	for line := range strings.Lines(second) {
		var k sdk.Schedule
		if err := json.Unmarshal([]byte(line), &k); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		keys = append(keys, k.Key)
		if want := `{ "n" : 12345678901234567890, "x": [1, 2.50, 1e400] }`; k.Key == hostileKeys[2] && string(k.Event.Data) != want {
			t.Errorf("the data is %s, want %s", k.Event.Data, want)
		}
	}
	slices.Sort(keys)
	if want := slices.Sorted(slices.Values(hostileKeys)); !slices.Equal(keys, want) {
		t.Errorf("exported are %q, want %q", keys, want)
	}
	if got := ok(t, "key", "list", "two", "--all", "-o", "name"); strings.Count(got, "\n") != len(hostileKeys) || !strings.Contains(got, "a\u202eb\n") {
		t.Errorf("the names are %q", got)
	}
}
