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

// Of several groups each has an owner: one does not stand for the others, and what a standby
// lacks is measured at the owner of its own shard. A member that does not answer is of the
// group that its number says.
func TestGroups_EachHasAnOwner(t *testing.T) {
	t.Parallel()
	read := func(shard, owner, applied int, source string) *Metrics {
		return ReadMetrics(strings.NewReader(fmt.Sprintf("reschedule_shard_owner{shard=\"%[1]d\"} %[2]d\nreschedule_shard_majority{shard=\"%[1]d\"} 1\nreschedule_shard_applied{shard=\"%[1]d\"} %[3]d\n%[4]s",
			shard, owner, applied, source)))
	}
	const of = "reschedule_stored_keys{kn_source_namespace=\"ops\",kn_source_name=%q} 1\n"
	members := []Member{
		NewMember(0, "p0", read(0, 0, 990, ""), nil), NewMember(1, "p1", read(0, 1, 1000, fmt.Sprintf(of, "a")), nil), NewMember(2, "p2", nil, errors.New("refused")),
		NewMember(3, "p3", read(1, 1, 10, fmt.Sprintf(of, "b")), nil), NewMember(4, "p4", read(1, 0, 8, ""), nil), NewMember(5, "p5", nil, errors.New("refused")),
	}
	all := NewGroups(members)
	if len(all) != 2 || len(all[0]) != 3 || len(all[1]) != 3 || all.Title(all[1]) != "group 1" || all[:1].Title(all[0]) != "group" {
		t.Fatalf("%+v", all)
	}
	for i, want := range []string{"p1 owns the shard.", "p3 owns the shard."} {
		if text, problem := all[i].Sentence(); text != want || problem {
			t.Errorf("group %d: %q, %t", i, text, problem)
		}
	}
	if about := all[1].About(&all[1][1]); !strings.Contains(about, "lacks 2 entries") {
		t.Errorf("a standby of group 1: %q", about)
	}
	if all.Metrics("ops", "a") != all[0][1].Metrics || all.Metrics("ops", "b") != all[1][0].Metrics || all.Metrics("ops", "c") != nil || all[:1].Metrics("ops", "c") == nil {
		t.Error("the metrics of a source are not from the owner that has it")
	}
	members[3] = NewMember(3, "p3", read(1, 0, 10, ""), nil)
	all = NewGroups(members)
	if _, problem := all[0].Sentence(); problem {
		t.Error("group 0 has an owner")
	}
	if text, problem := all[1].Sentence(); !problem || !strings.Contains(text, "1 of 3 did not answer") {
		t.Errorf("group 1 has no owner: %q", text)
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
