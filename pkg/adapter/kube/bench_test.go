package kube

import (
	"context"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/util/flowcontrol"
)

// BenchmarkWatches opens 300 watches and reports the memory of all of them, the part of
// the server in the same process included.
func BenchmarkWatches(b *testing.B) {
	const n = 300
	for b.Loop() {
		s := newServed(b)
		s.all = flowcontrol.NewFakeAlwaysRateLimiter()
		s.namespaces.Add(watcher.Namespace, s.all, time.Hour)
		s.on("/apis/example.com/v1/sites", func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		before := used()
		ctx, cancel := context.WithCancel(b.Context())
		var open, ended sync.WaitGroup
		open.Add(n)
		for range n {
			ended.Go(func() {
				first := true
				h := ignoring
				h.Idle = func() error {
					if first {
						first = false
						open.Done()
					}
					return nil
				}
				_ = s.Watch(ctx, watcher, sites, h)
			})
		}
		open.Wait()
		b.ReportMetric(float64(int64(used()-before))/1e6, "MB")
		cancel()
		ended.Wait()
	}
}

func used() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
