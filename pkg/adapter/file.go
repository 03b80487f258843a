package adapter

import (
	"context"
	"errors"
	"fmt"

	"knative.dev/pkg/observability/metrics"
	"knative.dev/pkg/observability/tracing"

	"github.com/reschedule-dev/reschedule/pkg/adapter/api"
	"github.com/reschedule-dev/reschedule/pkg/adapter/ingest"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sink"
	"github.com/reschedule-dev/reschedule/pkg/adapter/sources"
)

// startFromFile starts a standalone adapter. What can be wrong in a file is
// found before the data directory is touched.
func (a *Adapter) startFromFile(ctx context.Context) error {
	wanted, compiled, err := readSources(a.cfg.SourcesFile)
	if err != nil {
		return err
	}
	if a.cfg.TokenFile != "" {
		if a.tokens, err = api.ReadTokens(a.cfg.TokenFile); err != nil {
			return err
		}
	}
	if err := a.telemetry.start(ctx, metrics.Config{}, tracing.Config{}); err != nil {
		return err
	}
	if err := a.open(ctx, sink.New(sink.Config{Log: a.cfg.Log})); err != nil {
		return err
	}
	if err := a.apply(wanted, compiled); err != nil {
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

// readSources reads the file and compiles the ingest rules of all its sources,
// or says what is wrong with any of them.
func readSources(file string) ([]*schedule.Source, []rules, error) {
	wanted, err := sources.ReadFile(file)
	if err != nil {
		return nil, nil, err
	}
	compiled, problems := make([]rules, len(wanted)), []error(nil)
	for i, s := range wanted {
		if compiled[i].Rules, err = ingest.Compile(s); err != nil {
			problems = append(problems, fmt.Errorf("source %s: %w", s.Path(), err))
		}
	}
	return wanted, compiled, errors.Join(problems...)
}

// apply makes the wanted sources the ones there are.
func (a *Adapter) apply(wanted []*schedule.Source, compiled []rules) error {
	if err := a.keepOnly(wanted); err != nil {
		return err
	}
	for i, s := range wanted {
		if err := a.set(s, compiled[i]); err != nil {
			return err
		}
	}
	return nil
}

// reload reads the sources and tokens anew, each on its own: a token is revoked
// whatever is wrong with the sources. What cannot be read stays as it was.
func (a *Adapter) reload() error {
	return errors.Join(a.reloadTokens(), a.reloadSources())
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

func (a *Adapter) reloadSources() error {
	wanted, compiled, err := readSources(a.cfg.SourcesFile)
	if err != nil {
		return fmt.Errorf("the sources stay as they were: %w", err)
	}
	return a.apply(wanted, compiled)
}

// obey reloads when it is told to, until ctx ends.
func (a *Adapter) obey(ctx context.Context, reload <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return a.Stop()
		case <-reload:
			if err := a.reload(); err != nil {
				a.cfg.Log.Error("not everything was reloaded: a file cannot be used", "file", a.cfg.SourcesFile, "tokens", a.cfg.TokenFile, "error", err)
			} else {
				a.cfg.Log.Info("sources reloaded", "file", a.cfg.SourcesFile, "sources", len(a.queue.Sources()))
			}
		}
	}
}
