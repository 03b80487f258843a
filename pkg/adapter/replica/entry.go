package replica

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// An entry of the log has a part of a batch. A small batch is one part; a large one is several entries, and counts once its
// last part is in the log: a part does not keep a renewal of the lease waiting, and the memory that the log takes is bounded
// by its entries. The first part of a batch ends what was left of an earlier one, whose owner was deposed.
//
// In the log a part has five bytes in front of it: a checksum of the rest and of the entry's number, and what part it is.
const (
	headBytes = 5
	// MaxEntry is how large an entry is at most. On a busy disk one of a megabyte took longer than the lease lasts.
	MaxEntry = 128 << 10
	// MaxBatch is how large a batch is at most. The largest body of a call makes a batch of some 17 MiB.
	MaxBatch = 64 << 20

	firstPart, lastPart = 1, 2
)

// ErrTooLarge is returned for a batch that no log takes: nothing was changed.
var ErrTooLarge = errors.New("replica: the change is too large for the log")

// ErrDamaged is the error of a log that cannot be read, or that has an entry which is not what its owner appended.
var ErrDamaged = errors.New("the log is damaged")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(seq uint64, rest []byte) uint32 {
	var number [8]byte
	binary.BigEndian.PutUint64(number[:], seq)
	return crc32.Update(crc32.Checksum(number[:], castagnoli), castagnoli, rest)
}

// seal makes the entry of a part.
func seal(seq uint64, kind byte, part []byte) []byte {
	e := make([]byte, headBytes, headBytes+len(part))
	e[4] = kind
	e = append(e, part...)
	binary.BigEndian.PutUint32(e, checksum(seq, e[4:]))
	return e
}

// open returns the part that the entry has.
func (e *Entry) open() (kind byte, part []byte, err error) {
	if len(e.Data) < headBytes || binary.BigEndian.Uint32(e.Data) != checksum(e.Seq, e.Data[4:]) {
		return 0, nil, fmt.Errorf("replica: %w: entry %d has another checksum", ErrDamaged, e.Seq)
	}
	return e.Data[4], e.Data[headBytes:], nil
}

// assembly has the parts of a batch whose last part was not read yet. One goroutine at a time uses it.
type assembly struct {
	batch []byte
}

// add takes the next entry, and returns the batch when it has all of it.
func (a *assembly) add(e *Entry) (batch []byte, whole bool, err error) {
	kind, part, err := e.open()
	switch {
	case err != nil:
		return nil, false, err
	case kind == firstPart|lastPart:
		a.batch = nil
		return part, true, nil
	case kind&firstPart != 0:
		a.batch = nil
	case a.batch == nil, len(a.batch)+len(part) > MaxBatch:
		return nil, false, fmt.Errorf("replica: %w: entry %d has a part of a batch without the parts before", ErrDamaged, e.Seq)
	}
	a.batch = append(a.batch, part...)
	if kind&lastPart == 0 {
		return nil, false, nil
	}
	batch, a.batch = a.batch, nil
	return batch, true, nil
}
