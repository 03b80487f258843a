package schedule

import "testing"

// Data is JSON by its content type.
func TestEvent_IsJSON(t *testing.T) {
	t.Parallel()
	for contentType, want := range map[string]bool{
		"": true, "application/json": true, "text/json": true, "Application/JSON ; charset=utf-8": true,
		"application/vnd.x+json": true, "application/vnd.x+json;v=1": true, ";charset=utf-8": true,
		"text/plain": false, "application/jsonl": false, "application/json-seq": false, "json": false,
		"application/xml; of=+json": false,
	} {
		if got := (&Event{DataContentType: contentType}).IsJSON(); got != want {
			t.Errorf("%q: %v", contentType, got)
		}
	}
}
