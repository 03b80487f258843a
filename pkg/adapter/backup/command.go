package backup

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// Exit codes of [Main].
const (
	exitOK         = 0
	exitUsage      = 2
	exitFailed     = 3
	exitIncomplete = 4
)

// Main runs "backup", "restore" or "seal" with its arguments and returns the exit code: 0 it
// is done, 2 wrong usage, 3 it could not be done, and nothing is left of it, 4 the back-up is written, and ends where the
// member's log is damaged. replay is for a back-up of a member that does not run; nil: this program cannot make one.
func Main(ctx context.Context, args []string, replay store.Replay, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("data-dir", "", "the data `DIR`ectory of the adapter")
	usage, file := "--data-dir DIR", new(string)
	if args[0] != "seal" {
		file = flags.String("f", "", "the `FILE` of the back-up; - is standard output or input")
		usage += " -f FILE"
	}
	to := new(string)
	if args[0] == "restore" {
		to = flags.String("to", "", "the `FORM` of the directory: single, or group for a member of a group (default the form of the back-up)")
		usage += " [--to FORM]"
	}
	if err := flags.Parse(args[1:]); err != nil {
		return exitUsage
	}
	if *dir == "" || *to != "" && *to != string(store.Single) && *to != string(store.Group) || *file == "" && args[0] != "seal" || flags.NArg() > 0 {
		fmt.Fprintf(stderr, "usage: adapter %s %s\n", args[0], usage)
		return exitUsage
	}
	var err error
	switch args[0] {
	case "backup":
		err = fetch(ctx, *dir, *file, replay, stdout, slog.New(slog.NewTextHandler(stderr, nil)))
	case "seal":
		err = seal(ctx, *dir, stdout)
	default:
		err = restoreFile(ctx, *file, *dir, store.Form(*to))
	}
	if err != nil {
		fmt.Fprintf(stderr, "adapter %s: %v\n", args[0], err)
	}
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, store.ErrIncomplete):
		return exitIncomplete
	}
	return exitFailed
}

// fetch writes a back-up of a directory to a file, whole or not at all. The adapter that uses the directory makes it; if
// there is none, this process does.
func fetch(ctx context.Context, dir, file string, replay store.Replay, stdout io.Writer, log *slog.Logger) error {
	body, err := open(ctx, dir, http.MethodGet, "/backup")
	if errors.Is(err, errNoAdapter) {
		body, err = openStopped(ctx, dir, replay, log), nil
	}
	if err != nil {
		return err
	}
	err = save(body, file, stdout)
	if ended := body.Close(); err == nil {
		err = ended
	}
	return err
}

func save(body io.Reader, file string, stdout io.Writer) error {
	if file == "-" {
		_, err := io.Copy(stdout, body)
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*.partial") // only its owner reads it
	if err != nil {
		return err
	}
	partial := f.Name()
	_, err = io.Copy(f, body)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(partial))
	}
	return os.Rename(partial, file)
}

// seal ends the adapter that uses dir, or its group.
func seal(ctx context.Context, dir string, stdout io.Writer) error {
	body, err := open(ctx, dir, http.MethodPost, "/seal")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s is sealed, and has all that was acknowledged: nothing is changed or delivered any more. Make a back-up of it, "+
		"and restore that into an empty directory. If it is of a group, stop all members.\n", dir)
	return errors.Join(err, body.Close())
}

// stopped is a back-up of a directory that no adapter uses.
type stopped struct {
	*io.PipeReader
	ended      chan struct{}
	incomplete error // it is written, see [store.ErrIncomplete]
}

// stopTime is how long an adapter that was sealed, or told to stop, may take to release its directory.
const stopTime = 10 * time.Second

func openStopped(ctx context.Context, dir string, replay store.Replay, log *slog.Logger) *stopped {
	in, out := io.Pipe()
	s := &stopped{PipeReader: in, ended: make(chan struct{})}
	go func() {
		defer close(s.ended)
		var err error
		tick, deadline := time.NewTicker(100*time.Millisecond), time.Now().Add(stopTime)
		defer tick.Stop()
		for {
			err = store.CheckpointStopped(ctx, store.Options{Dir: dir, Log: log}, replay, func(dir string) error { return archive(out, dir) })
			if !errors.Is(err, store.ErrInUse) || time.Now().After(deadline) {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				err = ctx.Err()
			}
			if ctx.Err() != nil {
				break
			}
		}
		if errors.Is(err, store.ErrIncomplete) {
			s.incomplete, err = err, nil
		}
		_ = out.CloseWithError(err)
	}()
	return s
}

