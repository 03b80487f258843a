package why

import (
	"errors"
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
		"owner":          {Member{Owner: true, Majority: true, Applied: 42}, MemberOwns, false, "It owns the shard, and has entry 42 of the log."},
		"standby":        {Member{Majority: true, Applied: 93, Behind: 40 * time.Millisecond}, MemberFollows, false, "it lacks 7 entries of the log, and may lack the changes of the last 40ms."},
		"a minute late":  {Member{Majority: true, Behind: farBehind}, MemberFollows, false, "of the last 1m0s."},
		"later":          {Member{Majority: true, Behind: farBehind + 1}, MemberLags, true, "of the last 1m0.000000001s."},
		"alone":          {Member{Behind: time.Hour}, MemberAlone, true, "in touch with no majority"},
		"silent":         {Member{Owner: true, Silence: errors.New("refused")}, MemberSilent, true, "It did not answer: refused."},
		"owner, a while": {Member{Owner: true, Majority: true, Behind: time.Hour}, MemberOwns, false, "It owns the shard"},
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
		{Group{standby, owner, silent}, "a owns the shard.", false},
		{Group{standby, standby}, "No member owns the shard", true},
		{Group{standby, silent, silent}, "2 of 3 did not answer", true},
	} {
		if text, problem := c.group.Sentence(); !strings.Contains(text, c.text) || problem != c.problem {
			t.Errorf("%v: %q, %v", c.group, text, problem)
		}
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
