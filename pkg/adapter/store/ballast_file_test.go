package store

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

const (
	diskBytes    = 16 << 20
	reserveBytes = 8 << 20
)

// A ballast that a user has removed on a full disk is made again once there is space.
func TestBallast_RemovedByHand(t *testing.T) {
	t.Parallel()
	fs, log := vfs.NewMem(), &bytes.Buffer{}
	b := newBallast(&Options{Dir: ""}, fs, vfs.DiskUsage{TotalBytes: diskBytes}, slog.New(slog.NewTextHandler(log, nil)))
	b.balance(diskBytes, reserveBytes)
	must(t, fs.Remove(b.path))
	for range 100 {
		b.balance(0, reserveBytes)
		b.release()
	}
	if log.Len() > 0 {
		t.Errorf("the log has %d lines: %.200s", strings.Count(log.String(), "\n"), log)
	}
	if free := b.balance(diskBytes, reserveBytes); free != diskBytes || !b.holds() {
		t.Errorf("there is no ballast, %d bytes are free", free)
	}
}

// A ballast that cannot be removed is one line of the log, not one for each write.
func TestBallast_CannotBeRemoved(t *testing.T) {
	t.Parallel()
	log := &bytes.Buffer{}
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpRemove {
			return syscall.EPERM
		}
		return nil
	}))
	b := newBallast(&Options{Dir: ""}, fs, vfs.DiskUsage{TotalBytes: diskBytes}, slog.New(slog.NewTextHandler(log, nil)))
	b.balance(diskBytes, reserveBytes)
	for range 100 {
		b.balance(0, reserveBytes)
	}
	if n := strings.Count(log.String(), "\n"); n != 1 {
		t.Errorf("the log has %d lines: %.200s", n, log)
	}
}

// A file without space, as of a start that was cut off or of a copied directory, is no ballast.
func TestBallast_EmptyFileIsNone(t *testing.T) {
	t.Parallel()
	o := Options{Dir: t.TempDir()}
	b := newBallast(&o, vfs.Default, vfs.DiskUsage{TotalBytes: diskBytes}, slog.New(slog.DiscardHandler))
	must(t, os.WriteFile(b.path, nil, 0o600))
	b.balance(diskBytes, reserveBytes)
	info, err := os.Stat(b.path)
	must(t, err)
	if taken := info.Sys().(*syscall.Stat_t).Blocks * 512; taken < b.size {
		t.Errorf("the ballast takes up %d bytes of %d", taken, b.size)
	}
}
