package etcdlog

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// etcd disconnects a member by a panic with an error, also whenever the log ends. It is no defect, which would be
// logged as one. Other panics are.
func TestPeerServer_DisconnectIsNoDefect(t *testing.T) {
	t.Parallel()
	var none []int
	for name, test := range map[string]struct {
		serve  func()
		defect bool
	}{
		"etcd disconnects": {func() { panic(errors.New("raft: stopped")) }, false},
		"an index":         {func() { _ = none[len(none)] }, true},
		"a text":           {func() { panic("transport stopped") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			defer func() {
				broken := recover()
				err, _ := broken.(error)
				if broken == nil || errors.Is(err, http.ErrAbortHandler) == test.defect {
					t.Error("it panics with", broken)
				}
			}()
			h := peerServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { test.serve() }), nil).Handler
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/raft", http.NoBody))
		})
	}
}
