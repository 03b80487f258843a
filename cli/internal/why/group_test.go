package why

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// Each state of a member has its sentence, and a standby is a problem only when it is a
// minute behind.
func TestMember_States(t *testing.T) {
	t.Parallel()
	owner := Member{Pod: "owner", Owner: true, Majority: true, Applied: 100}
	for name, c := range map[string]struct {
		member  Member
		state   MemberState
		problem bool
		about   string
	}{
		"owner":          {Member{Owner: true, Majority: true, Applied: 42}, MemberOwns, false, "It owns the group, and has entry 42 of the log."},
		"standby":        {Member{Majority: true, Applied: 93, Behind: 40 * time.Millisecond}, MemberFollows, false, "it lacks 7 entries of the log, and may lack the changes of the last 40ms."},
		"a minute late":  {Member{Majority: true, Behind: farBehind}, MemberFollows, false, "of the last 1m0s."},
		"later":          {Member{Majority: true, Behind: farBehind + 1}, MemberLags, true, "of the last 1m0.000000001s."},
		"alone":          {Member{Behind: time.Hour}, MemberAlone, true, "in touch with no majority"},
		"silent":         {Member{Owner: true, Silence: errors.New("refused")}, MemberSilent, true, "It did not answer: refused."},
		"owner, a while": {Member{Owner: true, Majority: true, Behind: time.Hour}, MemberOwns, false, "It owns the group"},
	} {
		about := Group{owner, c.member}.About(&c.member)
		if got := c.member.State(); got != c.state || c.member.Problem() != c.problem || !strings.Contains(about, c.about) {
			t.Errorf("%s: %s, %v, %q", name, got, c.member.Problem(), about)
		}
	}
}

// The group names its owner. Without one it tells a group that has no owner from one that
// cannot be asked.
func TestGroup_Sentence(t *testing.T) {
	t.Parallel()
	owner, standby, silent := Member{Pod: "a", Owner: true, Majority: true}, Member{Pod: "b", Majority: true}, Member{Pod: "c", Silence: errors.New("refused")}
	for _, c := range []struct {
		group   Group
		text    string
		problem bool
	}{
		{Group{standby, owner, silent}, "a owns the group.", false},
		{Group{standby, standby}, "No member owns the group", true},
		{Group{standby, silent, silent}, "2 of 3 did not answer", true},
	} {
		if text, problem := c.group.Sentence(); !strings.Contains(text, c.text) || problem != c.problem {
			t.Errorf("%v: %q, %v", c.group, text, problem)
		}
	}
}

// The metrics of the group are the owner's. A member that does not answer is known by its pod.
func TestGroup_MetricsAreTheOwners(t *testing.T) {
	t.Parallel()
	read := func(owner int) *Metrics {
		return ReadMetrics(strings.NewReader(fmt.Sprintf("reschedule_group_owner %d\nreschedule_group_majority 1\n", owner)))
	}
	owner := read(1)
	g := Group{NewMember("p0", read(0), nil), NewMember("p1", owner, nil), NewMember("p2", nil, errors.New("refused"))}
	if g.Metrics() != owner || g[2].Pod != "p2" || g[2].State() != MemberSilent {
		t.Errorf("%+v", g)
	}
	if g[1] = NewMember("p1", read(0), nil); g.Metrics() != nil {
		t.Error("without an owner a standby's metrics stand for the group's")
	}
}

// With a silent owner it is not known what a standby lacks: the newest standby would lack
// nothing.
func TestMember_OwnerIsSilent(t *testing.T) {
	t.Parallel()
	newest, owner := Member{Pod: "a", Majority: true, Applied: 100, Behind: time.Second}, Member{Pod: "b", Silence: errors.New("refused")}
	if about := (Group{newest, owner}).About(&newest); strings.Contains(about, "lacks") || !strings.Contains(about, "with entry 100 of the log, and may lack the changes of the last 1s.") {
		t.Errorf("%q", about)
	}
}
