package group

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
)

// admission is what a member says to another one whose disk is empty.
type admission struct {
	// Attempt is set while this member's disk is empty too, and it has not joined: it differs
	// with each attempt to join.
	Attempt string `json:"attempt,omitempty"`
	// Group is the id of the group whose log it has, or is about to begin; Proposes is the id that it proposes before.
	Group    string `json:"group,omitempty"`
	Proposes string `json:"proposes,omitempty"`
	// Asking: it waits for the answers that admit it, and has no log.
	Asking bool `json:"asking,omitempty"`
	// OwnVote: it has a log that had promised no more than a vote for itself when the process
	// started, and has not joined.
	OwnVote bool `json:"ownVote,omitempty"`
	// Store is the history of its view, Applied how far it is: one that was restored or
	// migrated has entries, and no log. Its group began with the entry Begun of the history Before.
	Store   string `json:"store,omitempty"`
	Applied uint64 `json:"applied,omitempty"`
	Before  string `json:"before,omitempty"`
	Begun   uint64 `json:"begun,omitempty"`
	Sealed  bool   `json:"sealed,omitempty"`
	// Joined: it takes part, so that a majority is there.
	Joined bool `json:"joined,omitempty"`
	// Marks are the members that have taken part, as far as this one knows.
	Marks map[string]uint64 `json:"marks,omitempty"`
}

// joining brings this member into the group: as a new one, with the log that it has, or in the place of one that has
// lost its disk. It answers the others that ask the same.
type joining struct {
	cfg    *Config
	dir    logDir
	view   *view
	peers  *peers
	copies *copies
	stage  *stage
	began  uint64 // the last entry that the view had at the start; Join alone writes it, before it opens the log

	// What this member answers to the others. The goroutine of Join writes it, and the port reads it meanwhile.
	identity atomic.Pointer[string] // the id of the group, once it is known
	proposes atomic.Pointer[string] // the id that a member without a log proposes
	asking   atomic.Bool            // its attempt waits for the others' answers
	ownVote  atomic.Bool            // its log had promised a vote for itself alone, at the start

	// What others have said at the port, which the goroutine of Join reads.
	emptyPeers   sync.Map    // names of members whose disk was empty when they last asked or answered
	majorityLost atomic.Bool // another member without a log has said so

	replacing sync.Mutex // held while another member is put in its own place: one at a time
}

func newJoining(cfg *Config, v *view, p *peers, c *copies, s *stage) *joining {
	return &joining{cfg: cfg, dir: logDir{cfg.DataDir, cfg.Member}, view: v, peers: p, copies: c, stage: s}
}

// admissionPath is below the port for other members. No source has such an address.
const admissionPath = "/-/admission"

// errLostMajority is returned where nothing can be rebuilt from what is left.
var errLostMajority = errors.New("group: more than one member has lost its disk: only a majority knows all that was acknowledged. Bring the disk of one of them back, " +
	"or restore a back-up, or a copy of the directory that is left, into three empty directories: see docs/high-availability.md, A lost disk")

