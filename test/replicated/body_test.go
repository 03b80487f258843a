package replicated

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/reschedule-dev/reschedule/test/internal/harness"
)

// The largest body that a single adapter takes is taken by each member too.
func TestGroup_LargestBody(t *testing.T) {
	t.Parallel()
	g := start(t)
	data := strings.Repeat("d", 250<<10)
	for _, member := range g.members {
		var items []string
		var last string
		for range 65 {
			last = g.key()
			items = append(items, fmt.Sprintf(`{"key":%q,"delay":"24h","event":{"data":%q}}`, last, data))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*harness.Patience)
		all := `{"items":[` + strings.Join(items, ",") + `]}`
		r, err := harness.Do(ctx, http.MethodPost, member.URL+source+"/schedules", all)
		for err == nil && r.Status == http.StatusServiceUnavailable { // a lease may end while a busy machine writes so much
			r, err = harness.Do(ctx, http.MethodPost, member.URL+source+"/schedules", all)
		}
		if err != nil || r.Status != http.StatusOK || strings.Contains(string(r.Body), `"code"`) {
			t.Errorf("a bulk call of 16 MiB: %v %.300v", err, r)
		} else if r, err = harness.Do(ctx, http.MethodGet, g.url()+source+"/schedules/"+last, ""); err != nil || !strings.Contains(string(r.Body), data) {
			t.Errorf("its last key: %v %.300v", err, r)
		}
		cancel()
	}
}
