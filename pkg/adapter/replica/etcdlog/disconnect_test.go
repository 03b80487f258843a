package etcdlog

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

// etcd disconnects a member by a panic with an error, and reads from closed files while it ends. Neither is a
// defect, which would be logged as one. Other panics are.
func TestDisconnecting_IsNoDefect(t *testing.T) {
	t.Parallel()
	var none []int
	for name, test := range map[string]struct {
		serve  func()
		ends   bool // etcd does
		defect bool
	}{
		"etcd disconnects":    {func() { panic(errors.New("context canceled")) }, false, false},
		"etcd ends":           {func() { panic(errors.New("raft: stopped")) }, true, false},
		"an index":            {func() { _ = none[len(none)] }, false, true},
		"a file that is gone": {func() { _ = none[len(none)] }, true, false},
		"a text":              {func() { panic("transport stopped") }, false, true},
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
			ending := make(chan struct{})
			if test.ends {
				close(ending)
			}
			h := disconnecting(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { test.serve() }), ending)
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/raft", http.NoBody))
		})
	}
}
