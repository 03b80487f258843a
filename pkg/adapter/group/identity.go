package group

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// takeIdentity makes this member one of the group: of the others' group, or of the proposed one where they have none.
func (j *joining) takeIdentity(answers map[string]admission) error {
	first := j.cfg.names()[0]
	id := answers[first].Proposes
	if first == j.cfg.Member {
		id = *j.proposes.Load()
	}
	for _, a := range answers {
		if a.Group != "" {
			id = a.Group
		}
	}
	if id == "" {
		return fmt.Errorf("group: member %s proposes no id of the group", first)
	}
	j.identity.Store(&id)
	return j.dir.writeIdentity(id)
}

// differ is the error of other members of two groups.
func differ(answers map[string]admission) error {
	var one string
	for name, a := range answers {
		switch {
		case a.Group == "":
		case one == "":
			one = name
		case a.Group != answers[one].Group:
			return fmt.Errorf("group: member %s is of group %s, and member %s of group %s: empty the directory of the member whose disk is of another time, as of before a restore", one, answers[one].Group, name, a.Group)
		}
	}
	return nil
}

// contradicts is why this member, which has a log, cannot take part beside the others that have answered, or nil.
// applied is the last entry that its view had at the start.
//
// A member that takes part had a majority. This member is none of it if the id is another one: then the third one is.
func (j *joining) contradicts(answers map[string]admission, applied uint64) error {
	own := *j.identity.Load()
	var foreign []string
	joined, alike := false, false
	for _, name := range j.cfg.others() {
		a, answered := answers[name]
		switch {
		case !answered || a.Group == "":
		case a.Group == own:
			alike = true
			if a.Joined && a.Marks[j.cfg.Member] > applied {
				return fmt.Errorf("%w: its view is at entry %d, and was at %d", replica.ErrSetBack, applied, a.Marks[j.cfg.Member])
			}
		default:
			foreign = append(foreign, fmt.Sprintf("member %s is of group %s", name, a.Group))
			joined = joined || a.Joined
		}
	}
	if alike || !joined && len(foreign) < len(j.cfg.others()) {
		return nil
	}
	return fmt.Errorf("%w: the log in %s is of group %s, and %s: the disk is of another time, as of before a restore. "+
		"To join the others, empty the directory of member %s", errForeign, j.cfg.DataDir, own, strings.Join(foreign, ", "), j.cfg.Member)
}

var errForeign = errors.New("group: this member is of another group than the others")

// states says of each of these members what its answer means for the log.
func states(answers map[string]admission, names []string) []string {
	var says []string
	for _, name := range names {
		a, answered := answers[name]
		switch {
		case !answered:
			says = append(says, name+" does not answer")
		case a.Attempt != "":
			says = append(says, name+" has no log")
		default:
			says = append(says, name+" has a log")
		}
	}
	return says
}

// askAll asks the other members at the same time, and returns the answers that come within d.
func (j *joining) askAll(ctx context.Context, d time.Duration) map[string]admission {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var mu sync.Mutex
	var calls sync.WaitGroup
	answers := map[string]admission{}
	for _, name := range j.cfg.others() {
		calls.Go(func() {
			if a, err := j.ask(ctx, name); err == nil {
				mu.Lock()
				defer mu.Unlock()
				answers[name] = a
			}
		})
	}
	calls.Wait()
	return answers
}

// contradictionTime is how long a start with a log waits for the answers of the others.
const contradictionTime = time.Second

// awaitLog returns once the log can be read. Members of two groups never have a majority together, so it asks the others
// meanwhile.
//
// A member whose disk went back has forgotten what it promised. It found that out before it opened its log, unless the
// others did not take part yet. Now it joins anew if they both do, else it goes on: the log may need it.
func (j *joining) awaitLog(ctx context.Context) error {
	e := j.stage.engine.Load()
	tick := time.NewTicker(contradictionTime)
	defer tick.Stop()
	for again, waits := time.Now().Add(waitLogEvery), true; waits; {
		select {
		case <-e.log.Ready():
			waits = false
		case <-tick.C:
			answers := j.askAll(ctx, contradictionTime)
			if err := j.contradicts(answers, j.began); err != nil {
				return err
			}
			if time.Now().After(again) {
				j.cfg.Log.Info("the log has no majority yet: this member waits for another one that has a log", "members", states(answers, j.cfg.others()))
				again = time.Now().Add(waitLogEvery)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s, err := e.entries.State(ctx)
	if err != nil {
		return err
	}
	if s.Last > 0 && s.Last < j.began { // what this member had in its log is in it now
		return fmt.Errorf("group: the view in %s is at entry %d, and the log ends with %d: they are of different times, as of snapshots of volumes. "+
			"Restore a back-up into three empty directories; or empty the directory of member %s, and what only it has is lost", j.cfg.DataDir, j.began, s.Last, j.cfg.Member)
	}
	marks, err := e.entries.Marks(ctx)
	if err != nil || marks[j.cfg.Member] <= j.began {
		return err
	}
	answers := j.askAll(ctx, contradictionTime)
	if len(answers) == len(j.cfg.others()) {
		return j.contradicts(answers, j.began)
	}
	return nil
}
