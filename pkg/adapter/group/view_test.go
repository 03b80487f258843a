package group

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A sender that is silent for too long is given up. What the reader does between two reads is
// not the sender's silence.
func TestCopy_StallIsOfTheSender(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stalled atomic.Bool
		timer := time.AfterFunc(copyStall, func() { stalled.Store(true) })
		if _, err := (alive{strings.NewReader("x"), timer}).Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * copyStall) // it is verified
		if stalled.Load() {
			t.Error("a long verification ends the copy")
		}
		silent, end := io.Pipe()
		go func() {
			time.Sleep(2 * copyStall)
			_ = end.Close()
		}()
		if _, err := (alive{silent, timer}).Read(make([]byte, 1)); !errors.Is(err, io.EOF) || !stalled.Load() {
			t.Errorf("a silent sender is waited for: %v", err)
		}
	})
}
