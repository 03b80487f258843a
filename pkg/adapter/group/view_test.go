package group

import (
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/reschedule-dev/reschedule/pkg/adapter/store"
)

// While a copy takes the place of the view, on a disk that hangs, a member knows how far it is:
// it asks while it looks for the owner, to forward calls.
func TestView_AnswersWhileItIsReplaced(t *testing.T) {
	t.Parallel()
	v, err := openView(store.Options{Dir: "data", FS: vfs.NewMem(), Fatal: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	answered := make(chan struct{})
	v.mu.Lock() // as replace does
	go func() {
		defer close(answered)
		if v.Applied() != 0 || v.Sealed() {
			t.Error("it is not empty")
		}
	}()
	select {
	case <-answered:
	case <-time.After(10 * time.Second):
		t.Error("it waits for the disk")
	}
	v.mu.Unlock()
	<-answered
	if err := v.get().Close(); err != nil {
		t.Error(err)
	}
}

// A sender that is silent for too long is given up. What the reader does between two reads is
// not the sender's silence.
func TestCopy_StallIsOfTheSender(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var stalled atomic.Bool
		timer := time.AfterFunc(copyStall, func() { stalled.Store(true) })
		if _, err := (stallReader{strings.NewReader("x"), timer}).Read(make([]byte, 1)); err != nil {
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
		if _, err := (stallReader{silent, timer}).Read(make([]byte, 1)); !errors.Is(err, io.EOF) || !stalled.Load() {
			t.Errorf("a silent sender is waited for: %v", err)
		}
	})
}
