package command

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/cli/internal/page"
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
	page.Each(len(all), func(i int) {
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
	single *why.Metrics // nil: not known
}

// of are the metrics of the adapter that serves the source, nil if they are not known.
func (m measures) of(namespace, name string) *why.Metrics {
	if len(m.groups) > 0 {
		return m.groups.Metrics(namespace, name)
	}
	return m.single
}

// measured are the measures for a command that looks once: the session asks once.
func (s *session) measured(ctx context.Context, a *why.Adapter) measures {
	s.asked.Do(func() { s.known = s.measure(ctx, s.members(ctx, a)) })
	return s.known
}

// measure reads the metrics of the adapter. The metrics of a group come with its members.
func (s *session) measure(ctx context.Context, groups why.Groups) measures {
	var m *why.Metrics
	switch {
	case len(groups) > 0 || s.config == nil && s.metricsServer == "":
	case s.config == nil:
		m, _ = page.ReadMetrics(ctx, &http.Client{Timeout: s.requestTimeout}, s.metricsServer)
	default:
		m, _ = s.scrape(ctx, s.tunnel, adapterName)
	}
	return measures{groups, m}
}

// scrapePod reads the metrics of one adapter of a group, by a port-forward of its own.
func (s *session) scrapePod(ctx context.Context, pod string) (*why.Metrics, error) {
	t := s.forward(pod)
	defer t.close()
	return s.scrape(ctx, t, pod)
}

// scrape reads the metrics of the adapter at the end of a tunnel.
func (s *session) scrape(ctx context.Context, through *tunnel, host string) (*why.Metrics, error) {
	client, err := s.http(through, "")
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	return page.ReadMetrics(ctx, client, "http://"+host+"."+s.systemNamespace+":"+strconv.Itoa(metricsPort))
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
