package store

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// syncedName is the file that says how much of each log and manifest is on stable storage.
const syncedName = "synced"

// ErrDamaged is returned for a directory whose log or manifest lacks what was on stable
// storage. The engine would take that for the end after a crash: it deletes the tables that a
// manifest does not name, and the offsets in its logs, which say what was synced, stay behind
// where records are larger than a block.
var ErrDamaged = errors.New("it is damaged, and nothing was changed: " + cure)

const cure = "restore a back-up into an empty directory; without one, adapter repair saves what can be read; " +
	"a member of a group whose others run takes a copy of theirs into an empty directory"

// synced is what is known to be on stable storage of the engine's logs and manifests: of each
// file the first bytes, and their checksum. It is in the file [syncedName], one line a file,
// and written after each fsync of a log or a manifest.
//
// Each line is true for as long as its file exists, because a file is listed once its name is
// on stable storage too, and a line is removed, durably, before its file is. So a file that
// lacks bytes of its line was damaged. What is missing in [syncedName] is only not checked.
type synced struct {
	fs   vfs.FS
	path string
	dir  string

	mu       sync.Mutex
	file     vfs.File // nil: nothing is written
	stale    bool     // the file must be removed before a log or a manifest is
	files    []*syncedFile
	lines    []byte    // of the last write
	durable  time.Time // the last fsync of file
	flushing sync.WaitGroup
	flushes  bool
}

type syncedFile struct {
	name          string
	written, size int64 // size bytes of the written ones are on stable storage
	crc, sum      uint32
	named         bool // its name is on stable storage
}

const (
	// syncedBytes is a sector, which most disks write as a whole.
	syncedBytes = 512
	// syncedEvery is how old the file may be after a power loss.
	syncedEvery = time.Second
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// openSynced reads the file of a directory, and holds it against the directory.
func openSynced(fs vfs.FS, dir string) (*synced, error) {
	s := &synced{fs: fs, dir: dir, path: fs.PathJoin(dir, syncedName)}
	data, err := readFile(fs, s.path, syncedBytes)
	if errors.Is(err, os.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return nil, err
	}
	s.files = parseSynced(data)
	return s, nil
}

// check returns what is wrong with each file that lacks what was on stable storage.
func (s *synced) check() (damaged map[string]string, err error) {
	damaged = map[string]string{}
	for _, f := range s.files {
		data, err := readFile(s.fs, s.fs.PathJoin(s.dir, f.name), f.size)
		switch {
		case errors.Is(err, os.ErrNotExist):
			damaged[f.name] = fmt.Sprintf("%s is missing, of which %d bytes were on stable storage", f.name, f.size)
		case err != nil:
			return nil, err
		case int64(len(data)) < f.size:
			damaged[f.name] = fmt.Sprintf("%s has %d bytes, of which %d were on stable storage", f.name, len(data), f.size)
		case crc32.Checksum(data, castagnoli) != f.sum:
			damaged[f.name] = fmt.Sprintf("%s does not have the checksum of its first %d bytes, which were on stable storage", f.name, f.size)
		}
	}
	if s.unmarked() {
		damaged[manifestPrefix] = "the marker of the manifest, or the manifest that it names, is missing"
	}
	return damaged, nil
}

// unmarked reports that no marker names a manifest, though there are changes. The engine would
// make a new store, and delete the tables.
func (s *synced) unmarked() bool {
	desc, err := pebble.Peek(s.dir, s.fs)
	if err == nil && desc.Exists {
		if _, err := s.fs.Stat(desc.ManifestFilename); !errors.Is(err, os.ErrNotExist) {
			return false
		}
	}
	names, err := s.fs.List(s.dir)
	return err == nil && slices.ContainsFunc(names, func(name string) bool { return strings.HasSuffix(name, ".sst") }) ||
		slices.ContainsFunc(s.files, func(f *syncedFile) bool { return strings.HasSuffix(f.name, ".log") })
}

// refuse returns ErrDamaged where a file lacks what was on stable storage.
func (s *synced) refuse() error {
	damaged, err := s.check()
	if err != nil || len(damaged) == 0 {
		return err
	}
	return fmt.Errorf("%s: %w", strings.Join(slices.Sorted(maps.Values(damaged)), "; "), ErrDamaged)
}

// begin lets the file be written from now on.
func (s *synced) begin() (err error) {
	s.file, err = s.fs.OpenReadWrite(s.path, vfs.WriteCategoryUnspecified)
	return err
}

// created begins with a file that is empty, or has another name now.
func (s *synced) created(name string) *syncedFile {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := &syncedFile{name: s.fs.PathBase(name)}
	s.files = append(s.files, f)
	return f
}

// writing returns what to call once p was written behind the others. It must be called before: the engine's
// file systems of tests change p.
func (s *synced) writing(f *syncedFile, p []byte) (done func()) {
	s.mu.Lock()
	crc := crc32.Update(f.crc, castagnoli, p)
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		f.written += int64(len(p))
		f.crc = crc
	}
}

