package api

import (
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// clocked notes the deadlines that a handler sets.
type clocked struct {
	*httptest.ResponseRecorder
	read, write []time.Duration // from now; 0 = none
}

func fromNow(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Until(t)
}

func (c *clocked) SetReadDeadline(t time.Time) error {
	c.read = append(c.read, fromNow(t))
	return nil
}

func (c *clocked) SetWriteDeadline(t time.Time) error {
	c.write = append(c.write, fromNow(t))
	return nil
}

// clock makes a call in fake time and returns the deadlines that it set.
func (e *edge) clock(method, target, body string, headers ...string) *clocked {
	r := httptest.NewRequest(method, target, strings.NewReader(body))
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := &clocked{ResponseRecorder: httptest.NewRecorder()}
	e.ServeHTTP(w, r)
	return w
}

// The time to read a body grows with the bytes that have arrived, from bodyGrace to bodyTime.
func TestBody_HasTimeByWhatHasArrived(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newEdge(t).clock("PUT", base+"/schedules/k", "{}"+strings.Repeat(" ", 8<<20))
		last := len(w.read) - 1
		if w.Code != 201 || w.read[0] != bodyGrace || w.read[17] < bodyGrace+16*time.Second || w.read[17] > bodyGrace+17*time.Second || w.read[last-1] != bodyTime || w.read[last] != 0 {
			t.Errorf("%d, deadlines %v", w.Code, w.read)
		}
	})
}

// A call that cancels all keys has cancelTime instead of the usual deadlines, because millions of keys take long.
func TestCancelAll_HasTimeForMillionsOfKeys(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newEdge(t).clock("DELETE", base+"/schedules?all=true", "")
		if w.Code != 200 || len(w.write) != 1 || w.write[0] != cancelTime || len(w.read) != 1 || w.read[0] != cancelTime {
			t.Errorf("%d, read %v, write %v", w.Code, w.read, w.write)
		}
	})
}

// A refusal for lack of memory has only refusalTime to be written, and closes its connection.
func TestRefusedRequest_HasLittleTimeToBeRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := newEdge(t, func(c *Config) { c.Requests = 64 << 10 })
		all := e.shares.Claim("another", "source")
		all.TryGrow(64 << 10)
		w := e.clock("GET", base, "")
		if w.Code != 503 || len(w.write) != 1 || w.write[0] != refusalTime || w.Header().Get("Connection") != "close" {
			t.Errorf("%d, write %v, %v", w.Code, w.write, w.Header())
		}
	})
}
