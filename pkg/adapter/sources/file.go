package sources

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/scale"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/watch/objects"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/expression"
)

// FileConfig is what a File needs.
type FileConfig struct {
	// Sources is the path of the manifests; required.
	Sources string
	// Ceilings is the path of the administrator's ceilings, "" = none.
	Ceilings string
	// Tokens is the path of the bearer tokens that may call, "" = every caller may.
	Tokens string
	// Reload reads all files anew for each value.
	Reload <-chan struct{}
	Log    *slog.Logger // required
}

// File is the [Origin] of a standalone adapter: files, read at the start and at
// each reload.
type File struct {
	cfg    FileConfig
	tokens *access.Tokens // nil: every caller may call

	wanted  []*schedule.Spec // as read by Connect
	applied map[string]bool  // uids that the registry has
}

var _ Origin = (*File)(nil)

// NewFile returns an origin that reads nothing before Connect.
func NewFile(cfg FileConfig) *File { return &File{cfg: cfg, applied: map[string]bool{}} }

// Connect implements [Origin]: it reads all files, and refuses what is wrong with
// any of them.
func (f *File) Connect(context.Context) (settings Settings, err error) {
	if f.wanted, err = f.read(); err != nil {
		return settings, err
	}
	if f.cfg.Tokens != "" {
		f.tokens, err = access.ReadTokens(f.cfg.Tokens)
	}
	return settings, err
}

// Sources implements [Origin].
func (f *File) Sources() (wanted []*schedule.Spec, unusable []string) {
	for _, s := range f.wanted {
		f.applied[s.UID] = true
	}
	return f.wanted, nil
}

// Gone implements [Origin]. The file of another adapter of a group may be newer than the file
// that was read here.
func (f *File) Gone(context.Context, []string) ([]string, error) { return nil, nil }

// Guard implements [Origin].
func (f *File) Guard() access.Guard {
	if f.tokens == nil {
		return nil
	}
	return f.tokens
}

// Token implements [Origin]. A sink in a file has no audience.
func (f *File) Token(context.Context, *schedule.Spec, schedule.Target) (string, error) {
	return "", errors.New("sources: a standalone adapter has no tokens for sinks")
}

// TokenRefused implements [Origin]. There is none.
func (f *File) TokenRefused(*schedule.Spec, schedule.Target) {}

// Trust implements [Origin]: the system's certificate authorities are trusted.
func (f *File) Trust(func(*x509.CertPool)) {}

// Warn implements [Origin]. What it would say is in the log already.
func (f *File) Warn(*schedule.Spec, string, string) {}

// EventsRefused implements [Origin]. The sender has the answer.
func (f *File) EventsRefused(*schedule.Spec, error) {}

// Objects implements [Origin]: there is no API server.
func (f *File) Objects() objects.API { return nil }

// Workloads implements [Origin]: there are none.
func (f *File) Workloads() scale.API { return nil }

// WorkloadSaved implements [Origin].
func (f *File) WorkloadSaved(*schedule.Spec) schedule.ScaleStatus { return schedule.ScaleStatus{} }

// WorkloadChanged implements [Origin].
func (f *File) WorkloadChanged(*schedule.Spec) {}

// WatchChanged implements [Origin].
func (f *File) WatchChanged(*schedule.Spec) {}

// Refused implements [Origin]. The author of the file is the administrator.
func (f *File) Refused() int64 { return 0 }

// Close implements [Origin].
func (f *File) Close() {}

// Run implements [Origin]: it reloads until ctx ends. A reload may have to wait for
// the disk; Run does not wait for the reload.
func (f *File) Run(ctx context.Context, r Registry) {
	done := make(chan struct{}, 1)
	for next := f.cfg.Reload; ; {
		select {
		case <-ctx.Done():
			return
		case <-next:
			next = nil // one at a time
			go func() {
				f.reload(ctx, r)
				done <- struct{}{}
			}()
		case <-done:
			next = f.cfg.Reload
		}
	}
}

// reload reads the tokens and the sources anew, each on its own: a token is revoked
// even when the sources cannot be read. What cannot be read stays as it was.
func (f *File) reload(ctx context.Context, r Registry) {
	var problems []error
	if f.tokens != nil {
		if err := f.tokens.Reload(f.cfg.Tokens); err != nil {
			problems = append(problems, fmt.Errorf("the tokens stay as they were: %w", err))
		}
	}
	wanted, err := f.read()
	if err != nil {
		err = fmt.Errorf("the sources stay as they were: %w", err)
	} else {
		err = f.apply(ctx, r, wanted)
	}
	switch err := errors.Join(append(problems, err)...); {
	case ctx.Err() != nil: // the next start goes on
	case err != nil:
		f.cfg.Log.Error("not everything was reloaded: a file cannot be used",
			"file", f.cfg.Sources, "config", f.cfg.Ceilings, "tokens", f.cfg.Tokens, "error", err)
	default:
		f.cfg.Log.Info("sources reloaded", "file", f.cfg.Sources, "sources", len(wanted))
	}
}

// apply makes the registry have the wanted sources and no others.
func (f *File) apply(ctx context.Context, r Registry, wanted []*schedule.Spec) error {
	keep := make(map[string]bool, len(wanted))
	for _, s := range wanted {
		keep[s.UID] = true
	}
	for uid := range f.applied {
		if keep[uid] {
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := r.RemoveSource(uid); err != nil {
			return err
		}
		delete(f.applied, uid)
	}
	for _, s := range wanted {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		f.applied[s.UID] = true
		if err := r.SetSource(s); err != nil {
			return err
		}
	}
	return nil
}

// read reads the ceilings and the sources, and logs what the ceilings cut. Its
// error names everything that is wrong with the sources: also expressions that do
// not compile, and a source that requires tokens where there are none, to which
// every caller could send events.
func (f *File) read() ([]*schedule.Spec, error) {
	limits, err := readCeilings(f.cfg.Ceilings)
	if err != nil {
		return nil, err
	}
	wanted, cuts, err := ReadFile(f.cfg.Sources, limits)
	if err != nil {
		return nil, err
	}
	var problems []error
	for _, s := range wanted {
		if _, err := expression.Compile(s.Ingest.Key, s.Ingest.When); err != nil {
			problems = append(problems, fmt.Errorf("source %s: %w", s.Path(), err))
		}
		if s.Ingest.NeedsToken && f.cfg.Tokens == "" {
			problems = append(problems, fmt.Errorf("source %s: spec.ingest.authentication is required, and there are no tokens: give --token-file FILE", s.Path()))
		}
	}
	if problems != nil {
		return nil, errors.Join(problems...)
	}
	for _, c := range cuts {
		f.cfg.Log.Warn("the spec of a source asks for more than the administrator allows: the ceiling holds",
			"source", c.Source, "field", "spec."+c.Field, "wanted", c.Wanted, "ceiling", c.Ceiling, "key", c.Key)
	}
	return wanted, nil
}

// readCeilings reads the file of ceilings. Without a file there are none: the owner
// of the sources' file is the administrator.
func readCeilings(file string) (*ceilings.Config, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the ceilings: %w", err)
	}
	if len(text) > MaxFileBytes {
		return nil, fmt.Errorf("reading the ceilings: %s is more than %d MiB", file, MaxFileBytes>>20)
	}
	config, err := ceilings.ParseFile(text)
	if err != nil {
		return nil, fmt.Errorf("reading the ceilings: %s: %w", file, err)
	}
	return config, nil
}