// Close waits until the copy is removed. Its error is of a back-up that is written, and incomplete.
func (s *stopped) Close() error {
	_ = s.PipeReader.Close() // it has none
	<-s.ended
	return s.incomplete
}

var errNoAdapter = errors.New("no adapter")

// open calls the adapter that uses dir.
func open(ctx context.Context, dir, method, call string) (io.ReadCloser, error) {
	opened, path, err := socket(dir)
	if err != nil {
		return nil, err
	}
	defer opened.Close() // it was only read
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	req, err := http.NewRequestWithContext(ctx, method, "http://adapter"+call, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w that uses %s answers: %w", errNoAdapter, dir, err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		return nil, errors.Join(errors.New(strings.TrimSpace(string(text))), resp.Body.Close())
	}
	return resp.Body, nil
}

func restoreFile(ctx context.Context, file, dir string, to store.Form) error {
	if file == "-" {
		return Restore(ctx, os.Stdin, dir, to)
	}
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	return Restore(ctx, f, dir, to)
}

// Restore makes the data directory of a back-up. Dir must be empty, or not exist, or hold a part of a restore that was
// killed. After an error, and when ctx ends, nothing is left in it.
func Restore(ctx context.Context, from io.Reader, dir string, to store.Form) (err error) {
	o := store.Options{Dir: dir}
	lock, err := store.Claim(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	checksum, err := Receive(ctx, from, o)
	if err == nil {
		err = store.Restored(o, to, checksum)
	}
	if err != nil {
		err = errors.Join(err, os.RemoveAll(store.NewDir(o)), os.Remove(filepath.Join(dir, "LOCK")))
	}
	return err
}

// Receive writes a back-up to [store.NewDir], verifies it, and returns the checksum of its files. After an error, and when
// ctx ends, nothing of it is left.
func Receive(ctx context.Context, from io.Reader, o store.Options) (_ []byte, err error) {
	dir := store.NewDir(o)
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err = errors.Join(err, root.Close()); err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	done := make(chan error, 1)
	in, out := io.Pipe()
	go func() { // a read of a terminal or a pipe does not end with ctx
		_, err := io.Copy(out, from)
		_ = out.CloseWithError(err)
	}()
	defer context.AfterFunc(ctx, func() { _ = out.CloseWithError(errInterrupted) })()
	sum := sha256.New()
	if err := extract(tar.NewReader(in), sum, root); err != nil {
		return nil, err
	}
	go func() { done <- verify(o) }()
	select {
	case err = <-done:
	case <-ctx.Done(): // it only reads
		err = errInterrupted
	}
	return sum.Sum(nil), err
}

// errInterrupted is the error of a restore that a signal ends.
var errInterrupted = errors.New("interrupted: nothing was restored, repeat the command")

func verify(o store.Options) error {
	o.New = true
	report, err := store.Verify(o)
	if err != nil {
		return err
	}
	if !report.Clean() {
		return fmt.Errorf("the back-up is damaged, and nothing of it was restored: restore an older one. It has %d problems: %s", report.ProblemCount, strings.Join(report.Problems, "; "))
	}
	return nil
}

func syncRoot(root *os.Root) error {
	d, err := root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func extract(r *tar.Reader, sum hash.Hash, root *os.Root) error {
	for {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF):
			return errors.New("the back-up is not whole: its end is missing")
		case err != nil:
			return fmt.Errorf("reading the back-up: %w", err)
		case h.Name == endName:
			// The store takes damage at the end of its log for a crash, and opens without the changes.
			end, err := io.ReadAll(io.LimitReader(r, 1<<10))
			if err != nil {
				return fmt.Errorf("reading the back-up: %w", err)
			}
			if string(end) != checksum(sum) {
				return errors.New("the back-up is damaged: its files do not have the checksum at its end")
			}
			return syncRoot(root)
		case h.Typeflag != tar.TypeReg || h.Name != filepath.Base(h.Name) || !filepath.IsLocal(h.Name):
			return fmt.Errorf("%q is no file of a back-up", h.Name)
		}
		f, err := root.OpenFile(h.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		begin(sum, h)
		_, err = io.Copy(io.MultiWriter(f, sum), r)
		if err == nil {
			err = f.Sync()
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return fmt.Errorf("writing %s: %w", h.Name, err)
		}
	}
}
