package sink

import (
	"testing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// What is remembered of a URL keeps no certificates, of which a source may have 256 KiB.
func TestRoutes_KeepNoCertificates(t *testing.T) {
	t.Parallel()
	s, _ := newSender(t)
	for _, certs := range []string{"some", "others"} {
		must(t, errorOf(s.route(schedule.Target{URL: "http://sink", CACerts: certs, Audience: certs})))
	}
	if n := len(s.routes.young); n != 1 {
		t.Errorf("%d routes are kept for one URL", n)
	}
}
