package group

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// The file identity in the directory of the log has the id of the group, and the name of the member. The id is random, and
// goes away with the log: a group that begins anew, as after a restore, has another one. etcd's ids of the group and of
// its members depend on it, so the members of the group refuse a member of another one.
//
// At a first start each member proposes an id, and all take the proposal of the first member by name. It is on disk
// before another member reads it, so a start that was cut off proposes it again.

// readIdentity returns the id in the directory, "" if there is none. The log of another member is refused: etcd would take
// part as that member, a second time.
func (m *Member) readIdentity() (string, error) {
	text, err := os.ReadFile(m.logFile("identity"))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("group: data directory: %w", err)
	}
	id, rest, _ := strings.Cut(string(text), "\n")
	name, _, _ := strings.Cut(rest, "\n")
	if identityText(id, name) != string(text) {
		return "", fmt.Errorf("%w: empty the directory of member %s, and it joins the others", errIdentity, m.cfg.Member)
	}
	if name != m.cfg.Member {
		return "", fmt.Errorf("group: %s is the directory of member %q, and this is member %s: give the directory of member %s; or an empty one, and it joins the others",
			m.cfg.DataDir, name, m.cfg.Member, m.cfg.Member)
	}
	return id, nil
}

// errIdentity is the error of an identity that does not have its checksum.
var errIdentity = errors.New("group: the file identity in the directory of the log is damaged")

// identityText is what the file has: the id, the name, and a checksum.
func identityText(id, member string) string {
	text := id + "\n" + member + "\n"
	return fmt.Sprintf("%s%08x\n", text, crc32.ChecksumIEEE([]byte(text)))
}

// writeIdentity puts the id into the directory: it is there, or the id before.
func (m *Member) writeIdentity(id string) error {
	dir := filepath.Dir(m.logFile("identity"))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("group: data directory: %w", err)
	}
	f, err := os.Create(m.logFile("identity.new"))
	if err == nil {
		_, err = f.WriteString(identityText(id, m.cfg.Member))
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = os.Rename(f.Name(), m.logFile("identity"))
	}
	if err = errors.Join(err, syncDir(dir), syncDir(m.cfg.DataDir)); err != nil {
		return fmt.Errorf("group: data directory: %w", err)
	}
	return nil
}

// propose returns the id that this member proposes.
func (m *Member) propose() (string, error) {
	id, err := m.readIdentity()
	if errors.Is(err, errIdentity) { // there is no log: another one is as good
		id, err = "", nil
	}
	if err != nil || id != "" {
		return id, err
	}
	id = rand.Text()
	return id, m.writeIdentity(id)
}

// takeIdentity makes this member one of the group: of the others' group, or of the proposed one where they have none.
func (m *Member) takeIdentity(answers map[string]admission) error {
	first := m.cfg.names()[0]
	id := answers[first].Proposes
	if first == m.cfg.Member {
		id = *m.proposes.Load()
	}
	for _, a := range answers {
		if a.Group != "" {
			id = a.Group
		}
	}
	if id == "" {
		return fmt.Errorf("group: member %s proposes no id of the group", first)
	}
	m.identity.Store(&id)
	return m.writeIdentity(id)
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
func (m *Member) contradicts(answers map[string]admission, applied uint64) error {
	own := *m.identity.Load()
	var foreign []string
	joined, alike := false, false
	for _, name := range m.cfg.others() {
		a, answered := answers[name]
		switch {
		case !answered || a.Group == "":
		case a.Group == own:
			alike = true
			if a.Joined && a.Marks[m.cfg.Member] > applied {
				return fmt.Errorf("%w: its view is at entry %d, and was at %d", replica.ErrSetBack, applied, a.Marks[m.cfg.Member])
			}
		default:
			foreign = append(foreign, fmt.Sprintf("member %s is of group %s", name, a.Group))
			joined = joined || a.Joined
		}
	}
	if alike || !joined && len(foreign) < len(m.cfg.others()) {
		return nil
	}
	return fmt.Errorf("%w: the log in %s is of group %s, and %s: the disk is of another time, as of before a restore. "+
		"To join the others, empty the directory of member %s", errForeign, m.cfg.DataDir, own, strings.Join(foreign, ", "), m.cfg.Member)
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
func (m *Member) askAll(ctx context.Context, d time.Duration) map[string]admission {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var mu sync.Mutex
	var calls sync.WaitGroup
	answers := map[string]admission{}
	for _, name := range m.cfg.others() {
		calls.Go(func() {
			if a, err := m.ask(ctx, name); err == nil {
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
func (m *Member) awaitLog(ctx context.Context) error {
	tick := time.NewTicker(contradictionTime)
	defer tick.Stop()
	for again, waits := time.Now().Add(waitLogEvery), true; waits; {
		select {
		case <-m.log.Ready():
			waits = false
		case <-tick.C:
			answers := m.askAll(ctx, contradictionTime)
			if err := m.contradicts(answers, m.began); err != nil {
				return err
			}
			if time.Now().After(again) {
				m.cfg.Log.Info("the log has no majority yet: this member waits for another one that has a log", "members", states(answers, m.cfg.others()))
				again = time.Now().Add(waitLogEvery)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	entries := *m.entries.Load()
	s, err := entries.State(ctx)
	if err != nil {
		return err
	}
	if s.Last > 0 && s.Last < m.began { // what this member had in its log is in it now
		return fmt.Errorf("group: the view in %s is at entry %d, and the log ends with %d: they are of different times, as of snapshots of volumes. "+
			"Restore a back-up into three empty directories; or empty the directory of member %s, and what only it has is lost", m.cfg.DataDir, m.began, s.Last, m.cfg.Member)
	}
	marks, err := entries.Marks(ctx)
	if err != nil || marks[m.cfg.Member] <= m.began {
		return err
	}
	answers := m.askAll(ctx, contradictionTime)
	if len(answers) == len(m.cfg.others()) {
		return m.contradicts(answers, m.began)
	}
	return nil
}
