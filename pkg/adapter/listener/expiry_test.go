package listener

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A certificate that ends is logged once a day in its last two weeks, and after its end, until it is renewed. A group lost
// its majority at the first connection after the end, without a warning.
func TestCertificate_IsLoggedBeforeItsEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var logged bytes.Buffer
		begun := time.Now()
		c := Certificate{Name: "members", End: func() time.Time {
			if time.Since(begun) > 22*24*time.Hour {
				return begun.Add(100 * 24 * time.Hour) // it was renewed
			}
			return begun.Add(20*24*time.Hour + time.Hour)
		}}
		ctx, cancel := context.WithTimeout(t.Context(), 30*24*time.Hour)
		defer cancel()
		c.Warn(ctx, slog.New(slog.NewTextHandler(&logged, nil)))
		if soon, ended := strings.Count(logged.String(), "level=WARN"), strings.Count(logged.String(), "level=ERROR"); soon != 14 || ended != 2 {
			t.Errorf("%d lines before the end, want 14, and %d after it, want 2:\n%s", soon, ended, &logged)
		}
		logged.Reset()
		none := Certificate{End: func() time.Time { return time.Time{} }}
		ctx, cancel = context.WithTimeout(t.Context(), expiryEvery)
		defer cancel()
		if none.Warn(ctx, slog.New(slog.NewTextHandler(&logged, nil))); logged.Len() > 0 {
			t.Error("without a certificate:", &logged)
		}
	})
}
