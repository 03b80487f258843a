package command

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"

	"github.com/reschedule-dev/reschedule/pkg/why"
)

// The back-up is made by a command in the adapter's pod: it holds the events of all
// namespaces, and no address of the network serves it.
const (
	container = "adapter"
	dataDir   = "/var/lib/reschedule"
	program   = "/ko-app/adapter" // of a group it is another one
	// endOfBackup is the last file of a whole back-up.
	endOfBackup = "end-of-backup"
)

// backup is the command of that name.
func (e *env) backup() *cobra.Command {
	var file string
	var group int
	c := e.command("backup -f FILE", "Copy the schedules of all sources while the adapter runs", `
$ backup -f reschedule.tar`,
		cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
			switch file {
			case "":
				return usage("give -f FILE")
			case "-": // a reader of a pipe would not learn that the copy was cut off
				return usage("-f -: a back-up goes to a file, which is whole or not there")
			}
			s, err := e.session()
			if err != nil {
				return err
			}
			defer s.close()
			if s.config == nil {
				return usage("backup needs a cluster: without one, run adapter backup --data-dir DIR -f FILE where the adapter runs")
			}
			pods, program, err := s.backedUp(cmd.Context(), group)
			if err != nil {
				return err
			}
			return s.backUp(cmd.Context(), file, program, pods)
		})
	c.Long = `Copy the schedules of all sources, in one consistent state, while the adapter runs. The file
is whole, or it is not there. "adapter restore" makes a data directory of it.

It runs a command in the adapter's pod, so it requires the right to pods/exec in the
namespace of the adapter. The file holds the events of all namespaces. Of a group of adapters
any member will do: the others are asked when the first one is away. With several groups each
has a back-up of its own.`
	c.Flags().StringVarP(&file, "filename", "f", "", "file to write")
	c.Flags().IntVar(&group, "group", -1, "the `NUMBER` of the group of adapters, where there are several")
	return c
}

// backedUp are the pods that have the data that are copied, and the program in them.
func (s *session) backedUp(ctx context.Context, group int) (pods []string, path string, err error) {
	path, groups, members := program, 1, 1
	if a := s.adapterSet(ctx); a != nil && a.Wanted > 1 {
		path, groups, members = program+"-replicated", a.Wanted/why.Members, why.Members
	}
	switch {
	case groups > 1 && group < 0:
		return nil, "", usage("there are %d groups of adapters, and a back-up is of one: repeat it with --group 0 to --group %d", groups, groups-1)
	case group >= groups:
		return nil, "", usage("--group: there are %d groups of adapters, from 0 on", groups)
	}
	for i := range members {
		pods = append(pods, podName(max(group, 0)*why.Members+i))
	}
	return pods, path, nil
}

