package replica

import (
	"context"
	"time"
)

// The view is flushed when it is keepEntries ahead of its files, and after keepEvery in any
// case, so that a start has little to read.
const (
	keepLook    = 500 * time.Millisecond
	keepEvery   = 5 * time.Second
	keepEntries = 2000
)

// keep flushes the view from time to time and says so in the log. The owner removes from
// the log what all views have on disk.
func (g *Group) keep(ctx context.Context) {
	cfg := &g.cfg
	saved, at, trimmed := uint64(0), cfg.Clock(), uint64(0)
	for first := true; ; {
		g.pause(ctx, keepLook)
		if ctx.Err() != nil {
			return
		}
		applied := cfg.View.Applied()
		if first || applied > saved && (cfg.Clock()-at >= keepEvery || applied-saved >= keepEntries) {
			if !cfg.sabotage.markUnsaved {
				if err := cfg.View.Flush(); err != nil {
					cfg.Logger.Error("the view cannot be flushed; the log is kept meanwhile", "error", err)
					continue
				}
			}
			if err := g.bounded(ctx, func(ctx context.Context) error { return cfg.Log.Mark(ctx, cfg.Member, applied) }); err == nil {
				saved, at, first = applied, cfg.Clock(), false
			}
		}
		if !g.tenure.Load().Valid() {
			continue
		}
		_ = g.bounded(ctx, func(ctx context.Context) error {
			marks, err := cfg.Log.Marks(ctx)
			if err != nil {
				return err
			}
			low := cfg.View.Applied()
			for _, m := range cfg.Members {
				low = min(low, marks[m]) // 0 of a member that never said anything
			}
			if low <= trimmed {
				return nil
			}
			if err := cfg.Log.Trim(ctx, low); err != nil {
				return err
			}
			trimmed = low
			return nil
		})
	}
}

func (g *Group) bounded(ctx context.Context, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return do(ctx)
}
