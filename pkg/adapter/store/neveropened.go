package store

import (
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// neverOpened reports that a directory holds a store that was never finished being
// made, so that nothing can have been acknowledged from it: Pebble names the
// manifest in a marker before the directory is synced, and a loss of power in
// between may keep the marker and lose the manifest. From the first successful
// open on there is always a manifest.
func neverOpened(fs vfs.FS, dir string) bool {
	names, err := fs.List(dir)
	if err != nil {
		return false
	}
	for _, name := range names {
		switch {
		case strings.HasPrefix(name, "MANIFEST-"), strings.HasSuffix(name, ".sst"), strings.HasSuffix(name, ".blob"):
			return false
		case strings.HasSuffix(name, ".log"):
			if info, err := fs.Stat(fs.PathJoin(dir, name)); err != nil || info.Size() > 0 {
				return false
			}
		}
	}
	return true
}

// removeUnfinished removes the files of a store whose first start did not end.
func removeUnfinished(fs vfs.FS, dir string) error {
	names, err := fs.List(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "marker.") || strings.HasPrefix(name, "OPTIONS-") || strings.HasSuffix(name, ".log") {
			if err := fs.Remove(fs.PathJoin(dir, name)); err != nil {
				return fmt.Errorf("removing what was begun: %w", err)
			}
		}
	}
	return nil
}
