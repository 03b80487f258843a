package etcdlog

import (
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
)

// What etcd calls an error and tries again is not logged: at a first start, and while a new member
// catches up.
func TestStart_LogsNoError(t *testing.T) {
	t.Parallel()
	core, logged := observer.New(zapcore.ErrorLevel)
	logger := zap.New(realErrors{core})
	for _, l := range []*zap.Logger{logger, logger.With(zap.String("of", "etcd"))} {
		for _, message := range harmless {
			l.Error(message)
		}
		l.Error("another error")
	}
	if n := logged.Len(); n != 2 || logged.FilterMessage("another error").Len() != 2 {
		t.Errorf("%d lines are logged: %v", n, logged.All())
	}
}
