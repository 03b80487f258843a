package api

import (
	"net/http"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
)

const (
	// listChunk is how many keys are held at one time while a list is written:
	// each may have an event of 256 KiB.
	listChunk = 32
	// listBytes ends a page early. 1000 keys with events of 256 KiB would be an
	// answer of 256 MiB; keys with ordinary events fill their page.
	listBytes = 4 << 20
	// listShare is a large list's share of the budget: the page, and the chunk
	// that brought it over listBytes.
	listShare = 16 << 20
	// listTime ends a page that is hard to fill: few of many keys have the
	// prefix, or most have expired.
	listTime = 2 * time.Second
)

// list is GET {address}/schedules.
func (c *call) list() error {
	o, err := listOptions(c.r.URL.RawQuery)
	if err != nil {
		return err
	}
	buf := buffers.Get().(*buffer)
	defer buf.free()
	b := append(buf.b, `{"items":[`...)
	start := c.cfg.Now()
	for left := o.Limit; left > 0 && len(b) < listBytes && c.cfg.Now().Sub(start) < listTime; {
		o.Limit = min(left, listChunk)
		views, next, err := c.src.List(o)
		if err != nil {
			return err
		}
		for i := range views {
			if b[len(b)-1] != '[' {
				b = append(b, ',')
			}
			b = appendView(b, &views[i])
		}
		buf.b, o.Continue = b, next
		if next == "" {
			break
		}
		left -= len(views)
		if len(b) > uncounted && c.release == nil {
			if err := c.acquire(listShare); err != nil {
				return err
			}
		}
	}
	b = append(b, `],"continue":`...)
	b = appendString(b, o.Continue)
	buf.b = append(b, "}\n"...)
	c.send(http.StatusOK, typeJSON, buf.b)
	return nil
}

var _ source = (*queue.Source)(nil)
