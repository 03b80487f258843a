package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"

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
	var wait sync.WaitGroup
	for i := range all {
		m := &all[i]
		m.Pod = pods[i]
		wait.Go(func() { m.Silence = s.askMember(ctx, m) })
	}
	wait.Wait()
	return all
}

// membersOnce is members for a command that looks once: the session asks once.
func (s *session) membersOnce(ctx context.Context, a *why.Adapter) why.Group {
	s.asked.Do(func() { s.known = s.members(ctx, a) })
	return s.known
}

func (s *session) askMember(ctx context.Context, m *why.Member) error {
	ctx, cancel := context.WithTimeout(ctx, memberPatience)
	defer cancel()
	known := false
	err := s.scrapePod(ctx, m.Pod, func(text io.Reader) { known = m.ReadMetrics(text) })
	if err == nil && !known {
		err = errors.New("its metrics have no reschedule_shard_owner, so it belongs to no group")
	}
	return err
}

// scrapePod reads the metrics of one adapter of a group, by a port-forward of its own.
func (s *session) scrapePod(ctx context.Context, pod string, read func(text io.Reader)) error {
	t := s.forward(pod)
	defer t.close()
	client, err := s.http(t, "")
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	return scrape(ctx, client, s.metricsAddress(pod), read)
}

// metricsAddress is the address of the metrics for a client that goes through a tunnel.
func (s *session) metricsAddress(host string) string {
	return "http://" + host + "." + s.systemNamespace + ":" + strconv.Itoa(metricsPort)
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
