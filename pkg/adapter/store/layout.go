package store

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// The first byte of a key names its table; the second is always '/', so that a
// dump of the database can be read by people.
const (
	tableRecord     = 's'
	tableEvent      = 'e'
	tableDue        = 'd'
	tableRetry      = 'r'
	tableExpiry     = 'x'
	tableUnfinished = 'u'
	tableCounter    = 'c'
	tablePurge      = 'p'
	tableMark       = 'f'
	tableWatch      = 'w'
	tableMeta       = 'm'
)

// end is a byte that ends a source or a key inside of a row. Neither can hold
// it, so the order of rows is the order of (source, key), whatever their
// lengths.
const end = 0

// slackMark begins the value of a due row whose entry may wait for company. Its slack follows, a varint.
const slackMark = 's'

// retryMark is the value of a due row whose entry is between two attempts: its
// original due time has a row of its own in the retry table, with its priority as the value.
const retryMark = 'r'

var errRow = errors.New("store: a row that is not of this format")

// appendInstant writes an instant so that the order of bytes is the order of
// time: Unix nanoseconds with the sign bit flipped, so that what was before
// 1970 comes first. Instants that do not fit (before 1678, after 2262) become
// the nearest that does.
func appendInstant(dst []byte, t time.Time) []byte {
	return binary.BigEndian.AppendUint64(dst, uint64(nanos(t))^1<<63)
}

func instant(b []byte) time.Time {
	return time.Unix(0, int64(binary.BigEndian.Uint64(b)^1<<63)).UTC()
}

var (
	earliest = time.Unix(0, math.MinInt64)
	latest   = time.Unix(0, math.MaxInt64)
)

func nanos(t time.Time) int64 {
	switch {
	case t.Before(earliest):
		return math.MinInt64
	case t.After(latest):
		return math.MaxInt64
	}
	return t.UnixNano()
}

func appendTable(dst []byte, table byte) []byte { return append(dst, table, '/') }

// appendSource starts a row of a table that is ordered by source.
func appendSource(dst []byte, table byte, source string) []byte {
	return append(append(appendTable(dst, table), source...), end)
}

func appendRecordKey(dst []byte, source, key string) []byte {
	return append(appendSource(dst, tableRecord, source), key...)
}

func appendEventKey(dst []byte, source, key string) []byte {
	return append(appendSource(dst, tableEvent, source), key...)
}

func appendUnfinishedKey(dst []byte, source, key string) []byte {
	return append(appendSource(dst, tableUnfinished, source), key...)
}

func appendCounterKey(dst []byte, source string) []byte {
	return append(appendTable(dst, tableCounter), source...)
}

func purgeKey(source string) []byte {
	return append(appendTable(nil, tablePurge), source...)
}

// bandMark is the byte of a priority in a row: the highest comes first.
func bandMark(p schedule.Priority) byte { return byte('0' + p.Band()) }

func parseBand(b byte) (schedule.Priority, error) {
	if b < '0' || int(b-'0') >= schedule.Bands {
		return 0, errRow
	}
	return schedule.Priorities[b-'0'], nil
}

// appendDue starts a row of the due table, which is ordered by priority, then by time.
func appendDue(dst []byte, source string, p schedule.Priority) []byte {
	return append(appendSource(dst, tableDue, source), bandMark(p))
}

func appendDueKey(dst []byte, source string, p schedule.Priority, at time.Time, key string, revision uint64) []byte {
	return appendTimed(appendDue(dst, source, p), at, key, revision)
}

func appendRetryKey(dst []byte, source string, at time.Time, key string, revision uint64) []byte {
	return appendTimed(appendSource(dst, tableRetry, source), at, key, revision)
}

func appendTimed(dst []byte, at time.Time, key string, revision uint64) []byte {
	dst = append(append(appendInstant(dst, at), key...), end)
	return binary.BigEndian.AppendUint64(dst, revision)
}

// appendAfter makes of a prefix the bound that comes right after all rows of the position:
// a key goes on with a byte above 0x01 (it has no control characters), while
// the same key ends with 0x00.
func appendAfter(dst []byte, after Position) []byte {
	if after.At.IsZero() && after.Key == "" {
		return dst
	}
	return append(append(appendInstant(dst, after.At), after.Key...), end+1)
}

