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
	"strings"

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
			pod, program, err := s.backedUp(cmd.Context(), group)
			if err != nil {
				return err
			}
			return s.backUp(cmd.Context(), file, pod, program)
		})
	c.Long = `Copy the schedules of all sources, in one consistent state, while the adapter runs. The file
is whole, or it is not there. "adapter restore" makes a data directory of it.

It runs a command in the adapter's pod, so it requires the right to pods/exec in the
namespace of the adapter. The file holds the events of all namespaces. With several groups of
adapters each group has a back-up of its own.`
	c.Flags().StringVarP(&file, "filename", "f", "", "file to write")
	c.Flags().IntVar(&group, "group", -1, "the `NUMBER` of the group of adapters, where there are several")
	return c
}

// backedUp is the pod whose data are copied, and the program in it.
func (s *session) backedUp(ctx context.Context, group int) (pod, path string, err error) {
	path, groups := program, 1
	if a := s.adapterSet(ctx); a != nil && a.Wanted > 1 {
		path, groups = program+"-replicated", a.Wanted/why.Members
	}
	switch {
	case groups > 1 && group < 0:
		return "", "", usage("there are %d groups of adapters, and a back-up is of one: repeat it with --group 0 to --group %d", groups, groups-1)
	case group >= groups:
		return "", "", usage("--group: there are %d groups of adapters, from 0 on", groups)
	}
	return podName(max(group, 0) * why.Members), path, nil
}

// backUp writes a back-up beside the file, and gives it the file's name at the end.
func (s *session) backUp(ctx context.Context, file, pod, program string) (err error) {
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
	said := &head{}
	err = s.execute(ctx, pod, &counting{f, p, 0}, said, program, "backup", "--data-dir", dataDir, "-f", "-")
	p.end()
	if err == nil {
		err = errors.Join(checkWhole(f), f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		if text := strings.TrimSpace(string(said.b)); text != "" {
			return fmt.Errorf("%s: %w", text, err)
		}
		return err
	}
	return os.Rename(f.Name(), file)
}

// execute runs a command in a pod of the adapter. It tries WebSockets first, and then SPDY,
// as a port-forward does.
func (s *session) execute(ctx context.Context, pod string, out, errs io.Writer, command ...string) error {
	config := rest.CopyConfig(s.config)
	config.Timeout = 0 // a back-up takes as long as it takes
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
	err = both.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out, Stderr: errs})
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "orbidden"):
		return denied("you may not run a command in the adapter's pod (pods/exec in %s): %w", s.systemNamespace, err)
	case strings.Contains(err.Error(), "not found"), strings.Contains(err.Error(), "notfound"):
		return unavailable("no pod of the adapter in %s: %w", s.systemNamespace, err)
	}
	return unavailable("no back-up from the adapter in %s: %w", s.systemNamespace, err)
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
