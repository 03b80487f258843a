package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/reschedule-dev/reschedule/cli/internal/why"
)

// A member that does not answer must not hold up what is known of the others.
const memberPatience = 3 * time.Second

// members asks each adapter of the group. There is none for a single adapter, and without a
// cluster.
func (s *session) members(ctx context.Context, a *why.Adapter) why.Group {
	if s.config == nil || a == nil || a.Wanted < 2 {
		return nil
	}
	all := make(why.Group, len(pods))
	concurrently(len(all), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, memberPatience)
		defer cancel()
		metrics, err := s.scrapePod(ctx, pods[i])
		all[i] = why.NewMember(pods[i], metrics, err)
	})
	return all
}

// measures are the members of a group with their metrics, or the metrics of a single adapter.
type measures struct {
	group  why.Group
	single *why.Metrics
	err    error // of reading the single adapter's
}

// metrics are the metrics of the adapter that serves the sources.
func (m measures) metrics() (*why.Metrics, error) {
	if len(m.group) == 0 {
		return m.single, m.err
	}
	if metrics := m.group.Metrics(); metrics != nil {
		return metrics, nil
	}
	return nil, errors.New("the metrics of the adapter could not be read")
}

// measured are the measures for a command that looks once: the session asks once.
func (s *session) measured(ctx context.Context, a *why.Adapter) measures {
	s.asked.Do(func() { s.known = s.measure(ctx, s.members(ctx, a)) })
	return s.known
}

// measure reads the metrics of the adapter. The metrics of a group come with its members.
func (s *session) measure(ctx context.Context, group why.Group) (m measures) {
	switch m.group = group; {
	case len(group) > 0:
	case s.config == nil && s.metricsServer == "":
		m.err = errors.New("--metrics-server was not given")
	case s.config == nil:
		m.single, m.err = readMetrics(ctx, &http.Client{Timeout: s.requestTimeout}, s.metricsServer)
	default:
		m.single, m.err = s.scrape(ctx, s.tunnel, adapterName)
	}
	return m
}

// scrapePod reads the metrics of one adapter of a group, by a port-forward of its own.
func (s *session) scrapePod(ctx context.Context, pod string) (*why.Metrics, error) {
	t := s.forward(pod)
	defer t.close()
	return s.scrape(ctx, t, pod)
}

// scrape reads the metrics of the adapter at the end of a tunnel.
func (s *session) scrape(ctx context.Context, through *tunnel, host string) (*why.Metrics, error) {
	t, err := newTransport(through, "")
	if err != nil {
		return nil, err
	}
	defer t.CloseIdleConnections()
	return readMetrics(ctx, &http.Client{Transport: t, Timeout: s.requestTimeout}, "http://"+host+"."+s.adapter.namespace(ctx)+":"+strconv.Itoa(metricsPort))
}

// maxMetrics bounds what is read of the metrics.
const maxMetrics = 64 << 20

// readMetrics reads the metrics of the adapter at the address of its admin listener.
func readMetrics(ctx context.Context, client *http.Client, address string) (*why.Metrics, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSuffix(address, "/")+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics was answered %s", resp.Status)
	}
	return why.ReadMetrics(io.LimitReader(resp.Body, maxMetrics)), nil
}

// callsAtOnce is how many calls a command makes at one time.
const callsAtOnce = 8

// concurrently calls f for 0 to n-1, some at a time.
func concurrently(n int, f func(i int)) {
	var calls errgroup.Group
	calls.SetLimit(callsAtOnce)
	for i := range n {
		calls.Go(func() error {
			f(i)
			return nil
		})
	}
	_ = calls.Wait() // there is none
}

// memberFindings are the lines of doctor about a group: one of the group, and one of each of its members.
func memberFindings(g why.Group) (found []finding) {
	if len(g) == 0 {
		return nil
	}
	text, problem := g.Sentence()
	found = append(found, finding{Subject: "group", OK: !problem, Detail: text})
	for i := range g {
		found = append(found, finding{Subject: "member " + g[i].Pod, OK: !g[i].Problem(), Detail: g.About(&g[i])})
	}
	return found
}

// memberLine is the line of top about a group: some words about each member.
func memberLine(g why.Group) string {
	var parts []string
	for i := range g {
		m := &g[i]
		name := strings.TrimPrefix(m.Pod, adapterName+"-")
		switch m.State() {
		case why.MemberSilent:
			parts = append(parts, name+" does not answer")
		case why.MemberOwns:
			parts = append(parts, name+" owns the group")
		case why.MemberAlone:
			parts = append(parts, name+" has no majority")
		default:
			parts = append(parts, fmt.Sprintf("%s is %s behind", name, m.Behind))
		}
	}
	return "Members of " + adapterName + ": " + strings.Join(parts, ", ") + "."
}
