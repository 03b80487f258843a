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

// PayloadBytes is how much data each event carries, KeyBytes how long each key is.
const (
	PayloadBytes = 256
	KeyBytes     = len("GitRepo/01234567/site-0123456789")
)

// Key returns the key of an index. Indexes that follow each other are far apart
// in key order, as the keys of independent objects are: a store that only ever
// appends would have an unfair advantage.
func Key(index uint32) string {
	return fmt.Sprintf("GitRepo/%08x/site-%010d", index*2654435761, index)
}

// Index reads the index back from a key.
func Index(key string) (uint32, bool) {
	n, err := strconv.ParseUint(key[strings.LastIndexByte(key, '-')+1:], 10, 32)
	return uint32(n), err == nil && strings.Contains(key, "-")
}

// When is the time of an occurrence, as a member of a JSON object.
type When string

// In returns the time after a delay.
func In(d time.Duration) When { return When(`"delay":"` + d.String() + `"`) }

// At returns an instant.
func At(t time.Time) When { return When(`"dueAt":"` + t.UTC().Format(time.RFC3339Nano) + `"`) }

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
func NewMaker(seed uint64) *Maker { return &Maker{random: rand.New(rand.NewPCG(seed, 0))} }

// Random returns random bytes. The next call overwrites them.
func (m *Maker) Random() []byte {
	for i := 0; i < PayloadBytes; i += 8 {
		binary.LittleEndian.PutUint64(m.raw[i:], m.random.Uint64())
	}
	return m.raw[:]
}

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"

// AppendData appends the data of an event as the sink receives it: text.
func (m *Maker) AppendData(b []byte) []byte {
	b = append(b, '"')
	for _, c := range m.Random()[:PayloadBytes-2] {
		b = append(b, letters[c%64])
	}
	return append(b, '"')
}

// AppendEvent appends the event attributes as a JSON object.
func (m *Maker) AppendEvent(b []byte) []byte {
	if m.Binary {
		b = append(b, `{"type":"dev.example.bench","datacontenttype":"application/octet-stream","data_base64":"`...)
		return append(base64.StdEncoding.AppendEncode(b, m.Random()), `"}`...)
	}
	return append(m.AppendData(append(b, `{"type":"dev.example.bench","data":`...)), '}')
}

// AppendPut appends the body of a PUT.
func (m *Maker) AppendPut(b []byte, when When) []byte {
	b = append(append(append(b, '{'), when...), `,"event":`...)
	return append(m.AppendEvent(b), '}')
}

// AppendBulk appends the body of a bulk POST of n keys from the index first on.
// The function when returns the time of each.
func (m *Maker) AppendBulk(b []byte, first uint32, n int, when func(index uint32) When) []byte {
	b = append(b, `{"items":[`...)
	for i := range uint32(n) {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, `{"key":"`...), Key(first+i)...), `",`...)
		b = append(append(b, when(first+i)...), `,"event":`...)
		b = append(m.AppendEvent(b), '}')
	}
	return append(b, `]}`...)
}
