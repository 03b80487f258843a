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

// members asks each adapter of each group. There is none for a single adapter, and without a
// cluster.
func (s *session) members(ctx context.Context, a *why.Adapter) why.Groups {
	if s.config == nil || a == nil || a.Wanted < 2 {
		return nil
	}
	all := make([]why.Member, a.Wanted)
	concurrently(len(all), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, memberPatience)
		defer cancel()
		metrics, err := s.scrapePod(ctx, podName(i))
		all[i] = why.NewMember(i, podName(i), metrics, err)
	})
	return why.NewGroups(all)
}

// podsOfOtherGroups are the pods of all groups of adapters but the first.
func (s *session) podsOfOtherGroups(ctx context.Context) (names []string) {
	if a := s.adapterSet(ctx); a != nil {
		for i := len(pods); i < a.Wanted; i++ {
			names = append(names, podName(i))
		}
	}
	return names
}

// measures are the members of groups with their metrics, or the metrics of a single adapter.
type measures struct {
	groups why.Groups
	single *why.Metrics
	err    error // of reading the single adapter's
}

// of are the metrics of the adapter that serves the source.
func (m measures) of(namespace, name string) (*why.Metrics, error) {
	if len(m.groups) == 0 {
		return m.single, m.err
	}
	if metrics := m.groups.Metrics(namespace, name); metrics != nil {
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
func (s *session) measure(ctx context.Context, groups why.Groups) (m measures) {
	switch m.groups = groups; {
	case len(groups) > 0:
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
	return readMetrics(ctx, &http.Client{Transport: t, Timeout: s.requestTimeout}, "http://"+host+"."+s.systemNamespace+":"+strconv.Itoa(metricsPort))
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

// memberFindings are the lines of doctor about groups: each group, and each of its members.
func memberFindings(all why.Groups) (found []finding) {
	for _, g := range all {
		text, problem := g.Sentence()
		found = append(found, finding{Subject: all.Title(g), OK: !problem, Detail: text})
		for i := range g {
			found = append(found, finding{Subject: "member " + g[i].Pod, OK: !g[i].Problem(), Detail: g.About(&g[i])})
		}
	}
	return found
}

// memberLine is the line of top about groups.
func memberLine(all why.Groups) string {
	if len(all) == 1 {
		return "Members of " + adapterName + ": " + memberWords(all[0]) + "."
	}
	var parts []string
	for _, g := range all {
		parts = append(parts, all.Title(g)+": "+memberWords(g))
	}
	return "Members of " + adapterName + ", " + strings.Join(parts, "; ") + "."
}

// memberWords has some words about each member of a group.
func memberWords(g why.Group) string {
	var parts []string
	for i := range g {
		m := &g[i]
		name := strings.TrimPrefix(m.Pod, adapterName+"-")
		switch m.State() {
		case why.MemberSilent:
			parts = append(parts, name+" does not answer")
		case why.MemberOwns:
			parts = append(parts, name+" owns the shard")
		case why.MemberAlone:
			parts = append(parts, name+" has no majority")
		default:
			parts = append(parts, fmt.Sprintf("%s is %s behind", name, m.Behind))
		}
	}
	return strings.Join(parts, ", ")
}
