package why

import (
	"fmt"
	"time"
)

// MemberState is the state of a member of a group, in words that stay the same.
type MemberState string

// The states of a member.
const (
	// MemberOwns: it owns the shard, so it delivers, and answers the calls of all members.
	MemberOwns MemberState = "owner"
	// MemberFollows: it is a standby that has all changes but the newest.
	MemberFollows MemberState = "standby"
	// MemberLags: it is a standby that may lack the changes of a minute and more.
	MemberLags MemberState = "behind"
	// MemberAlone: it is in touch with no majority of the group.
	MemberAlone MemberState = "no majority"
	// MemberSilent: it did not answer.
	MemberSilent MemberState = "no answer"
)

// farBehind is when a standby is a problem: the alert RescheduleMemberBehind has the same.
const farBehind = time.Minute

// Member is an adapter of a group, as its own metrics show it.
type Member struct {
	Pod      string
	Owner    bool          // it owns the shard
	Majority bool          // it is in touch with a majority of the group
	Applied  int64         // the number of the last entry of the log that it has
	Behind   time.Duration // for how long it may have missed changes
	Silence  error         // it did not answer, and all else is unknown
}

// State is the state of the member.
func (m *Member) State() MemberState {
	switch {
	case m.Silence != nil:
		return MemberSilent
	case m.Owner:
		return MemberOwns
	case !m.Majority:
		return MemberAlone
	case m.Behind > farBehind:
		return MemberLags
	}
	return MemberFollows
}

// Problem reports that the member needs attention.
func (m *Member) Problem() bool { return m.State() != MemberOwns && m.State() != MemberFollows }

// Group is all members of a group.
type Group []Member

// Owner is the pod that owns the shard, empty if none is known.
func (g Group) Owner() string {
	for i := range g {
		if g[i].State() == MemberOwns {
			return g[i].Pod
		}
	}
	return ""
}

// Sentence says who owns the shard, and whether the lack of an owner is a problem.
func (g Group) Sentence() (text string, problem bool) {
	if owner := g.Owner(); owner != "" {
		return owner + " owns the shard.", false
	}
	silent := 0
	for i := range g {
		if g[i].State() == MemberSilent {
			silent++
		}
	}
	if silent > 0 {
		return fmt.Sprintf("It is not known which member owns the shard: %d of %d did not answer.", silent, len(g)), true
	}
	return "No member owns the shard: nothing is delivered, and calls get 503. It needs a majority of the members.", true
}

// About says of one member what it does, and what it lacks.
func (g Group) About(m *Member) string {
	switch m.State() {
	case MemberSilent:
		return "It did not answer: " + sentence(m.Silence.Error())
	case MemberOwns:
		return fmt.Sprintf("It owns the shard, and has entry %d of the log.", m.Applied)
	case MemberAlone:
		return fmt.Sprintf("It is in touch with no majority of the group, and may lack the changes of the last %s.", m.Behind)
	case MemberLags:
		return fmt.Sprintf("It is a standby, and may lack the changes of the last %s.", m.Behind)
	}
	newest := m.Applied
	for _, other := range g {
		newest = max(newest, other.Applied)
	}
	return fmt.Sprintf("It is a standby: it lacks %d entries of the log, and may lack the changes of the last %s.", newest-m.Applied, m.Behind)
}
