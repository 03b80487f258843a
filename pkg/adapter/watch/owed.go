package watch

import (
	"errors"
	"fmt"
	"time"
)

// owed is what a stream has skipped: a change with more keys than a quota had room for, which must not stop the
// changes of all other objects. Only a list finds it again, so no version is stored until a list has stored all.
type owed struct {
	err   error // of the last one, with its name; nil: nothing is owed
	at    time.Time
	tries int // lists that were refused too
}

// errOwed ends a watch for a list that tries again what was skipped.
var errOwed = errors.New("watch: it is time to try again what was skipped")

// owe notes that a change was skipped.
func (s *stream) owe(c *change, refused error) error {
	if s.owed.err == nil {
		if w := s.row(s.none()); w.version != s.stored() {
			if err := s.r.keep(w); err != nil {
				return err
			}
		}
		s.owed.at = time.Now()
		s.owed.tries++
	}
	s.owed.err = fmt.Errorf("%s, which maps to %d keys: %w", c.object, len(c.items), refused)
	s.r.s.warn(reasonRefused, "a change of %s waits, because the source may not store more: %v", s.r.served.Name(), s.owed.err)
	s.r.s.tally.change(resultRefused)
	s.r.note(s.namespace, false, s.owed.err)
	return nil
}

// stored is the version of the stream's row.
func (s *stream) stored() string {
	w, _ := s.r.rows.get(s.namespace)
	return w.version
}

// none is the version of the stream's row while a list is needed.
func (s *stream) none() string {
	w, _ := s.r.rows.get(s.namespace)
	if w.version == doubted {
		return doubted
	}
	return waiting(w.partial)
}

// waiting is that version for a stream of all namespaces whose rows are parts, or for another one.
func waiting(parts bool) string {
	if parts {
		return relisting
	}
	return ""
}