// backUp writes a back-up beside the file, and gives it the file's name at the end.
func (s *session) backUp(ctx context.Context, file, program string, pods []string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*.partial") // only its owner reads it
	if err != nil {
		return usage("%w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	p := s.progressOf("copying, MiB:", 0)
	err = s.anyOf(ctx, &counting{f, p, 0}, pods, program, "backup", "--data-dir", dataDir, "-f", "-")
	p.end()
	if err == nil {
		err = errors.Join(checkWhole(f), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// anyOf runs a command in one of the pods, the first one if it can. The others of a group are
// asked when it is away, refuses, or writes nothing for podTime, as on a machine that is gone.
// The first that writes is the only one: what it leaves out is not asked of another one.
func (s *session) anyOf(ctx context.Context, out io.Writer, pods []string, command ...string) error {
	type result struct {
		pod int
		err error
	}
	results, errs := make(chan result, len(pods)), make([]error, len(pods))
	first := &firstWriter{out: out, begun: make(chan struct{})}
	defer first.close()
	var cancel []context.CancelFunc
	defer func() { stop(cancel) }()
	next, begun := time.NewTimer(0), first.begun
	defer next.Stop()
	for ended := 0; ended < len(pods); {
		select {
		case <-next.C:
			pod := len(cancel)
			if pod == len(pods) || first.has() {
				continue
			}
			ctx, end := context.WithCancel(ctx)
			cancel = append(cancel, end)
			go func() { results <- result{pod, s.execute(ctx, pods[pod], first.of(pod), command...)} }()
			next.Reset(podTime)
		case <-begun:
			begun = nil
			stop(slices.Delete(slices.Clone(cancel), first.writer, first.writer+1))
		case r := <-results:
			switch {
			case first.has() && !first.is(r.pod): // another one writes
			case r.err == nil, first.is(r.pod):
				return r.err
			default:
				errs[r.pod] = r.err
				ended++
				next.Reset(0)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return refused(pods, errs)
}

func stop(cancel []context.CancelFunc) {
	for _, end := range cancel {
		end()
	}
}

// refused is why no pod ran the command. A missing right is reported of the first one: a Role may
// name fewer pods than there are.
func refused(pods []string, errs []error) error {
	if len(pods) == 1 || codeOf(errs[0]) == exitDenied {
		return errs[0]
	}
	var said []string
	for i, err := range errs {
		if codeOf(err) != exitDenied {
			said = append(said, pods[i]+": "+err.Error())
		}
	}
	return unavailable("no adapter of the group gave a back-up: %s", strings.Join(said, "; "))
}

// execute runs a command in a pod of the adapter. It tries WebSockets first, and then SPDY,
// as a port-forward does.
func (s *session) execute(ctx context.Context, pod string, out io.Writer, command ...string) error {
	config := rest.CopyConfig(s.config)
	config.Timeout = 0 // a back-up takes as long as it takes
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &ending{ctx, next} })
	at, err := podURL(config, s.systemNamespace, pod, "exec")
	if err != nil {
		return err
	}
	at.RawQuery = url.Values{"container": {container}, "command": command, "stdout": {"true"}, "stderr": {"true"}}.Encode()
	sockets, err := remotecommand.NewWebSocketExecutor(config, http.MethodGet, at.String())
	if err != nil {
		return err
	}
	old, err := remotecommand.NewSPDYExecutor(config, http.MethodPost, at)
	if err != nil {
		return err
	}
	both, err := remotecommand.NewFallbackExecutor(sockets, old, knowsNoSockets)
	if err != nil {
		return err
	}
	said := &head{}
	err = both.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: said})
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case forbidden(err):
		err = denied("you may not run a command in the adapter's pod (pods/exec in %s): %w", s.systemNamespace, err)
	case strings.Contains(err.Error(), "not found"), strings.Contains(err.Error(), "notfound"):
		err = unavailable("no pod of the adapter in %s: %w", s.systemNamespace, err)
	default:
		err = unavailable("no back-up from the adapter in %s: %w", s.systemNamespace, err)
	}
	if text := said.text(); text != "" {
		return fmt.Errorf("%s: %w", text, err)
	}
	return err
}

// checkWhole reads a back-up to its end: a connection that breaks can look like one.
func checkWhole(f *os.File) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	last := ""
	for r := tar.NewReader(f); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return unavailable("the back-up was cut off: %w", err)
		}
		last = h.Name
	}
	if last != endOfBackup {
		return unavailable("the back-up was cut off: its end is missing")
	}
	return nil
}

// counting shows how many MiB were written.
type counting struct {
	io.Writer
	p *progress
	n int64
}

func (c *counting) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n += int64(n)
	c.p.show(int(c.n >> 20))
	return n, err
}

// firstWriter has several writers, and takes what the first one writes that begins. The others
// write in vain.
type firstWriter struct {
	out   io.Writer
	begun chan struct{} // closed once one has begun

	mu     sync.Mutex
	writer int // the one that has begun
	closed bool
}

// has reports that one has begun.
func (w *firstWriter) has() bool {
	select {
	case <-w.begun:
		return true
	default:
		return false
	}
}

// is reports that this one has begun.
func (w *firstWriter) is(writer int) bool { return w.has() && w.writer == writer }

// close takes no more.
func (w *firstWriter) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

// of is one of the writers.
func (w *firstWriter) of(writer int) io.Writer {
	return writerFunc(func(b []byte) (int, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.has() && len(b) > 0 {
			w.writer = writer
			close(w.begun)
		}
		if w.closed || !w.is(writer) {
			return len(b), nil
		}
		return w.out.Write(b)
	})
}

type writerFunc func(b []byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// head keeps the first bytes of a text.
type head struct{ b []byte }

func (h *head) Write(b []byte) (int, error) {
	h.b = append(h.b, b[:min(len(b), 1<<10-len(h.b))]...)
	return len(b), nil
}

func (h *head) text() string { return strings.TrimSpace(string(h.b)) }
