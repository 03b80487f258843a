package store

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// indexReadable reports that a table has an index that can be read, or is gone.
func indexReadable(fs vfs.FS, path string, o sstable.ReaderOptions) bool {
	f, err := fs.Open(path)
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	readable, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return false
	}
	r, err := sstable.NewReader(context.Background(), readable, o)
	if err != nil {
		return false
	}
	_, err = r.ReadPropertiesBlock(context.Background(), nil)
	if err == nil {
		var it sstable.Iterator
		if it, err = r.NewIter(sstable.NoTransforms, nil, nil, sstable.AssertNoBlobHandles); err == nil {
			err = it.Close()
		}
	}
	return errors.Join(err, r.Close()) == nil
}

// salvageFS shows a directory as the engine can open it: an empty table in the
// place of one whose index cannot be read, a log up to where it can be read, and
// none of the files that say with which options the engine ran. It changes nothing.
type salvageFS struct {
	vfs.FS
	overlay *vfs.MemFS // by the same path
	shown   map[string]bool
	options bool // leave out the files of options
}

func newSalvage(fs vfs.FS) *salvageFS {
	return &salvageFS{FS: fs, overlay: vfs.NewMem(), shown: map[string]bool{}}
}

func (f *salvageFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	if f.shown[name] {
		return f.overlay.Open(f.PathBase(name), opts...)
	}
	return f.FS.Open(name, opts...)
}

func (f *salvageFS) Stat(name string) (vfs.FileInfo, error) {
	if f.shown[name] {
		return f.overlay.Stat(f.PathBase(name))
	}
	return f.FS.Stat(name)
}

func (f *salvageFS) List(dir string) ([]string, error) {
	names, err := f.FS.List(dir)
	if f.options {
		names = slices.DeleteFunc(names, func(n string) bool { return strings.HasPrefix(n, "OPTIONS-") })
	}
	return names, err
}

func (f *salvageFS) show(name string) (vfs.File, error) {
	f.shown[name] = true
	return f.overlay.Create(f.PathBase(name), vfs.WriteCategoryUnspecified)
}

// tables puts an empty table in the place of each one that cannot be opened, and
// returns their names. See [DB.lost].
func (f *salvageFS) tables(dir string) (replaced []string, err error) {
	names, err := f.FS.List(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // opening it reports that
	}
	if err != nil {
		return nil, err
	}
	var engine pebble.Options
	engine.Merger = counterMerger
	engine.EnsureDefaults()
	o := engine.MakeReaderOptions()
	for _, name := range names {
		path := f.PathJoin(dir, name)
		if !strings.HasSuffix(name, ".sst") || indexReadable(f.FS, path, o) {
			continue
		}
		file, err := f.show(path)
		if err != nil {
			return nil, err
		}
		w := sstable.NewWriter(objstorageprovider.NewFileWritable(file), sstable.WriterOptions{MergerName: counterMerger.Name, TableFormat: sstable.TableFormatPebblev4})
		if err := w.Close(); err != nil {
			return nil, err
		}
		replaced = append(replaced, name)
	}
	return replaced, nil
}

// lost returns which of the replaced tables the store needs. It needs no table that
// a crash found half written: the manifest does not name that table yet, and the
// log still has its rows.
func (db *DB) lost(replaced []string) (problems []string, err error) {
	if len(replaced) == 0 {
		return nil, nil
	}
	levels, err := db.db.SSTables()
	for _, level := range levels {
		for _, table := range level {
			if name := table.BackingSSTNum.String() + ".sst"; slices.Contains(replaced, name) {
				problems = append(problems, fmt.Sprintf("the table %s cannot be opened: its rows are lost, and entries may be as they were before", name))
			}
		}
	}
	return problems, err
}

// logs cuts off what of the logs cannot be read.
func (f *salvageFS) logs(dir string) (problems []string, err error) {
	names, err := logNames(f.FS, dir)
	for i, name := range names {
		data, good, end, err := readLog(f.FS, dir, name)
		if err != nil {
			return nil, err
		}
		if end == logWhole || end == logTorn && i == len(names)-1 {
			continue
		}
		file, err := f.show(f.PathJoin(dir, name))
		if err != nil {
			return nil, err
		}
		_, err = file.Write(data[:good])
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, err
		}
		problems = append(problems, logProblem(name, good))
	}
	return problems, err
}

