package why

import (
	"errors"
	"fmt"
	"time"
)

// MemberState is the state of a member of a group, in words that stay the same.
type MemberState string

// The states of a member.
const (
	// MemberOwns: it owns the group, so it delivers, and answers the calls of all members.
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
	Owner    bool          // it owns the group
	Majority bool          // it is in touch with a majority of the group
	Applied  int64         // the number of the last entry of the log that it has
	Behind   time.Duration // for how long it may have missed changes
	Silence  error         // it did not answer, and all else is unknown
	Metrics  *Metrics      // what these fields come from, nil if it did not answer
}

// Members is how many members a group has.
const Members = 3

// NewMember is the adapter in a pod, by its metrics, or by the error of reading them.
func NewMember(pod string, metrics *Metrics, err error) Member {
	switch {
	case err != nil:
		return Member{Pod: pod, Silence: err}
	case !metrics.grouped:
		return Member{Pod: pod, Silence: errors.New("its metrics have no reschedule_group_owner, so it belongs to no group")}
	}
	m := metrics.member
	m.Pod, m.Metrics = pod, metrics
	return m
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

// Group is all members of a group; nil: the adapter is alone.
type Group []Member

// Metrics returns the metrics of the owner, since a standby knows of no refusal; nil if they are not known.
func (g Group) Metrics() *Metrics {
	if owner := g.Owner(); owner != nil {
		return owner.Metrics
	}
	return nil
}

// Owner is the member that owns the group, nil if none is known.
func (g Group) Owner() *Member {
	for i := range g {
		if g[i].State() == MemberOwns {
			return &g[i]
		}
	}
	return nil
}

// Sentence says who owns the group, and whether the lack of an owner is a problem.
func (g Group) Sentence() (text string, problem bool) {
	if owner := g.Owner(); owner != nil {
		return owner.Pod + " owns the group.", false
	}
	silent := 0
	for i := range g {
		if g[i].State() == MemberSilent {
			silent++
		}
	}
	if silent > 0 {
		return fmt.Sprintf("It is not known which member owns the group: %d of %d did not answer.", silent, len(g)), true
	}
	return "No member owns the group: nothing of its sources is delivered, and calls get 503. It needs a majority of the members.", true
}

// About says of one member what it does, and what it lacks.
func (g Group) About(m *Member) string {
	switch m.State() {
	case MemberSilent:
		return "It did not answer: " + sentence(m.Silence.Error())
	case MemberOwns:
		return fmt.Sprintf("It owns the group, and has entry %d of the log.", m.Applied)
	case MemberAlone:
		return fmt.Sprintf("It is in touch with no majority of the group, and may lack the changes of the last %s.", m.Behind)
	case MemberLags:
		return fmt.Sprintf("It is a standby, and may lack the changes of the last %s.", m.Behind)
	}
	owner := g.Owner()
	if owner == nil { // it may have entries that no other member has
		return fmt.Sprintf("It is a standby with entry %d of the log, and may lack the changes of the last %s.", m.Applied, m.Behind)
	}
	return fmt.Sprintf("It is a standby: it lacks %d entries of the log, and may lack the changes of the last %s.", max(0, owner.Applied-m.Applied), m.Behind)
}