func appendExpiryKey(dst []byte, source string, at time.Time, key string, revision uint64) []byte {
	dst = appendInstant(appendTable(dst, tableExpiry), at)
	dst = append(append(dst, source...), end)
	dst = append(append(dst, key...), end)
	return binary.BigEndian.AppendUint64(dst, revision)
}

// parseTimed reads a row of the due or the retry table from its instant on.
func parseTimed(b []byte) (Row, error) {
	n := len(b) - 17
	if n < 0 || b[8+n] != end {
		return Row{}, errRow
	}
	return Row{
		Position: Position{At: instant(b), Key: string(b[8 : 8+n])},
		Revision: binary.BigEndian.Uint64(b[9+n:]),
	}, nil
}

// parseDueKey reads what follows the source in a row of the due table.
func parseDueKey(b []byte) (Row, error) {
	if len(b) == 0 {
		return Row{}, errRow
	}
	return parseRanked(b[0], b[1:])
}

func parseRanked(band byte, timed []byte) (Row, error) {
	p, err := parseBand(band)
	if err != nil {
		return Row{}, err
	}
	r, err := parseTimed(timed)
	r.Priority = p
	return r, err
}

// parseDue is parseDueKey with the row's value.
func parseDue(b, value []byte) (Row, error) {
	r, err := parseDueKey(b)
	if err != nil || len(value) == 0 || value[0] == retryMark {
		return r, err
	}
	slack, n := binary.Varint(value[1:])
	if value[0] != slackMark || n != len(value)-1 || slack < int64(schedule.SourcesSlack) {
		return r, errRow
	}
	r.Slack = time.Duration(slack)
	return r, nil
}

// parseRetry reads what follows the source in a row of the retry table, and its value.
func parseRetry(b, value []byte) (Row, error) {
	if len(value) != 1 {
		return Row{}, errRow
	}
	return parseRanked(value[0], b)
}

// parseExpiry reads a whole row of the expiry table.
func parseExpiry(b []byte) (SourceRow, error) {
	if len(b) < 10 {
		return SourceRow{}, errRow
	}
	source, rest, ok := bytes.Cut(b[10:], []byte{end})
	n := len(rest) - 9
	if !ok || n < 0 || rest[n] != end {
		return SourceRow{}, errRow
	}
	return SourceRow{Source: string(source), Row: Row{
		Position: Position{At: instant(b[2:]), Key: string(rest[:n])},
		Revision: binary.BigEndian.Uint64(rest[n+1:]),
	}}, nil
}

// parseSourced reads a row that is a source and a key.
func parseSourced(b []byte) (source, key string, err error) {
	if len(b) < 2 {
		return "", "", errRow
	}
	s, k, ok := bytes.Cut(b[2:], []byte{end})
	if !ok {
		return "", "", errRow
	}
	return string(s), string(k), nil
}

// successor is the first key behind all that start with prefix, which
// is never all 0xff since every table starts with a letter.
func successor(prefix []byte) []byte {
	n := len(prefix)
	for prefix[n-1] == 0xff {
		n--
	}
	next := bytes.Clone(prefix[:n])
	next[n-1]++
	return next
}

// checkNames refuses what would break the order of rows.
func checkNames(source, key string) error {
	switch {
	case source == "" || strings.IndexByte(source, end) >= 0:
		return errors.New("store: a source's name is empty or has a zero byte")
	case key == "" || strings.IndexByte(key, end) >= 0 || strings.IndexByte(key[1:], end+1) >= 0:
		return errors.New("store: a key is empty or has a control character")
	}
	return nil
}

// parseUnfinished reads a whole row of the unfinished table.
func parseUnfinished(key, value []byte) (SourceRow, error) {
	source, k, err := parseSourced(key)
	if err != nil || len(value) != 16 {
		return SourceRow{}, errRow
	}
	return SourceRow{Source: source, Row: Row{
		Position: Position{At: instant(value), Key: k},
		Revision: binary.BigEndian.Uint64(value[8:]),
	}}, nil
}