// answerAdmission returns what this member has read. Before that it answers 503.
func (j *joining) answerAdmission(w http.ResponseWriter, r *http.Request) {
	if name := r.URL.Query().Get("empty"); j.cfg.peers[name] != "" {
		j.emptyPeers.Store(name, true)
		if r.URL.Query().Has("lost") {
			j.majorityLost.Store(true)
		}
	}
	a := admission{Applied: j.view.Applied(), Sealed: j.view.Sealed(), Joined: j.stage.joined.Load()}
	a.Store, a.Before, a.Begun, _ = j.view.History() // of a new view there is none
	if id := j.identity.Load(); id != nil {
		a.Group = *id
	}
	if attempt := j.stage.attempt.Load(); attempt != nil && !a.Joined {
		a.Attempt, a.Proposes, a.Asking = *attempt, *j.proposes.Load(), j.asking.Load()
	} else {
		a.OwnVote = j.ownVote.Load() && !a.Joined
		e := j.stage.engine.Load()
		if e == nil {
			unavailable(w, "this member has not opened its log yet")
			return
		}
		var err error
		if a.Marks, err = e.entries.Marks(r.Context()); err != nil {
			unavailable(w, "the marks cannot be read")
			return
		}
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(a) // a member that went away
}

// admit returns when this member may take part. A member with a log may at once, unless the
// log has promised nothing, as after a first start that was cut off, or contradicts what the others
// know: a log of another group is refused, and a log that went back is removed. A member without one asks both others:
// it is a new one if they are empty too, or one is empty and the other has voted for itself alone.
// If they take part, or have a record of it, it may have lost its disk and with it what it promised
// to them: it joins as another member in its own place.
func (j *joining) admit(ctx context.Context) (replaces bool, err error) {
	has, err := j.dir.has("member")
	joining, e := j.dir.has("joining")
	_, foreign := j.dir.readIdentity()
	if err = errors.Join(err, e, foreign); err != nil {
		return false, err
	}
	j.began = j.view.Applied()
	if has && !joining {
		promise, damage := j.cfg.PromiseOf(j.cfg.DataDir)
		if damage != nil && !errors.Is(damage, replica.ErrDamaged) {
			return false, damage
		}
		if promise != replica.Nothing {
			if goesOn, err := j.goOn(ctx, damage); err != nil || goesOn {
				j.ownVote.Store(promise == replica.OwnVote)
				return false, err
			}
			joining = true
		}
	}
	if err := os.RemoveAll(j.dir.file("member")); err != nil {
		return false, fmt.Errorf("group: data directory: %w", err)
	}
	proposes, err := j.dir.propose()
	if err != nil {
		return false, err
	}
	j.proposes.Store(&proposes)
	attempt := rand.Text()
	j.asking.Store(true)
	j.stage.attempt.Store(&attempt)
	j.cfg.Log.Info("the directory has no log: asking the other members, since a first start needs all three")
	var before map[string]admission
	for again := time.Now().Add(waitLogEvery); ; {
		answers, gone, silent := j.askOthers(ctx)
		verdict, waitsFor, err := j.judge(answers, before, gone, joining)
		before = answers
		if j.majorityLost.Load() {
			return false, errLostMajority
		}
		if err != nil {
			if errors.Is(err, errLostMajority) {
				j.tellLost(ctx)
			}
			return false, err
		}
		switch verdict {
		case admitted:
			if err := j.takeIdentity(answers); err != nil {
				return false, err
			}
			// The others may still be asking: they get the answer that this member was empty until it
			// has joined.
			j.asking.Store(false)
			return false, nil
		case replaceable:
			if err = j.replaced(ctx, attempt); err == nil {
				j.stage.attempt.Store(nil)
				return true, errors.Join(j.takeIdentity(answers), j.dir.setJoining())
			}
			j.cfg.Log.Info("this member cannot join in its own place yet; trying again", "error", err)
		case behind:
			err := j.copyFirst(ctx, answers)
			if err == nil {
				continue
			}
			waitsFor = err.Error()
		case waiting:
		}
		if time.Now().After(again) {
			j.cfg.Log.Info("this member cannot join yet", "waitsFor", waitsFor, "noAnswer", silent)
			again = time.Now().Add(waitLogEvery)
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// goOn reports that this member goes on with its log. A log that went back, or is damaged, is removed, and this member
// joins anew. That is marked first, because the removal may be cut off. A damaged log is kept until both others take
// part: its entries may be needed.
func (j *joining) goOn(ctx context.Context, damage error) (bool, error) {
	id, err := j.dir.readIdentity()
	if err != nil {
		return false, err
	}
	if id == "" {
		return false, fmt.Errorf("group: the log in %s has no file identity: empty the directory of member %s, and it joins the others", j.cfg.DataDir, j.cfg.Member)
	}
	j.identity.Store(&id)
	answers := j.askAll(ctx, contradictionTime)
	err = j.contradicts(answers, j.began)
	if err == nil && damage != nil {
		if err = damage; !j.takePart(answers) {
			return false, fmt.Errorf("group: the log in %s is damaged: while both other members run, member %s joins them anew at its next start; "+
				"or empty the directory of member %s, and it joins the others: %w", j.cfg.DataDir, j.cfg.Member, j.cfg.Member, damage)
		}
	} else if !errors.Is(err, replica.ErrSetBack) {
		return err == nil, err
	}
	j.cfg.Log.Warn("this member's log is removed, and it joins anew in its own place", "why", err)
	j.identity.Store(nil)
	return false, j.dir.setJoining()
}

// takePart reports that both others take part in this member's group.
func (j *joining) takePart(answers map[string]admission) bool {
	n := 0
	for _, a := range answers {
		if a.Joined && a.Group == *j.identity.Load() {
			n++
		}
	}
	return n == len(j.cfg.others())
}

// askOthers returns the others' answers to a member without a log, and why others are silent. A silent member counts
// as gone if its disk was empty when it last asked or answered, before this call.
func (j *joining) askOthers(ctx context.Context) (answers map[string]admission, gone map[string]bool, silent []string) {
	answers, gone = map[string]admission{}, map[string]bool{}
	for _, name := range j.cfg.others() {
		_, wasEmpty := j.emptyPeers.Load(name) // before the call: one that asks meanwhile has only just begun
		c := memberCall{method: http.MethodGet, member: name, path: admissionPath, query: url.Values{"empty": {j.cfg.Member}}, timeout: askTime}
		var a admission
		if err := j.peers.call(ctx, c, &a); err != nil {
			silent = append(silent, err.Error())
			gone[name] = wasEmpty
			continue
		}
		if answers[name] = a; a.Attempt != "" {
			j.emptyPeers.Store(name, true)
		} else {
			j.emptyPeers.Delete(name)
		}
	}
	return answers, gone, silent
}

// tellLost tells the others why this member ends. Another member without a log may not find it out: no member has a
// record of one that lost its disk before it had taken part, and it would wait for this member without an end.
func (j *joining) tellLost(ctx context.Context) {
	for _, name := range j.cfg.others() {
		c := memberCall{method: http.MethodGet, member: name, path: admissionPath, query: url.Values{"empty": {j.cfg.Member}, "lost": {""}}, timeout: askTime}
		if err := j.peers.call(ctx, c, nil); err != nil {
			j.cfg.Log.Info("another member was not told that a majority has lost its disks", "member", name, "error", err)
		}
	}
}

// waitLogEvery is how often the log names what a start waits for.
const waitLogEvery = 10 * time.Second

// verdict is what follows for a member without a log from the answers of the others.
type verdict int

const (
	waiting     verdict = iota // they must say more
	admitted                   // it is a new one
	replaceable                // it may have lost its disk
	behind                     // it is a new one, and the group begins with what another one has
)

// judge decides from the other members' answers, now and in the round before. gone names the silent members whose disk
// was empty. waitsFor names, for the log, what a member that cannot join yet waits for.
//
// A member takes part only with a majority, so one of the two others had a log then. Where it took part before both are
// asked, and both ask, that log is lost.
//
// A member that has voted for itself alone has no majority without a member that asks. Once both others have a log,
// they have a majority, and this member waits until they take part.
func (j *joining) judge(answers, before map[string]admission, gone map[string]bool, joining bool) (v verdict, waitsFor string, _ error) {
	var known, copies, joined, tookPart, asking, ownVote bool
	var empty, waits []string
	applied := j.view.Applied()
	own, _, _, _ := j.view.History()
	if err := differ(answers); err != nil {
		return waiting, "", err
	}
	for _, name := range j.cfg.others() {
		a, answered := answers[name]
		_, is := a.Marks[j.cfg.Member]
		known = known || is
		joined, tookPart = joined || a.Joined, tookPart || a.Joined && before[name].Joined
		asking = asking || a.Asking
		switch {
		case !answered:
			waits = append(waits, name)
			if gone[name] { // it had the answers that this one collects
				empty = append(empty, name)
			}
		case applied > 0 && a.Applied > 0 && own != a.Store && (own != a.Before || applied > a.Begun):
			if a.Sealed {
				return waiting, "", fmt.Errorf("group: member %s has the data of a sealed group, and this directory has the data of another group: empty the directory of member %s", name, name)
			}
			return waiting, "", fmt.Errorf("group: member %s has the data of another group than this directory: empty the directory that has the older data", name)
		case a.Attempt != "":
			empty = append(empty, name)
			switch {
			case applied == 0 && a.Applied > 0:
				copies = true
			case applied > 0 && a.Applied == 0:
				waits = append(waits, name) // it takes a copy
			case a.Applied != applied:
				return waiting, "", fmt.Errorf("group: the directories of this member and of %s have no log and hold different data: start a new group with at most one directory that has data, or restore the same back-up into all three", name)
			}
		case a.OwnVote && (a.Applied == applied || applied == 0):
			ownVote, copies = true, copies || a.Applied > 0 && applied == 0
		case !a.Joined:
			waits = append(waits, name)
		case applied == 0 && a.Applied > 0:
			copies = true
		}
	}
	const all = "the other members"
	switch {
	case known && len(empty) > 0, tookPart && asking:
		return waiting, "", lostMajority(answers, applied)
	case len(waits) > 0:
		return waiting, strings.Join(waits, " and "), nil
	case ownVote && len(empty) == 0: // both have a log, and so a majority
		return waiting, all, nil
	case joined && len(empty) > 0: // it takes part soon; or it asks, and was asked before the other one had its vote
		return waiting, strings.Join(empty, " and "), nil
	case known:
		return replaceable, all, nil
	case joining && !joined:
		return waiting, all, nil
	case copies:
		return behind, all, nil
	case joined:
		return replaceable, all, nil
	}
	return admitted, "", nil
}

// lostMajority is errLostMajority. A directory with data may have been restored: then it names the members that still have
// the log of the old group.
func lostMajority(answers map[string]admission, applied uint64) error {
	var old []string
	for name, a := range answers {
		if a.Attempt == "" {
			old = append(old, name)
		}
	}
	if applied == 0 || len(old) == 0 {
		return errLostMajority
	}
	return fmt.Errorf("%w. If this directory was restored: empty the directory of member %s, which has a log of before", errLostMajority, strings.Join(old, " and "))
}

// copyFirst takes a copy of the view of a member that has one. An empty view must not own the
// group that begins with more, which the log alone does not show at first.
func (j *joining) copyFirst(ctx context.Context, answers map[string]admission) error {
	from := slices.DeleteFunc(j.cfg.others(), func(name string) bool { return answers[name].Applied == 0 })
	name, _, err := j.copies.any(ctx, from, false, func() {})
	if err == nil {
		j.cfg.Log.Info("this member begins with a copy of another one's view", "from", name, "applied", j.view.Applied())
	}
	return err
}

// settle makes a learner a member, and returns once it is one.
func (j *joining) settle(ctx context.Context) error {
	joining, err := j.dir.has("joining")
	if err != nil || !joining {
		return err
	}
	log := j.stage.engine.Load().log
	for err := log.Promote(ctx); err != nil; err = log.Promote(ctx) {
		j.cfg.Log.Info("this member does not count yet; trying again", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(500 * time.Millisecond):
		}
	}
	j.cfg.Log.Info("this member has joined in its own place")
	return j.dir.unsetJoining()
}

// replaced asks the others, one after the other, to put this member in its own place.
func (j *joining) replaced(ctx context.Context, attempt string) (err error) {
	for _, name := range j.cfg.others() {
		query := url.Values{"member": {j.cfg.Member}, "attempt": {attempt}}
		if err = j.peers.call(ctx, memberCall{method: http.MethodPost, member: name, path: admissionPath, query: query, timeout: 2 * replaceTime}, nil); err == nil {
			return nil
		}
	}
	return err
}

// replaceTime is how long a member takes for a replacement.
const replaceTime = 15 * time.Second

// replace puts another member, whose disk is empty, in its own place: the log drops what
// that member promised. It is done only for a process that says itself, at the address of
// that member, that it has lost its disk, and while all others take part.
func (j *joining) replace(w http.ResponseWriter, r *http.Request) {
	member, attempt := r.URL.Query().Get("member"), r.URL.Query().Get("attempt")
	if _, is := j.cfg.peers[member]; !is || member == j.cfg.Member || attempt == "" {
		http.Error(w, "member is not another member, or attempt is missing", http.StatusBadRequest)
		return
	}
	if !j.replacing.TryLock() {
		unavailable(w, "a replacement is under way")
		return
	}
	defer j.replacing.Unlock()
	ctx, cancel := context.WithTimeout(r.Context(), replaceTime)
	defer cancel()
	if err := j.replaceOther(ctx, member, attempt); err != nil {
		j.cfg.Log.Warn("a member without a log cannot join in its own place now", "member", member, "error", err)
		unavailable(w, err.Error())
		return
	}
	j.cfg.Log.Info("a member without a log joins in its own place", "member", member)
	w.WriteHeader(http.StatusNoContent)
}

func (j *joining) replaceOther(ctx context.Context, member, attempt string) error {
	e := j.stage.engine.Load()
	if e == nil || !j.stage.joined.Load() {
		return errors.New("group: this member has not joined yet")
	}
	for _, name := range j.cfg.others() {
		a, err := j.ask(ctx, name)
		switch {
		case err != nil:
			return fmt.Errorf("member %s: %w", name, err)
		case name == member && a.Attempt != attempt:
			return errors.New("group: the member has not lost its disk, or has begun another attempt since")
		case name != member && !a.Joined:
			return fmt.Errorf("group: member %s does not take part", name)
		}
	}
	// Its disk is empty, so its old position must not allow the log to be trimmed.
	if err := e.entries.Mark(ctx, member, 0); err != nil {
		return err
	}
	return e.log.Replace(ctx, member)
}

// askTime is how long an answer may take.
const askTime = 2 * time.Second

func (j *joining) ask(ctx context.Context, name string) (answer admission, err error) {
	return answer, j.peers.call(ctx, memberCall{method: http.MethodGet, member: name, path: admissionPath, timeout: askTime}, &answer)
}
