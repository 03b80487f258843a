package replica

import (
	"context"
	"errors"
)

// Replay applies what the log has behind a view that no group uses.
func Replay(ctx context.Context, log Log, view View) error {
	s, err := log.State(ctx)
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return err
	}
	g := New(Config{Log: log, View: view})
	g.tail.Store(view.Applied())
	for {
		_, err := g.read(ctx)
		if !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil { // a page takes longer on a busy machine
			return err
		}
	}
}
