package group

import (
	"context"
	"errors"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/replica"
	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// stoppedLog has one page.
type stoppedLog struct {
	replica.Log
	entry replica.Entry
}

func (l stoppedLog) Read(context.Context, uint64) (replica.Page, error) {
	return replica.Page{Entries: []replica.Entry{l.entry}}, nil
}

// The back-up of a stopped member ends where its log is damaged or has a gap. There was none.
func TestReplay_EndsWhereTheLogIsDamaged(t *testing.T) {
	t.Parallel()
	for name, entry := range map[string]replica.Entry{"damaged": {Seq: 1, Data: []byte("damaged")}, "gap": {Seq: 5}} {
		v, err := store.OpenView(store.Options{Dir: "data", FS: vfs.NewMem()})
		if err != nil {
			t.Fatal(err)
		}
		s := Settings{ReadStopped: func(ctx context.Context, _, _ string, read func(context.Context, replica.Log) error) error {
			return read(ctx, stoppedLog{entry: entry})
		}}
		if err := s.Replay()(t.Context(), "", "", v); !errors.Is(err, store.ErrLogDamaged) {
			t.Errorf("%s: %v", name, err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
}
