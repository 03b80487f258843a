package command

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/page"
	"github.com/reschedule-dev/reschedule/pkg/why"
)

// A member that does not answer must not hold up what is known of the others.
const memberPatience = 3 * time.Second

// members asks each adapter of a group. It is empty for a single adapter, and without a cluster.
func (s *session) members(ctx context.Context, a *why.Adapter) why.Group {
	if s.config == nil || a == nil || a.Wanted < 2 {
		return nil
	}
	all := make(why.Group, min(a.Wanted, len(pods)))
	page.Each(len(all), func(i int) {
		ctx, cancel := context.WithTimeout(ctx, memberPatience)
		defer cancel()
		metrics, err := s.scrapePod(ctx, pods[i])
		all[i] = why.NewMember(pods[i], metrics, err)
	})
	return all
}

// measured are the members, and the metrics of the adapter, for a command that looks once:
// the session asks once.
func (s *session) measured(ctx context.Context, a *why.Adapter) (why.Group, *why.Metrics) {
	s.asked.Do(func() {
		s.group = s.members(ctx, a)
		s.known = s.metrics(ctx, s.group)
	})
	return s.group, s.known
}

// metrics reads the metrics of the adapter: in a group they are the ones of the owner of the
// shard, since a standby knows of no refusal. Nil: they are not known.
func (s *session) metrics(ctx context.Context, group why.Group) *why.Metrics {
	var m *why.Metrics
	switch owner := group.Owner(); {
	case owner != nil:
		return owner.Metrics
	case len(group) > 0 || s.config == nil && s.metricsServer == "":
	case s.config == nil:
		m, _ = page.ReadMetrics(ctx, &http.Client{Timeout: s.requestTimeout}, s.metricsServer)
	default:
		m, _ = s.scrape(ctx, s.tunnel, adapterName)
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
	client, err := s.http(through, "")
	if err != nil {
		return nil, err
	}
	defer client.CloseIdleConnections()
	return page.ReadMetrics(ctx, client, "http://"+host+"."+s.systemNamespace+":"+strconv.Itoa(metricsPort))
}

// memberFindings are the lines of doctor about a group: the group, and each member.
func memberFindings(all why.Group) []finding {
	if len(all) == 0 {
		return nil
	}
	text, problem := all.Sentence()
	found := []finding{{Subject: "group", OK: !problem, Detail: text}}
	for i := range all {
		m := &all[i]
		found = append(found, finding{Subject: "member " + m.Pod, OK: !m.Problem(), Detail: all.About(m)})
	}
	return found
}

// memberLine is the line of top about a group.
func memberLine(all why.Group) string {
	var parts []string
	for i := range all {
		m := &all[i]
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
	return "Members of " + adapterName + ": " + strings.Join(parts, ", ") + "."
}
