package replica_test

import (
	"errors"
	"fmt"
	"hash/crc64"
	"slices"
	"sync"
	"time"
)

// disk is what a member's view is kept on.
type disk struct {
	mu    sync.Mutex
	hangs time.Time // until when
	full  time.Time
}

var errFull = errors.New("no space left on device")

func (d *disk) isFull() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.full)
}

// set says until when the disk hangs and is full.
func (d *disk) set(hangs, full time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.hangs, d.full = hangs, full
}

// view is the state of a member's process: what is applied, and what of it is on disk.
type view struct {
	mu      sync.Mutex
	applied []string // by entry; a part that is not the last one of its batch has nothing
	hashes  []uint64 // by entry, as far as they were asked for
	saved   int
	disk    *disk
	check   func(seq uint64, data string)
}

func (v *view) Applied() uint64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return uint64(len(v.applied))
}

func (v *view) Apply(seq uint64, data []byte) error {
	v.disk.wait()
	v.check(seq, string(data))
	v.mu.Lock()
	defer v.mu.Unlock()
	if seq <= uint64(len(v.applied)) {
		return fmt.Errorf("entry %d behind %d", seq, len(v.applied))
	}
	if v.disk.isFull() && len(v.applied)-v.saved >= unsaved {
		return errFull
	}
	v.applied = append(v.applied, make([]string, int(seq)-1-len(v.applied))...)
	v.applied = append(v.applied, string(data))
	return nil
}

func (v *view) Chain() (applied, hash uint64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if n := len(v.hashes); n > 0 {
		hash = v.hashes[n-1]
	}
	for _, data := range v.applied[len(v.hashes):] {
		hash = crc64.Update(hash, crc64.MakeTable(crc64.ISO), []byte(data+"."))
		v.hashes = append(v.hashes, hash)
	}
	return uint64(len(v.applied)), hash
}

func (v *view) Flush() error {
	at := v.Applied()
	v.disk.wait()
	if v.disk.isFull() {
		return errFull
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.saved = max(v.saved, int(at))
	return nil
}

// onDisk is what a next process reads.
func (v *view) onDisk() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return slices.Clone(v.applied[:v.saved])
}

// lose empties the disk.
func (v *view) lose() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.applied, v.hashes, v.saved = nil, nil, 0
}

var errNoCopy = errors.New("no member has a newer view")

// copyFrom takes over what another view has on disk now, when that has arrived.
func (v *view) copyFrom(o *view, takes time.Duration) error {
	from := o.onDisk()
	if uint64(len(from)) <= v.Applied() {
		return errNoCopy
	}
	<-time.After(takes)
	v.disk.wait()
	if v.disk.isFull() {
		return errFull
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(from) <= len(v.applied) {
		return errNoCopy
	}
	v.applied, v.hashes, v.saved = from, nil, len(from)
	return nil
}

// forgetful is a view whose fsync does nothing.
type forgetful struct{ *view }

func (forgetful) Flush() error { return nil }
