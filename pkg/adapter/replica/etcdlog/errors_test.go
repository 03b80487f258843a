package etcdlog

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// A first start logs no error, although etcd calls it one that a new member has no term yet.
func TestStart_LogsNoError(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zapcore.ErrorLevel)
	logger := zap.New(errorsOnly{core})
	for _, l := range []*zap.Logger{logger, logger.With(zap.String("of", "etcd"))} {
		l.Error("failed to update storage version")
		l.Error("another error")
	}
	if n := logged.Len(); n != 2 || logged.FilterMessage("another error").Len() != 2 {
		t.Errorf("%d lines are logged: %v", n, logged.All())
	}
}
