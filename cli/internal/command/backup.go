package command

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// The back-up is made by a command in the adapter's pod: it holds the events of all
// namespaces, and no address of the network serves it.
const (
	container   = "adapter"
	dataDir     = "/var/lib/reschedule"
	adapterPath = "/ko-app/adapter" // of a group it is another one
	// endOfBackup is the last file of a whole back-up.
	endOfBackup = "end-of-backup"
)

// backup is the command of that name.
func newBackup(p *program) *cobra.Command {
	var file string
	c := p.command("backup -f FILE", "Copy the schedules of all sources while the adapter runs", `
$ backup -f reschedule.tar`,
		cobra.NoArgs, func(cmd *cobra.Command, _ []string) error {
			switch file {
			case "":
				return usage("give -f FILE")
			case "-": // a reader of a pipe would not learn that the copy was cut off
				return usage("-f -: a back-up goes to a file, which is whole or not there")
			}
			s, err := p.session()
			if err != nil {
				return err
			}
			defer s.close()
			if s.config == nil {
				return usage("backup needs a cluster: without one, run adapter backup --data-dir DIR -f FILE where the adapter runs")
			}
			pods, path := s.backedUp(cmd.Context())
			return s.backUp(cmd.Context(), p.progressOf("copying, MiB:", 0), file, path, pods)
		})
	c.Long = `Copy the schedules of all sources, in one consistent state, while the adapter runs. The file
is whole, or it is not there. "adapter restore" makes a data directory of it.

It runs a command in the adapter's pod, so it requires the right to pods/exec in the
namespace of the adapter. The file holds the events of all namespaces. Of a group of adapters
any member will do: the others are asked when the first one is away.`
	c.Flags().StringVarP(&file, "filename", "f", "", "file to write")
	return c
}

// backedUp are the pods that have the data that are copied, and the program in them.
func (s *session) backedUp(ctx context.Context) (of []string, path string) {
	if a := s.adapterSet(ctx); a != nil && a.Wanted > 1 {
		return pods, adapterPath + "-replicated"
	}
	return pods[:1], adapterPath
}

// backUp writes a back-up beside the file, and gives it the file's name at the end.
func (s *session) backUp(ctx context.Context, p *progress, file, path string, pods []string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*.partial") // only its owner reads it
	if err != nil {
		return usage("%w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	out, err := s.anyOf(ctx, pods, path, "backup", "--data-dir", dataDir, "-f", "-")
	if err == nil {
		_, err = io.Copy(&counting{f, p, 0}, out)
		out.end()
	}
	p.end()
	if err == nil {
		err = errors.Join(checkWhole(f), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// written is what a command in a pod writes, while it runs.
type written struct {
	*bufio.Reader
	end context.CancelFunc
}

// anyOf runs a command in one of the pods. The others of a group are asked when the first one is
// away, refuses, or writes nothing for podTime. The first that writes is the only one: what it
// leaves out is not asked of another one.
func (s *session) anyOf(ctx context.Context, pods []string, command ...string) (*written, error) {
	out, errs := race(ctx, pods, func(running context.Context, pod string) (*written, error) {
		ctx, end := context.WithCancel(ctx)
		goesOn := context.AfterFunc(running, end)
		r, w := io.Pipe()
		go func() { w.CloseWithError(s.execute(ctx, pod, w, command...)) }()
		out := &written{bufio.NewReader(r), end}
		if _, err := out.Peek(1); err != nil && !errors.Is(err, io.EOF) {
			end()
			return nil, err
		}
		goesOn() // if the race is over nevertheless, the output ends with an error
		return out, nil
	}, func(o *written) { o.end() })
	if errs == nil {
		return out, nil
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return nil, refused(pods, errs)
}

// refused is why no pod ran the command. A missing right is reported of the first one: a Role may
// name fewer pods than there are.
func refused(pods []string, errs map[string]error) error {
	if err := errs[pods[0]]; len(pods) == 1 || codeOf(err) == exitDenied {
		return err
	}
	var said []string
	for _, pod := range pods {
		if err := errs[pod]; codeOf(err) != exitDenied {
			said = append(said, pod+": "+err.Error())
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
	at, err := podURL(config, s.adapter.namespace(ctx), pod, "exec")
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
		err = denied("you may not run a command in the adapter's pod (pods/exec in %s): %w", s.adapter.namespace(ctx), err)
	case strings.Contains(err.Error(), "not found"), strings.Contains(err.Error(), "notfound"):
		err = unavailable("no pod of the adapter in %s: %w", s.adapter.namespace(ctx), err)
	default:
		err = unavailable("no back-up from the adapter in %s: %w", s.adapter.namespace(ctx), err)
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

// head keeps the first bytes of a text.
type head struct{ b []byte }

func (h *head) Write(b []byte) (int, error) {
	h.b = append(h.b, b[:min(len(b), 1<<10-len(h.b))]...)
	return len(b), nil
}

func (h *head) text() string { return strings.TrimSpace(string(h.b)) }
