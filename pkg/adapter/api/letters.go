package api

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// listLetters is GET {address}/deadletters.
func listLetters(c *call) error {
	o, err := pageOptions(c.r.URL.RawQuery)
	if err != nil {
		return err
	}
	return page(c, o, func(o queue.ListOptions) ([]queue.Letter, string, error) {
		return c.letters.List(o.Prefix, o.Continue, o.Limit)
	}, letterBytes, appendLetter)
}

// letterBytes is about what a dead letter takes in a list.
func letterBytes(l *queue.Letter) int {
	n := 1024 + len(l.Key) + 2*len(l.DeadLetter.Failure.Data)
	if l.Event != nil {
		n += len(l.Event.Data) * 3 / 2
	}
	return n
}

func appendLetter(b []byte, l *queue.Letter) []byte {
	b = append(b, `{"key":`...)
	b = appendString(b, l.Key)
	b = append(b, `,"at":`...)
	b = appendTime(b, l.ScheduledAt)
	b = append(b, `,"dueAt":`...)
	b = appendTime(b, l.DeadLetter.Due)
	b = append(b, `,"attempts":`...)
	b = strconv.AppendUint(b, uint64(l.DeadLetter.Tries), 10)
	b = appendFailure(b, l.DeadLetter.Failure.Code, l.DeadLetter.Failure.Data)
	b = append(b, `,"event":`...)
	event := l.Event
	if event == nil {
		event = &schedule.Event{}
	}
	return append(appendEvent(b, event), '}')
}

// getLetter is GET {address}/deadletters/{key}.
func getLetter(c *call) error {
	if err := c.noQuery(); err != nil {
		return err
	}
	if err := c.grow(entryBytes); err != nil {
		return err
	}
	l, ok, err := c.letters.Get(c.key)
	if err != nil {
		return err
	}
	if !ok {
		return noLetter(c.key)
	}
	buf := buffers.Get().(*buffer)
	defer buf.free()
	if err := c.compute(c.encoding, letterBytes(&l)); err != nil {
		return err
	}
	buf.b = append(appendLetter(buf.b, &l), '\n')
	c.turn.Release()
	l = queue.Letter{} // as in get
	c.keep(buf.b)
	c.send(http.StatusOK, typeJSON, buf.b)
	return nil
}

func noLetter(key string) error {
	return schedule.Refuse(schedule.CodeNotFound, "no dead letter of key %q is kept", key)
}

// discardLetter is DELETE {address}/deadletters/{key}.
func discardLetter(c *call) error {
	if err := c.noModifiers(); err != nil {
		return err
	}
	if err := c.audited(auditDiscard, c.key, c.letters.Discard(c.key), "discarded"); err != nil {
		return err
	}
	c.writeHeader(http.StatusNoContent)
	return nil
}

// discardLetters is DELETE {address}/deadletters.
func discardLetters(c *call) error {
	return deleteAll(c, auditDiscard, "discard every dead letter", c.letters.DiscardAll)
}

// redriveLetter is POST {address}/deadletters/{key}/redrive.
func redriveLetter(c *call) error {
	replaces := parameter{name: "replace"}
	if err := parseQuery(c.r.URL.RawQuery, &replaces); err != nil {
		return err
	}
	replace, err := replaces.bool()
	if err != nil {
		return err
	}
	if err := c.emptyBody(); err != nil {
		return err
	}
	there, err := c.letters.Redrive(c.key, replace, c.grow)
	if err == nil && !there {
		err = noLetter(c.key)
	}
	if err = c.audited(auditRedrive, c.key, err, "redriven"); err != nil {
		return err
	}
	sendRedriven(c, 1, 0)
	return nil
}

func sendRedriven(c *call, redriven, skipped int) {
	c.send(http.StatusOK, typeJSON, fmt.Appendf(nil, "{\"redriven\":%d,\"skipped\":%d}\n", redriven, skipped))
}

// redriveLetters is POST {address}/deadletters/redrive.
func redriveLetters(c *call) error {
	replaces := parameter{name: "replace"}
	prefix, err := selection(c.r.URL.RawQuery, "redrive every dead letter", &replaces)
	if err != nil {
		return err
	}
	replace, err := replaces.bool()
	if err != nil {
		return err
	}
	if err := c.emptyBody(); err != nil {
		return err
	}
	c.mayTake(cancelTime)
	n, skipped, err := c.letters.RedriveAll(c.r.Context(), prefix, replace, c.grow)
	if err = c.audited(auditRedrive, prefix, err, "redriven "+strconv.Itoa(n)); err != nil {
		return err
	}
	sendRedriven(c, n, skipped)
	return nil
}
