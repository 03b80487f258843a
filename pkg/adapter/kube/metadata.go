package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
)

const (
	// maxMetadata bounds what is kept of an object. The API server's own bound of all
	// annotations is half of it.
	maxMetadata = 512 << 10
	// maxObject bounds an object on the wire: managedFields are skipped, not kept. etcd takes 1.5 MB, of which JSON
	// makes up to six times as much.
	maxObject = 10 << 20
	// tokenBytes is what a value costs beside its text.
	tokenBytes = 32
	// arrival is how long the rest of an event may take to arrive: its watch reads at its turn, for
	// which the others wait. An event of 1 MB comes in 64 parts.
	arrival = 10 * time.Second
	// maxDepth bounds values in values; metadata has three levels.
	maxDepth = 16
	// maxName bounds names, uids and versions, and maxContinue the token of the next page: they are
	// remembered. The API server takes names of any length for Roles and RoleBindings, and the token has the last
	// name of the page. An HTTP server takes no longer URL.
	maxName, maxContinue = 512, 1 << 20
	// maxServed bounds an entry of the discovery, on the wire and as it is kept.
	maxServed = 64 << 10
)

// errVersionSize ends a stream, errTokenSize a list: what would be remembered is too large. errSlow ends
// a watch.
var (
	errVersionSize = fmt.Errorf("a version has more than %d bytes", maxName)
	errSlow        = fmt.Errorf("an event did not arrive within %s", arrival)
	errTokenSize   = fmt.Errorf("the token of the next page has more than %d bytes", maxContinue)
)

// errObjectSize ends a stream: the object has more than maxObject bytes.
var errObjectSize = fmt.Errorf("an object has more than %d bytes", maxObject)

const (
	// oneRead is how much is read at once.
	oneRead = 4 << 10
	// usualEvent is an event after which a watch keeps its decoder. After a larger one the
	// decoder has grown with it, and hundreds of watches may get the same event.
	usualEvent = 8 << 10
)

// bursts reads a stream. Between two events it calls idle before it waits for more, and
// begin once there is more. There is no wait when a full buffer ends inside an event,
// which would end with its line: the rest is on its way.
type bursts struct {
	from        io.Reader
	begin, idle func() error // nil: none
	buf         []byte
	rest        []byte      // not yet read
	more        bool        // is on its way
	inside      bool        // an event has begun
	left        int         // of maxObject
	late        *time.Timer // runs from the first wait inside an event to its end; nil: it may take long
	waited      bool
}

// ended ends the time of an event.
func (b *bursts) ended() {
	if b.waited {
		b.late.Stop()
		b.waited = false
	}
}

