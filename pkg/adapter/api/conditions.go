package api

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// maxTags bounds the list of an If-Match header.
const maxTags = 100

// ifMatch is an If-Match header.
type ifMatch struct {
	given     bool
	any       bool     // "*"
	revisions []uint64 // the tags that can be a revision's
}

// parseIfMatch reads an If-Match header: "*" or a list of entity tags. A weak
// tag never matches, nor does one that is not a revision of ours.
func parseIfMatch(h http.Header) (ifMatch, error) {
	lines := h["If-Match"]
	if len(lines) == 0 {
		return ifMatch{}, nil
	}
	m := ifMatch{given: true}
	rest := strings.Trim(strings.Join(lines, ","), " \t")
	if rest == "*" {
		m.any = true
		return m, nil
	}
	bad := schedule.Invalid("If-Match", `%.64q is neither * nor a list of quoted revisions such as "184467"`, rest)
	for n := 0; ; {
		rest = strings.TrimLeft(rest, " \t,") // empty list elements are allowed
		if rest == "" {
			if n == 0 {
				return m, bad
			}
			return m, nil
		}
		weak := strings.HasPrefix(rest, "W/")
		rest = strings.TrimPrefix(rest, "W/")
		if rest == "" || rest[0] != '"' {
			return m, bad
		}
		end := strings.IndexByte(rest[1:], '"')
		if end < 0 {
			return m, bad
		}
		tag := rest[1 : 1+end]
		rest = strings.TrimLeft(rest[end+2:], " \t")
		if n++; n > maxTags || rest != "" && rest[0] != ',' {
			return m, bad
		}
		// Only the form that we write matches: an entity tag is compared byte by byte.
		if rev, err := strconv.ParseUint(tag, 10, 64); err == nil && !weak && strconv.FormatUint(rev, 10) == tag {
			m.revisions = append(m.revisions, rev)
		}
	}
}

// parseIfNoneMatch reads the If-None-Match header of a PUT.
func parseIfNoneMatch(h http.Header) (bool, error) {
	lines := h["If-None-Match"]
	switch {
	case len(lines) == 0:
		return false, nil
	case len(lines) == 1 && strings.Trim(lines[0], " \t") == "*":
		return true, nil
	}
	return false, schedule.Invalid("If-None-Match", "%.64q is not *, the only value that is supported", strings.Join(lines, ","))
}

// unconditional refuses conditions where they mean nothing: ignoring one would
// make a change that the caller guarded.
func unconditional(h http.Header, names ...string) error {
	for _, name := range names {
		if len(h[name]) > 0 {
			return schedule.Invalid(name, "is not supported on this call")
		}
	}
	return nil
}

// maxRaces is how often a change may be overtaken by another between the look
// at the key and the conditional change before the caller is asked to try
// again.
const maxRaces = 16

// guarded makes a change under an If-Match header. The queue compares one
// revision: "*" and a list become the revision that the key has now, and are
// looked at again when the key has changed meanwhile.
func (c *call) guarded(m ifMatch, set **uint64, change func() error) error {
	switch {
	case !m.given:
		return change()
	case !m.any && len(m.revisions) == 1:
		*set = &m.revisions[0]
		return change()
	}
	for range maxRaces {
		v, ok, err := c.src.Get(c.key)
		if err != nil {
			return err
		}
		if !ok {
			return schedule.Refuse(schedule.CodePrecondition, "If-Match: key %q is absent", c.key)
		}
		rev := v.Revision
		if !m.matches(rev) {
			return schedule.Refuse(schedule.CodePrecondition, "If-Match: key %q has revision %d, which is not in the list", c.key, rev)
		}
		*set = &rev
		err = change()
		if e, ok := errors.AsType[*schedule.Error](err); !ok || e.Code != schedule.CodePrecondition {
			return err
		}
		// The miss may be another condition's; then nothing has changed.
		if v, ok, getErr := c.src.Get(c.key); getErr == nil && ok && v.Revision == rev {
			return err
		}
	}
	return schedule.Refuse(schedule.CodeUnavailable, "If-Match: key %q changes too often", c.key)
}

func (m *ifMatch) matches(rev uint64) bool {
	return m.any || slices.Contains(m.revisions, rev)
}
