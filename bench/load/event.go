package load

import (
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// PayloadBytes is how much data each event carries.
const PayloadBytes = 256

// KeyBytes is how long each key is.
const KeyBytes = len("GitRepo/01234567/site-0123456789")

// Key returns the key of an index. Indexes that follow each other are far apart
// in key order, as the keys of independent objects are: a store that only ever
// appends would have an unfair advantage.
func Key(index uint32) string {
	return fmt.Sprintf("GitRepo/%08x/site-%010d", index*2654435761, index)
}

// Index reads the index back from a key.
func Index(key string) (uint32, bool) {
	at := strings.LastIndexByte(key, '-')
	if at < 0 {
		return 0, false
	}
	n, err := strconv.ParseUint(key[at+1:], 10, 32)
	return uint32(n), err == nil
}

// Maker makes requests with random data. Not safe for concurrent use.
type Maker struct {
	// Binary makes the data 256 random bytes, sent as data_base64: nothing can
	// compress them. Otherwise the data is a JSON string of 256 bytes of random
	// letters, quotes included, like the data of most senders. A compressor that
	// only looks for repeats cannot shrink it either.
	Binary bool
	random *rand.Rand
	raw    [PayloadBytes]byte
}

// NewMaker returns a Maker with random data from the seed.
func NewMaker(seed uint64) *Maker {
	return &Maker{random: rand.New(rand.NewPCG(seed, 0))}
}

// Random returns random bytes. The next call overwrites them.
func (m *Maker) Random() []byte {
	for i := 0; i < PayloadBytes; i += 8 {
		binary.LittleEndian.PutUint64(m.raw[i:], m.random.Uint64())
	}
	return m.raw[:]
}

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// AppendEvent appends the event attributes as a JSON object.
func (m *Maker) AppendEvent(b []byte) []byte {
	raw := m.Random()
	if m.Binary {
		b = append(b, `{"type":"dev.example.bench","datacontenttype":"application/octet-stream","data_base64":"`...)
		b = base64.StdEncoding.AppendEncode(b, raw)
		return append(b, `"}`...)
	}
	b = append(b, `{"type":"dev.example.bench","data":`...)
	return append(appendText(b, raw), '}')
}

// AppendData appends the data of an event as the sink receives it.
func (m *Maker) AppendData(b []byte) []byte { return appendText(b, m.Random()) }

func appendText(b, raw []byte) []byte {
	b = append(b, '"')
	for _, c := range raw[:PayloadBytes-2] {
		b = append(b, letters[c%64])
	}
	return append(b, '"')
}

// When is the time of an occurrence: an instant, or a delay when there is none.
type When struct {
	Delay time.Duration
	At    time.Time
}

func (w When) append(b []byte) []byte {
	if w.At.IsZero() {
		b = append(b, `"delay":"`...)
		b = append(b, w.Delay.String()...)
	} else {
		b = append(b, `"dueAt":"`...)
		b = w.At.UTC().AppendFormat(b, time.RFC3339Nano)
	}
	return append(b, '"')
}

// AppendPut appends the body of a PUT.
func (m *Maker) AppendPut(b []byte, when When) []byte {
	b = append(b, '{')
	b = when.append(b)
	b = append(b, `,"event":`...)
	b = m.AppendEvent(b)
	return append(b, '}')
}

// AppendBulk appends the body of a bulk POST of n keys from the index first on.
// The function when returns the time of each.
func (m *Maker) AppendBulk(b []byte, first uint32, n int, when func(index uint32) When) []byte {
	b = append(b, `{"items":[`...)
	for i := range n {
		index := first + uint32(i)
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"key":"`...)
		b = append(b, Key(index)...)
		b = append(b, `",`...)
		b = when(index).append(b)
		b = append(b, `,"event":`...)
		b = m.AppendEvent(b)
		b = append(b, '}')
	}
	return append(b, `]}`...)
}
