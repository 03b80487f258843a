package etcdlog_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica/etcdlog"
)

// A member that lost its disk was added by one member and asked another one, which had not applied this yet, for the
// members: its process ended with "member count is unequal". It waits until both others know of it.
func TestReplacement_OthersMustKnowOfIt(t *testing.T) {
	t.Parallel()
	const own = "127.0.0.1:1"
	member := func(id int, address string, learner bool) string {
		return fmt.Sprintf(`{"id":%d,"peerURLs":["http://%s"],"isLearner":%t}`, id, address, learner)
	}
	others := member(1, "127.0.0.1:2", false) + "," + member(2, "127.0.0.1:3", false)
	list := func(more ...string) string { return "[" + strings.Join(append([]string{others}, more...), ",") + "]" }
	late := []string{
		"no list",
		list(member(3, own, false)),          // the removed one is still there
		list(),                               // it is removed
		list(member(4, "127.0.0.1:4", true)), // a learner elsewhere
		list(member(4, own, true)),           // this one
	}
	var asked atomic.Int64
	says := func(answers []string, asked *atomic.Int64) string {
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/members" {
				t.Errorf("%s is asked for", r.URL.Path)
			}
			_, _ = io.WriteString(w, answers[min(int(asked.Add(1)), len(answers))-1])
		}))
		t.Cleanup(srv.Close)
		return strings.TrimPrefix(srv.URL, "http://")
	}
	o := etcdlog.Options{Member: "b", Peers: map[string]string{"a": says(late[4:5], new(atomic.Int64)), "b": own, "c": says(late, &asked)}}
	if err := etcdlog.AwaitApplied(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if n := asked.Load(); n != 5 {
		t.Errorf("the member that is behind was asked %d times, want 5", n)
	}
}

// A member that does not answer, or never knows of the replacement, does not hold the start up for ever.
func TestReplacement_WaitEnds(t *testing.T) {
	t.Parallel()
	o := etcdlog.Options{Member: "b", Peers: map[string]string{"a": free(t), "b": free(t), "c": free(t)}}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := etcdlog.AwaitApplied(ctx, o); err != nil {
		t.Error(err)
	}
}
