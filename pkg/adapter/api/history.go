package api

import (
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/reschedule-dev/reschedule/pkg/adapter/recent"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

// keyHistory is GET {address}/schedules/{key}/history.
func keyHistory(c *call) error {
	if err := c.noQuery(); err != nil {
		return err
	}
	outcomes, since, err := c.src.History(c.key)
	if err != nil {
		return err
	}
	buf := buffers.Get().(*buffer)
	defer buf.free()
	b, err := c.reserve(buf.b, 64+len(outcomes)*(256+512))
	if err != nil {
		return err
	}
	b = append(b, `{"items":[`...)
	for i := range outcomes {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendOutcome(b, &outcomes[i])
	}
	b = append(b, `],"since":`...)
	buf.b = append(appendTime(b, since), "}\n"...)
	c.send(http.StatusOK, typeJSON, buf.b)
	return nil
}

func appendOutcome(b []byte, o *recent.Outcome) []byte {
	b = append(b, `{"at":`...)
	b = appendTime(b, o.At)
	b = append(b, `,"result":"`...)
	b = append(b, o.Result...)
	b = append(b, `","status":`...)
	b = strconv.AppendInt(b, int64(o.Status), 10)
	b = append(b, `,"attempt":`...)
	b = strconv.AppendUint(b, uint64(o.Attempt), 10)
	b = appendDuration(append(b, `,"lateness":`...), o.Lateness)
	b = appendDuration(append(b, `,"duration":`...), o.Duration)
	b = appendMember(b, "cause", o.Cause)
	return append(b, '}')
}

func appendDuration(b []byte, d time.Duration) []byte {
	return append(append(append(b, '"'), d.String()...), '"')
}

// detail is the start of a body as text of at most schedule.MaxFailureData bytes.
func detail(data []byte) string {
	text := strings.ToValidUTF8(string(data), "\uFFFD")
	if len(text) <= schedule.MaxFailureData {
		return text
	}
	end := schedule.MaxFailureData
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// appendFailure writes the members of a failed attempt: error is one sentence, or the code of
// an answer that could not be read; detail is what could not be read, or the
// start of the answer's body.
func appendFailure(b []byte, code int, data []byte) []byte {
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(code), 10)
	text := string(data)
	switch {
	case schedule.IsBadAnswer(code):
		text = schedule.BadAnswer
	case code != 0:
		text = strings.TrimSpace("the sink answered " + strconv.Itoa(code) + " " + http.StatusText(code))
	}
	b = appendMember(b, "error", text)
	if code != 0 {
		b = appendMember(b, "detail", detail(data))
	}
	return b
}
