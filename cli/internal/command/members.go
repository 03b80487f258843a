package command

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/why"
)

// member is one adapter of a group, as its own metrics show it.
type member struct {
	pod      string
	owner    bool          // it owns the shard: it delivers, and answers the calls of all members
	majority bool          // it is in touch with a majority of the group
	applied  int64         // the number of the last entry of the log that it has
	behind   time.Duration // for how long it may have missed changes
	err      error         // it did not answer, and all else is unknown
}

// A member that does not answer must not hold up what is known of the others.
const memberPatience = 5 * time.Second

// farBehind is when a standby is a problem: the alert RescheduleMemberBehind has the same.
const farBehind = time.Minute

// members asks each adapter of a group. A single adapter is not a group.
func (s *session) members(ctx context.Context, a *why.Adapter) []member {
	if a == nil || a.Wanted < 2 {
		return nil
	}
	var all []member
	for _, pod := range pods[:min(a.Wanted, len(pods))] {
		m := member{pod: pod}
		m.err = s.askMember(ctx, &m)
		all = append(all, m)
	}
	return all
}

func (s *session) askMember(ctx context.Context, m *member) error {
	ctx, cancel := context.WithTimeout(ctx, memberPatience)
	defer cancel()
	dial := s.dialer
	if s.env.dial == nil {
		t := &tunnel{config: s.tunnel.config, namespace: s.systemNamespace, pods: []string{m.pod}, done: make(chan struct{})}
		defer t.close()
		dial = t.dial
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, metricsPort) },
	}}
	known := false
	err := scrape(ctx, client, "http://"+m.pod+"."+s.systemNamespace+":9090", func(text io.Reader) { known = m.read(text) })
	if err == nil && !known {
		err = errors.New("its metrics have no reschedule_shard_owner, so it belongs to no group")
	}
	return err
}

// read reads the metrics, and reports that they are of an adapter in a group.
func (m *member) read(text io.Reader) (known bool) {
	for lines := bufio.NewScanner(text); lines.Scan(); {
		name, _, value, ok := sample(lines.Text())
		if !ok {
			continue
		}
		switch name {
		case "reschedule_shard_owner":
			known, m.owner = true, value > 0
		case "reschedule_shard_majority":
			m.majority = value > 0
		case "reschedule_shard_applied":
			m.applied = int64(value)
		case "reschedule_shard_behind_seconds":
			m.behind = time.Duration(value * float64(time.Second)).Round(10 * time.Millisecond)
		}
	}
	return known
}

// memberFindings are the lines of doctor about a group: the group, and each member.
func memberFindings(all []member) []finding {
	if len(all) == 0 {
		return nil
	}
	whole := finding{Subject: "group", Detail: "No member owns the shard: nothing is delivered, and calls get 503. It needs a majority of the members."}
	newest, unknown := int64(0), 0
	for _, m := range all {
		newest = max(newest, m.applied)
		if m.err != nil {
			unknown++
		}
		if m.owner {
			whole.OK, whole.Detail = true, m.pod+" owns the shard."
		}
	}
	if !whole.OK && unknown > 0 {
		whole.Detail = fmt.Sprintf("It is not known which member owns the shard: %d of %d did not answer.", unknown, len(all))
	}
	found := []finding{whole}
	for _, m := range all {
		f := finding{Subject: "member " + m.pod, OK: true}
		switch {
		case m.err != nil:
			f.OK, f.Detail = false, "It did not answer: "+strings.TrimSuffix(m.err.Error(), ".")+"."
		case m.owner:
			f.Detail = fmt.Sprintf("It owns the shard, and has entry %d of the log.", m.applied)
		case !m.majority:
			f.OK, f.Detail = false, fmt.Sprintf("It is in touch with no majority of the group, and may lack the changes of the last %s.", m.behind)
		case m.behind > farBehind:
			f.OK, f.Detail = false, fmt.Sprintf("It is a standby, and may lack the changes of the last %s.", m.behind)
		default:
			f.Detail = fmt.Sprintf("It is a standby: it lacks %d entries of the log, and may lack the changes of the last %s.", newest-m.applied, m.behind)
		}
		found = append(found, f)
	}
	return found
}

// memberLine is the line of top about a group.
func memberLine(all []member) string {
	var parts []string
	for _, m := range all {
		name := strings.TrimPrefix(m.pod, adapterName+"-")
		switch {
		case m.err != nil:
			parts = append(parts, name+" does not answer")
		case m.owner:
			parts = append(parts, name+" owns the shard")
		case !m.majority:
			parts = append(parts, name+" has no majority")
		default:
			parts = append(parts, fmt.Sprintf("%s is %s behind", name, m.behind))
		}
	}
	return "Members of " + adapterName + ": " + strings.Join(parts, ", ") + "."
}
