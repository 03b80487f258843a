package adapter

import (
	"context"
	"errors"
	"fmt"
	"os"

	"knative.dev/pkg/observability/metrics"
	"knative.dev/pkg/observability/tracing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/access"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/ceilings"
)

// startFromFile starts a standalone adapter. What can be wrong in a file is
// found before the data directory is touched.
func (a *Adapter) startFromFile(ctx context.Context) error {
	wanted, compiled, err := a.readSources()
	if err != nil {
		return err
	}
	if a.cfg.TokenFile != "" {
		if a.tokens, err = access.ReadTokens(a.cfg.TokenFile); err != nil {
			return err
		}
	}
	if err := a.telemetry.start(ctx, metrics.Config{}, tracing.Config{}); err != nil {
		return err
	}
	if err := a.open(ctx, sink.New(sink.Config{Log: a.cfg.Log})); err != nil {
		return err
	}
	if err := a.apply(ctx, wanted, compiled); err != nil {
		return err
	}
	if err := a.administer(); err != nil {
		return err
	}
	if a.tokens == nil {
		return a.serve(nil)
	}
	return a.serve(a.tokens)
}

// readSources reads the files of sources and of ceilings, logs what the ceilings cut,
// and compiles the ingest rules of all sources, or says what is wrong with any of them: also of a
// source that requires tokens where there are none, which everybody could send
// events to.
func (a *Adapter) readSources() ([]*schedule.Source, []rules, error) {
	limits, err := readCeilings(a.cfg.CeilingsFile)
	if err != nil {
		return nil, nil, err
	}
	wanted, cuts, err := sources.ReadFile(a.cfg.SourcesFile, limits)
	if err != nil {
		return nil, nil, err
	}
	compiled, problems := make([]rules, len(wanted)), []error(nil)
	for i, s := range wanted {
		if compiled[i].Rules, err = ingest.Compile(s); err != nil {
			problems = append(problems, fmt.Errorf("source %s: %w", s.Path(), err))
		}
		if s.EventsNeedToken && a.cfg.TokenFile == "" {
			problems = append(problems, fmt.Errorf("source %s: spec.ingest.authentication is required, and there are no tokens: give --token-file FILE", s.Path()))
		}
	}
	if problems != nil {
		return nil, nil, errors.Join(problems...)
	}
	for _, c := range cuts {
		a.cfg.Log.Warn("the spec of a source asks for more than the administrator allows: the ceiling holds",
			"source", c.Source, "field", "spec."+c.Field, "wanted", c.Wanted, "ceiling", c.Ceiling, "key", c.Key)
	}
	return wanted, compiled, nil
}

// readCeilings reads the file of ceilings. Without one there are none: the owner
// of the sources' file is the administrator.
func readCeilings(file string) (*ceilings.Config, error) {
	if file == "" {
		return nil, nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("reading the ceilings: %w", err)
	}
	if len(text) > sources.MaxFileBytes {
		return nil, fmt.Errorf("reading the ceilings: %s is more than %d MiB", file, sources.MaxFileBytes>>20)
	}
	config, err := ceilings.ParseFile(text)
	if err != nil {
		return nil, fmt.Errorf("reading the ceilings: %s: %w", file, err)
	}
	return config, nil
}

// apply makes the wanted sources the ones there are.
func (a *Adapter) apply(ctx context.Context, wanted []*schedule.Source, compiled []rules) error {
	if err := a.keepOnly(ctx, wanted); err != nil {
		return err
	}
	for i, s := range wanted {
		if ctx.Err() != nil {
			return ctx.Err() // the end has begun: the next start goes on
		}
		if err := a.set(s, compiled[i]); err != nil {
			return err
		}
	}
	return nil
}

// reload reads the tokens, sources and ceilings anew, the tokens on their own: a
// token is revoked whatever is wrong with the sources. What cannot be read stays
// as it was.
func (a *Adapter) reload(ctx context.Context) error {
	return errors.Join(a.reloadTokens(), a.reloadSources(ctx))
}

func (a *Adapter) reloadTokens() error {
	if a.tokens == nil {
		return nil
	}
	if err := a.tokens.Reload(a.cfg.TokenFile); err != nil {
		return fmt.Errorf("the tokens stay as they were: %w", err)
	}
	return nil
}

func (a *Adapter) reloadSources(ctx context.Context) error {
	wanted, compiled, err := a.readSources()
	if err != nil {
		return fmt.Errorf("the sources stay as they were: %w", err)
	}
	return a.apply(ctx, wanted, compiled)
}

// obey reloads when it is told to, until ctx ends. A reload may have to wait
// for the disk: the end does not wait for the reload.
func (a *Adapter) obey(ctx context.Context, reload <-chan struct{}) error {
	done := make(chan struct{})
	for next := reload; ; {
		select {
		case <-ctx.Done():
			return a.Stop()
		case <-next:
			next = nil // one at a time
			go func() {
				a.reloadNow(ctx)
				select {
				case done <- struct{}{}:
				case <-ctx.Done():
				}
			}()
		case <-done:
			next = reload
		}
	}
}

func (a *Adapter) reloadNow(ctx context.Context) {
	switch err := a.reload(ctx); {
	case ctx.Err() != nil:
	case err != nil:
		a.cfg.Log.Error("not everything was reloaded: a file cannot be used", "file", a.cfg.SourcesFile, "config", a.cfg.CeilingsFile, "tokens", a.cfg.TokenFile, "error", err)
	default:
		a.cfg.Log.Info("sources reloaded", "file", a.cfg.SourcesFile, "sources", len(a.queue.Sources()))
	}
}