func logProblem(name string, good int64) string {
	return fmt.Sprintf("the log %s cannot be read from byte %d on: changes that are behind it in this log are lost", name, good)
}

// logNames are the write-ahead logs, oldest first.
func logNames(fs vfs.FS, dir string) ([]string, error) {
	names, err := fs.List(dir)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(n string) bool { return !strings.HasSuffix(n, ".log") })
	slices.SortFunc(names, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	return names, nil
}

// logEnd returns how a log ends.
type logEnd int

const (
	logWhole   logEnd = iota
	logTorn           // as after a crash: what is missing was never acknowledged
	logDamaged        // something behind it proves that it was on stable storage
)

// readLog reads a log, and says up to where its records are whole.
func readLog(fs vfs.FS, dir, name string) (data []byte, good int64, end logEnd, err error) {
	number, err := strconv.ParseUint(strings.TrimSuffix(name, ".log"), 10, 32)
	if err != nil {
		return nil, 0, logWhole, fmt.Errorf("log %q: %w", name, err)
	}
	f, err := fs.Open(fs.PathJoin(dir, name))
	if err != nil {
		return nil, 0, logWhole, err
	}
	data, err = io.ReadAll(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, 0, logWhole, err
	}
	var table pebble.SSTableInfo // it has a number of the type that the reader requires
	setNumber(&table.BackingSSTNum, number)
	r := record.NewReader(bytes.NewReader(data), table.BackingSSTNum)
	for {
		good = min(r.Offset(), int64(len(data)))
		one, err := r.Next()
		if err == nil {
			_, err = io.Copy(io.Discard, one)
		}
		switch {
		case err == nil:
			continue
		case errors.Is(err, io.EOF):
			return data, good, logWhole, nil
		case !errors.Is(err, record.ErrUnexpectedEOF) || wasSynced(data, good, uint32(number)):
			return data, good, logDamaged, nil
		}
		return data, good, logTorn, nil
	}
}

var errLog = errors.New("records that were on stable storage cannot be read after this point")

// lastLog returns what is wrong with the last log, "" for nothing. The engine takes
// damage in its last block for the end after a crash, and says nothing.
func lastLog(fs vfs.FS, dir string) string {
	names, err := logNames(fs, dir)
	if err != nil || len(names) == 0 {
		return "" // a new directory
	}
	name := names[len(names)-1]
	if _, good, end, err := readLog(fs, dir, name); err == nil && end == logDamaged {
		return logProblem(name, good)
	}
	return ""
}

func setNumber[N ~uint64](n *N, to uint64) { *n = N(to) }

// logBlock is what chunks of a log do not straddle; logHeader is a chunk's
// checksum, length, kind, number of the log, and the bytes of it that were on stable
// storage when it was written.
const (
	logBlock  = 32 << 10
	logHeader = 4 + 2 + 1 + 4 + 8
)

// wasSynced reports that byte good was on stable storage: a whole chunk behind it, in the same
// block, was written when the log was synced beyond that byte. The engine searches for
// such chunks only in the blocks behind.
func wasSynced(data []byte, good int64, number uint32) bool {
	block := data[:min(good/logBlock*logBlock+logBlock, int64(len(data)))]
	for at := good + 1; at+logHeader <= int64(len(block)); at++ {
		c := block[at:]
		last := logHeader + int64(binary.LittleEndian.Uint16(c[4:])) // the length has no header
		if kind := c[6]; kind < 9 || kind > 12 || binary.LittleEndian.Uint32(c[7:]) != number || last > int64(len(c)) {
			continue
		}
		if binary.LittleEndian.Uint64(c[11:]) <= uint64(good)+logHeader {
			continue
		}
		sum := bits.RotateLeft32(crc32.Checksum(c[6:last], crc32.MakeTable(crc32.Castagnoli)), 17) + 0xa282ead8
		if sum == binary.LittleEndian.Uint32(c) {
			return true
		}
	}
	return false
}
