package store

import (
	"bytes"
	"encoding/binary"

	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// row is one index row, as offsets into the buffer it was made in.
type row struct{ start, mid, stop int }

// rows are the index rows of one entry.
type rows struct {
	buf []byte
	at  [4]row
	n   int
}

func (r *rows) key(i int) []byte   { return r.buf[r.at[i].start:r.at[i].mid] }
func (r *rows) value(i int) []byte { return r.buf[r.at[i].mid:r.at[i].stop] }

func (r *rows) add(start, mid int) {
	r.at[r.n] = row{start, mid, len(r.buf)}
	r.n++
}

// derive makes all index rows of an entry: this function is the only place
// that defines them, so writing, removing and verifying agree.
func (r *rows) derive(source, key string, e *schedule.Entry) {
	r.buf, r.n = r.buf[:0], 0
	if e == nil {
		return
	}
	r.buf = appendDueKey(r.buf, source, e.Rank(), e.At(), key, e.Revision)
	mid := len(r.buf)
	if slack := e.OwnSlack(); !e.RetryAt.IsZero() {
		r.buf = append(r.buf, retryMark)
	} else if slack != 0 {
		r.buf = binary.AppendVarint(append(r.buf, slackMark), int64(slack))
	}
	r.add(0, mid)
	if !e.RetryAt.IsZero() {
		start := len(r.buf)
		r.buf = appendRetryKey(r.buf, source, e.DueAt, key, e.Revision)
		mid := len(r.buf)
		r.buf = append(r.buf, bandMark(e.Rank()))
		r.add(start, mid)
	}
	if !e.ExpiresAt.IsZero() {
		start := len(r.buf)
		r.buf = appendExpiryKey(r.buf, source, e.ExpiresAt, key, e.Revision)
		r.add(start, len(r.buf))
	}
	if !e.UnfinishedAt.IsZero() {
		start := len(r.buf)
		r.buf = appendUnfinishedKey(r.buf, source, key)
		mid := len(r.buf)
		r.buf = appendInstant(r.buf, e.UnfinishedAt)
		r.buf = binary.BigEndian.AppendUint64(r.buf, e.Revision)
		r.add(start, mid)
	}
}

// has reports whether the row i of o is among r.
func (r *rows) has(o *rows, i int) bool {
	for j := range r.n {
		if bytes.Equal(r.key(j), o.key(i)) && bytes.Equal(r.value(j), o.value(i)) {
			return true
		}
	}
	return false
}