// syncing returns what to call after an fsync that begins now.
func (s *synced) syncing(f *syncedFile) (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	size, sum := f.written, f.crc
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if size > f.size {
			f.size, f.sum = size, sum
			_ = s.write() // what it lacks is not checked
		}
	}
}

// naming returns what to call after an fsync of the directory that begins now.
func (s *synced) naming() (done func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	there := slices.Clone(s.files)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		changed := false
		for _, f := range there {
			changed = changed || !f.named && f.size > 0
			f.named = true
		}
		if changed {
			_ = s.write() // as above
		}
	}
}

// forget removes a file's line, before the file is removed or gets another name. After an error the file must stay.
func (s *synced) forget(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stale {
		return s.remove()
	}
	i := slices.IndexFunc(s.files, func(f *syncedFile) bool { return f.name == s.fs.PathBase(name) })
	if i < 0 {
		return nil
	}
	listed := s.files[i].listed()
	s.files = slices.Delete(s.files, i, i+1)
	if !listed || s.file == nil {
		return nil
	}
	err := s.write()
	if err == nil {
		s.durable = time.Now()
		err = s.file.SyncData()
	}
	if err == nil {
		return nil
	}
	_ = s.file.Close() // what it has does not count any more
	s.file = nil
	return s.remove()
}

// remove removes the file. Without it nothing is checked, which is right too.
func (s *synced) remove() error {
	err := s.fs.Remove(s.path)
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = syncDir(s.fs, s.dir)
	}
	s.stale = err != nil
	return err
}

func (f *syncedFile) listed() bool { return f.named && f.size > 0 }

// write writes the lines, and now and then makes them durable. An error is no harm: what
// was written before is still true.
func (s *synced) write() error {
	if s.file == nil {
		return nil
	}
	s.lines = appendSynced(s.lines[:0], s.files)
	if _, err := s.file.WriteAt(s.lines, 0); err != nil {
		return err
	}
	if now := time.Now(); !s.flushes && now.Sub(s.durable) > syncedEvery {
		s.durable, s.flushes = now, true
		file := s.file
		s.flushing.Go(func() {
			_ = file.SyncData() // the lines are checked in the state that is on the disk
			s.mu.Lock()
			defer s.mu.Unlock()
			s.flushes = false
		})
	}
	return nil
}

func (s *synced) close() error {
	s.flushing.Wait()
	if s.file == nil {
		return nil
	}
	return errors.Join(s.file.SyncData(), s.file.Close())
}

const syncedEnd = "checksum "

// appendSynced has the newest files, as many as there is space for.
func appendSynced(to []byte, files []*syncedFile) []byte {
	const end = len(syncedEnd) + 8 + 1
	for _, f := range slices.Backward(files) {
		if !f.listed() {
			continue
		}
		before := len(to)
		to = append(append(to, f.name...), ' ')
		to = append(strconv.AppendInt(to, f.size, 10), ' ')
		to = append(strconv.AppendUint(to, uint64(f.sum), 16), '\n')
		if len(to)+end > syncedBytes {
			to = to[:before]
			break
		}
	}
	sum := crc32.Checksum(to, castagnoli)
	to = append(strconv.AppendUint(append(to, syncedEnd...), uint64(sum), 16), '\n')
	n := len(to)
	to = slices.Grow(to, syncedBytes-n)[:syncedBytes]
	clear(to[n:])
	return to
}

// parseSynced returns no file where a power loss has cut off the write of the lines.
func parseSynced(data []byte) (files []*syncedFile) {
	lines, rest, ok := bytes.Cut(data, []byte(syncedEnd))
	rest, _, ended := bytes.Cut(rest, []byte{'\n'})
	sum, err := strconv.ParseUint(string(rest), 16, 32)
	if !ok || !ended || err != nil || uint32(sum) != crc32.Checksum(lines, castagnoli) {
		return nil
	}
	for line := range strings.Lines(string(lines)) {
		f := &syncedFile{named: true}
		if _, err := fmt.Sscanf(line, "%s %d %x\n", &f.name, &f.size, &f.sum); err != nil {
			return nil
		}
		f.written, f.crc = f.size, f.sum
		files = append(files, f)
	}
	slices.Reverse(files) // oldest first
	return files
}

// readFile returns at most the first bytes of a file.
func readFile(fs vfs.FS, path string, most int64) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, most))
	return data, errors.Join(err, f.Close())
}