func (b *bursts) Read(p []byte) (int, error) {
	if b.left < 0 {
		return 0, errObjectSize
	}
	if len(b.rest) == 0 {
		waits := b.idle != nil && !b.more && !b.inside
		if waits {
			if err := b.idle(); err != nil {
				return 0, err
			}
		}
		if !waits && !b.waited && b.late != nil {
			b.late.Reset(arrival)
			b.waited = true
		}
		n, err := b.from.Read(b.buf)
		b.rest = b.buf[:n]
		b.more = n == len(b.buf) && b.rest[n-1] != '\n'
		if n == 0 {
			return 0, err
		}
		if waits {
			if err := b.begin(); err != nil {
				return 0, err
			}
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	b.left -= n
	return n, nil
}

// reader reads lists and watches object by object.
type reader struct {
	in   *bursts
	dec  *jsontext.Decoder
	left int // of maxMetadata
}

func newReader(from io.Reader, begin, idle func() error) *reader {
	in := &bursts{from: from, begin: begin, idle: idle, buf: make([]byte, oneRead), left: maxObject}
	return &reader{in: in, dec: newDecoder(in)}
}

func newDecoder(from io.Reader) *jsontext.Decoder {
	return jsontext.NewDecoder(from, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
}

// between ends an event: what was large of it is let go. If the next event is there, it begins.
func (r *reader) between() error {
	if unread := r.dec.UnreadBuffer(); maxObject-r.in.left > usualEvent {
		r.in.rest = append(bytes.Clone(unread), r.in.rest...)
		r.dec = newDecoder(r.in)
	}
	r.in.left, r.in.inside = maxObject, false
	if len(bytes.TrimSpace(r.dec.UnreadBuffer()))+len(bytes.TrimSpace(r.in.rest)) > 0 {
		return r.in.begin()
	}
	return nil
}

// members calls member for each member of an object; member must read its value.
func (r *reader) members(member func(name string) error) error {
	if kind := r.dec.PeekKind(); kind != '{' {
		if kind == 'n' {
			return r.dec.SkipValue()
		}
		if _, err := r.dec.ReadToken(); err != nil {
			return err
		}
		return errors.New("the answer is not an object")
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return err
	}
	for r.dec.PeekKind() != '}' {
		name, err := r.dec.ReadToken()
		if err != nil {
			return err
		}
		if err := member(name.String()); err != nil {
			return err
		}
	}
	_, err := r.dec.ReadToken()
	return err
}

func (r *reader) text() (string, error) {
	if r.dec.PeekKind() != '"' {
		return "", r.dec.SkipValue()
	}
	t, err := r.dec.ReadToken()
	if err != nil {
		return "", err
	}
	return t.String(), nil
}

// list reads one page. Without each it skips the objects.
func (r *reader) list(each func(*objects.Object) error) (page objects.Page, err error) {
	err = r.members(func(name string) error {
		switch name {
		case "metadata":
			return r.members(func(name string) (err error) {
				switch name {
				case "resourceVersion":
					if page.Version, err = r.text(); len(page.Version) > maxName {
						return errVersionSize
					}
				case "continue":
					if page.Continue, err = r.text(); len(page.Continue) > maxContinue {
						return errTokenSize
					}
				default:
					err = r.dec.SkipValue()
				}
				return err
			})
		case "items":
			if each != nil {
				return r.items(each)
			}
		}
		return r.dec.SkipValue()
	})
	return page, err
}

func (r *reader) items(each func(*objects.Object) error) error {
	return r.elements(maxObject, func() error {
		o, _, err := r.object()
		if err != nil {
			return err
		}
		return each(o)
	})
}

// elements calls each for every element of a list, which has no more bytes than most; each must
// read it.
func (r *reader) elements(most int, each func() error) error {
	if r.dec.PeekKind() != '[' {
		return r.dec.SkipValue()
	}
	if _, err := r.dec.ReadToken(); err != nil {
		return err
	}
	for r.dec.PeekKind() != ']' {
		r.in.left = most
		if err := each(); err != nil {
			return err
		}
	}
	_, err := r.dec.ReadToken()
	return err
}

// served calls each for every entry of some members of a document of the discovery, which are
// lists or one entry, until it returns false.
func (r *reader) served(members []string, each func(member string, entry map[string]any) bool) error {
	errEnough := errors.New("kube: enough was read")
	r.in.left = maxServed
	err := r.members(func(member string) error {
		if !slices.Contains(members, member) {
			return r.dec.SkipValue()
		}
		one := func() error {
			r.left = maxServed
			v, err := r.value(maxDepth)
			if entry, ok := v.(map[string]any); err == nil && ok && !each(member, entry) {
				return errEnough
			}
			return err
		}
		if r.dec.PeekKind() == '{' {
			return one()
		}
		return r.elements(maxServed, one)
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// status is what is read of an error of the API server.
type status struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// watch reads the events until the stream ends.
func (r *reader) watch(each func(objects.EventType, *objects.Object) error) error {
	for {
		switch r.dec.PeekKind() {
		case 0: // the end, or an error
			_, err := r.dec.ReadToken()
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		r.in.inside = true
		var kind string
		var o *objects.Object
		var failure status
		err := r.members(func(name string) (err error) {
			switch name {
			case "type":
				kind, err = r.text()
			case "object":
				o, failure, err = r.object()
			default:
				err = r.dec.SkipValue()
			}
			return err
		})
		if err != nil {
			return err
		}
		r.in.ended()
		switch t := objects.EventType(kind); t {
		case objects.Added, objects.Modified, objects.Deleted, objects.Bookmark:
			if o == nil {
				return fmt.Errorf("an event of type %s has no object", kind)
			}
			if err := each(t, o); err != nil {
				return err
			}
		default:
			return failure.err()
		}
		if err := r.between(); err != nil {
			return err
		}
	}
}

// object reads the metadata of an object, or a status in its place.
func (r *reader) object() (o *objects.Object, s status, err error) {
	r.left = maxMetadata
	err = r.members(func(name string) (err error) {
		switch name {
		case "metadata":
			o, err = r.metadata()
		case "message":
			s.Message, err = r.text()
		case "code":
			var v any
			if v, err = r.value(maxDepth); err == nil {
				n, _ := v.(int64)
				s.Code = int(n)
			}
		default:
			err = r.dec.SkipValue()
		}
		return err
	})
	if o == nil {
		o = &objects.Object{}
	}
	return o, s, err
}

func (r *reader) metadata() (*objects.Object, error) {
	m := map[string]any{}
	err := r.members(func(name string) error {
		switch name {
		case "name", "namespace", "uid", "resourceVersion": // of any length
			v, err := r.text()
			m[name] = v
			return err
		}
		if name == "managedFields" || r.left < 0 {
			return r.dec.SkipValue()
		}
		v, err := r.value(maxDepth)
		if r.left >= 0 {
			m[name] = v
		}
		return err
	})
	o := objects.FromMetadata(m)
	if r.left < 0 {
		o.TooLarge, o.Metadata = true, nil
	}
	if len(o.Version) > maxName {
		return o, errVersionSize
	}
	if len(o.UID) > maxName { // no uid of the API server's own
		o.UID = ""
	}
	if max(len(o.Namespace), len(o.Name)) > maxName { // longer than any that can be used, so that it is told as such
		o.Namespace, o.Name = cut(o.Namespace), cut(o.Name)
		o.TooLarge, o.Metadata = true, nil
	}
	return o, err
}

func cut(name string) string { return strings.Clone(name[:min(len(name), maxName+1)]) }

// value reads any value. Once the object's bytes are used up it skips.
func (r *reader) value(depth int) (any, error) {
	if r.left -= tokenBytes; r.left < 0 || depth == 0 {
		r.left = min(r.left, depth-1)
		return nil, r.dec.SkipValue()
	}
	switch r.dec.PeekKind() {
	case '{':
		m := map[string]any{}
		err := r.members(func(name string) error {
			r.left -= len(name)
			v, err := r.value(depth - 1)
			m[name] = v
			return err
		})
		return m, err
	case '[':
		if _, err := r.dec.ReadToken(); err != nil {
			return nil, err
		}
		list := []any{}
		for r.dec.PeekKind() != ']' {
			v, err := r.value(depth - 1)
			if err != nil {
				return nil, err
			}
			if r.left >= 0 {
				list = append(list, v)
			}
		}
		_, err := r.dec.ReadToken()
		return list, err
	}
	t, err := r.dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch t.Kind() {
	case '"':
		s := t.String()
		r.left -= len(s)
		return s, nil
	case '0':
		if n, err := strconv.ParseInt(t.String(), 10, 64); err == nil {
			return n, nil
		}
		return t.Float()
	case 't', 'f':
		return t.Bool(), nil
	}
	return nil, nil
}
