package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/objstorage/objstorageprovider"
	"github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/wal"
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

// logs cuts off what of the damaged files, which lack what was on stable storage, cannot be read. With
// refused, because the engine did not open them, also what cannot be read of another log: a torn end of an
// older log is no damage where a manifest no longer asks for this log.
func (f *salvageFS) logs(dir string, damaged map[string]string, refused bool) (problems []string, err error) {
	logs, err := wal.Scan(wal.Dir{FS: f.FS, Dirname: dir})
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for i, log := range logs {
		_, path := log.SegmentLocation(0)
		name := f.PathBase(path)
		there[name] = true
		good, end := readLog(log)
		torn := i == len(logs)-1 && errors.Is(end, record.ErrUnexpectedEOF) // as after a crash
		if damaged[name] == "" && (!refused || torn || errors.Is(end, io.EOF)) {
			continue
		}
		data, err := readFile(f.FS, path, good)
		if err != nil {
			return nil, err
		}
		file, err := f.show(path)
		if err != nil {
			return nil, err
		}
		_, err = file.Write(data)
		if err = errors.Join(err, file.Close()); err != nil {
			return nil, err
		}
		problems = append(problems, fmt.Sprintf("the log %s cannot be read from byte %d on: changes that are behind it in this log are lost", name, good))
	}
	for _, name := range slices.Sorted(maps.Keys(damaged)) {
		if strings.HasSuffix(name, ".log") && !there[name] {
			problems = append(problems, damaged[name]+": its changes are lost")
		}
	}
	return problems, nil
}

// readLog returns up to where the records of a log are whole, and why they end there.
func readLog(log wal.LogicalLog) (good int64, end error) {
	r := log.OpenForRead()
	for {
		_, at, err := r.NextRecord()
		if err != nil {
			return at.Physical, errors.Join(err, r.Close())
		}
	}
}
