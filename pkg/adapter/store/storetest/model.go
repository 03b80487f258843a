package storetest

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// name is a key of a source.
type name struct{ source, key string }

// model is what a store holds, as simply as can be: every read scans all of it.
type model map[name]*schedule.Entry

func (m model) apply(c store.Change) {
	if c.New == nil {
		delete(m, name{c.Source, c.Key})
		return
	}
	m[name{c.Source, c.Key}] = c.New
}

// names are the names of a source that keep says true of, in key order.
func (m model) names(keep func(name, *schedule.Entry) bool) []name {
	var found []name
	for n, e := range m {
		if keep(n, e) {
			found = append(found, n)
		}
	}
	slices.SortFunc(found, func(a, b name) int {
		return cmp.Or(cmp.Compare(a.source, b.source), cmp.Compare(a.key, b.key))
	})
	return found
}

func (m model) count(source string) (keys, dead int64) {
	for n := range m {
		switch {
		case n.source != source:
		case schedule.IsDeadLetterKey(n.key):
			dead++
		default:
			keys++
		}
	}
	return keys, dead
}

func (m model) bands(source string) (keys [schedule.Bands]int64) {
	for n, e := range m {
		if n.source == source && !schedule.IsDeadLetterKey(n.key) {
			keys[e.Priority.Band()]++
		}
	}
	return keys
}

func (m model) bytes(source string) (n int64) {
	for name, e := range m {
		if name.source == source {
			n += e.Size(name.key)
		}
	}
	return n
}

// rows are the rows of an index, at gives the instant, zero for no row.
func (m model) rows(source string, at func(*schedule.Entry) time.Time) []store.SourceRow {
	var found []store.SourceRow
	for n, e := range m {
		if t := at(e); !t.IsZero() && (source == "" || n.source == source) {
			found = append(found, store.SourceRow{Source: n.source, Row: store.Row{Position: store.Position{At: t, Key: n.key}, Revision: e.Revision}})
		}
	}
	slices.SortFunc(found, func(a, b store.SourceRow) int {
		return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Key, b.Key))
	})
	return found
}

func (m model) due(source string, p schedule.Priority, after store.Position, limit int) (rows []store.Row, more bool) {
	for _, r := range m.rows(source, (*schedule.Entry).At) {
		r.Priority = m[name{source, r.Key}].Rank()
		if r.Priority != p || after != (store.Position{}) && !after.Before(r.Position) {
			continue
		}
		if len(rows) == limit {
			return rows, true
		}
		r.Slack = m[name{source, r.Key}].OwnSlack()
		rows = append(rows, r.Row)
	}
	return rows, false
}

func originalDue(e *schedule.Entry) time.Time { return e.DueAt }

func (m model) list(source, prefix, after string, limit int) (keys []string, more bool) {
	for _, n := range m.names(func(n name, _ *schedule.Entry) bool {
		return n.source == source && strings.HasPrefix(n.key, prefix) && n.key > after && !schedule.IsDeadLetterKey(n.key)
	}) {
		if len(keys) == limit {
			return keys, true
		}
		keys = append(keys, n.key)
	}
	return keys, false
}

func (m model) listDue(source, prefix string) []string {
	keys := []string{}
	for _, r := range m.rows(source, originalDue) {
		if strings.HasPrefix(r.Key, prefix) && !schedule.IsDeadLetterKey(r.Key) {
			keys = append(keys, r.Key)
		}
	}
	return keys
}

func (m model) backlog(source string, now time.Time, slack time.Duration, skip func(string, uint64) bool) (b store.Backlog) {
	for _, r := range m.rows(source, originalDue) {
		if schedule.IsDeadLetterKey(r.Key) || skip(r.Key, r.Revision) {
			continue
		}
		if r.At.After(now) {
			b.NextAt = r.At
			return b
		}
		if b.Due++; b.Due == 1 {
			b.OldestAt = r.At
		}
		e := m[name{r.Source, r.Key}]
		band := &b.Bands[e.Priority.Band()]
		band.Due++
		switch at := e.SlackEnd(&schedule.Spec{Waking: schedule.Waking{Slack: slack}}); {
		case !e.RetryAt.IsZero():
			b.Retrying++
		case !at.After(now):
			b.OldestUntriedAt = earlier(b.OldestUntriedAt, at)
			band.OldestUntriedAt = earlier(band.OldestUntriedAt, at)
		}
	}
	return b
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || b.Before(a) {
		return b
	}
	return a
}

func (m model) expired(now time.Time) (rows []store.SourceRow, next time.Time) {
	for _, r := range m.rows("", func(e *schedule.Entry) time.Time { return e.ExpiresAt }) {
		if r.At.After(now) {
			return rows, r.At
		}
		rows = append(rows, r)
	}
	return rows, next
}

func (m model) unfinished() []store.SourceRow {
	rows := m.rows("", func(e *schedule.Entry) time.Time { return e.UnfinishedAt })
	slices.SortFunc(rows, func(a, b store.SourceRow) int {
		return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Key, b.Key))
	})
	return rows
}
