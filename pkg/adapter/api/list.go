package api

import (
	"net/http"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/queue"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
)

const (
	// listChunk is how many keys are read at one time while a list is written.
	listChunk = 32
	// chunkBytes is what a chunk may take: the store ends it after a MiB, or the
	// first key, and what was read is there twice.
	chunkBytes = 4 << 20
	// listBytes ends a page early. 1000 keys with events of 256 KiB would be an
	// answer of 256 MiB; keys with ordinary events fill their page.
	listBytes = 4 << 20
	// listTime ends a page that is hard to fill: few of many keys have the
	// prefix, or most have expired.
	listTime = 2 * time.Second
	// scansAtOnce is how many lists search for a prefix by due time, or for a state, at one
	// time: they may read any number of rows for each key. A source has one of
	// them, a namespace two.
	scansAtOnce = 4
)

// listKeys is GET {address}/schedules.
func listKeys(c *call) error {
	o, err := listOptions(c.r.URL.RawQuery)
	if err != nil {
		return err
	}
	if o.ByDue && o.Prefix != "" || o.State != "" && o.State != queue.InFlight {
		settings := c.src.Spec()
		scan := c.scans.Claim(settings.Namespace, settings.Name)
		defer scan.Release()
		if !c.waitFor(&scan, 1) {
			return schedule.Refuse(schedule.CodeUnavailable, "too many lists of %s look for a prefix by due time, or for a state, at once", settings.Path())
		}
	}
	return page(c, o, func(o queue.ListOptions) ([]schedule.View, string, error) { return c.src.List(o) }, viewBytes, appendView)
}

// page writes a page of a list, which it reads chunk by chunk.
func page[T any](c *call, o queue.ListOptions, read func(queue.ListOptions) ([]T, string, error), size func(*T) int, write func([]byte, *T) []byte) error {
	buf := buffers.Get().(*buffer)
	defer buf.free()
	b := append(buf.b, `{"items":[`...)
	start := c.cfg.Now()
	for left := o.Limit; left > 0 && len(b) < listBytes && c.cfg.Now().Sub(start) < listTime; {
		if err := c.grow(chunkBytes); err != nil {
			return err
		}
		o.Limit = min(left, listChunk)
		items, next, err := read(o)
		if err != nil {
			return err
		}
		total := 0
		for i := range items {
			total += size(&items[i])
		}
		if b, err = c.reserve(b, total); err != nil {
			return err
		}
		if err := c.compute(c.encoding, total); err != nil {
			return err
		}
		var none T
		for i := range items {
			if b[len(b)-1] != '[' {
				b = append(b, ',')
			}
			b = write(b, &items[i])
			items[i] = none
		}
		c.turn.Release()
		o.Continue = next
		c.claim.Shrink(chunkBytes)
		if next == "" {
			break
		}
		left -= len(items)
	}
	b = append(b, `],"continue":`...)
	b = appendString(b, o.Continue)
	buf.b = append(b, "}\n"...)
	c.send(http.StatusOK, typeJSON, buf.b)
	return nil
}

// viewBytes is about what a key takes in a list; what little more some take is
// appended all the same.
func viewBytes(v *schedule.View) int {
	n := 512 + len(v.Key)
	if v.Entry != nil && v.Event != nil {
		n += len(v.Event.Data) * 3 / 2
	}
	if v.Entry != nil && v.LastFailure != nil {
		n += 512 + len(v.LastFailure.Data)*2
	}
	return n
}

var _ source = (*queue.Source)(nil)
