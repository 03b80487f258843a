package cluster

import (
	"context"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	lru "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/reschedule-dev/reschedule/pkg/adapter/kube"
	"github.com/reschedule-dev/reschedule/pkg/adapter/schedule"
	"github.com/reschedule-dev/reschedule/pkg/apis/sources/v1alpha1"
	"github.com/reschedule-dev/reschedule/pkg/printable"
)

const (
	// maxMessageBytes is the limit of the newer Events API.
	maxMessageBytes = 1024
	// flushTimeout bounds the wait for Events on their way at the end.
	flushTimeout = 2 * time.Second
)

// reasonEventRefused is the reason of the Event on a source that was sent an event it
// cannot take. The sender decides how often that happens, so it is reported once in
// five minutes per source.
const reasonEventRefused = "EventRefused"

const (
	refusedInterval = 5 * time.Minute
	// maxRefused bounds the sources whose last report is remembered.
	maxRefused = 4096
)

// warner records Events. Its correlator counts repeats on one Event, aggregates
// similar ones, and limits each source and reason to 25 and one more in five minutes,
// so that the mistakes of senders do not use up the limit of sinks.
type warner struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	flushed     chan struct{}
	once        sync.Once
	refused     *lru.LRUExpireCache // uids of sources that were reported lately
}

func newWarner(ctx context.Context, sink record.EventSink) *warner {
	w := &warner{flushed: make(chan struct{}), refused: lru.NewLRUExpireCache(maxRefused)}
	// It outlives ctx: a failure during the shutdown is reported too.
	w.broadcaster = record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)),
		record.WithCorrelatorOptions(record.CorrelatorOptions{SpamKeyFunc: func(e *corev1.Event) string {
			return string(e.InvolvedObject.UID) + " " + e.Reason
		}}))
	w.broadcaster.StartRecordingToSink(&eventSink{EventSink: sink, flushed: w.flushed})
	w.recorder = w.broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: kube.Component}).WithLogger(klog.FromContext(ctx))
	return w
}

func (w *warner) warn(src *schedule.Spec, reason, message string) {
	if reason == reasonEventRefused {
		if _, recent := w.refused.Get(src.UID); recent {
			return
		}
		w.refused.Add(src.UID, nil, refusedInterval)
	}
	// Keys of callers and answers of sinks are in it.
	if message = printable.Line(message); len(message) > maxMessageBytes {
		message = strings.ToValidUTF8(message[:maxMessageBytes-3], "") + "..."
	}
	w.recorder.Event(&corev1.ObjectReference{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: v1alpha1.Kind,
		Namespace: src.Namespace, Name: src.Name, UID: types.UID(src.UID),
	}, corev1.EventTypeWarning, reason, message)
}

// close waits until the Events so far are recorded, or its time is up.
func (w *warner) close() {
	w.once.Do(func() {
		w.recorder.Event(&corev1.ObjectReference{Name: lastEvent}, corev1.EventTypeNormal, lastEvent, lastEvent)
		timeout := time.NewTimer(flushTimeout)
		defer timeout.Stop()
		select {
		case <-w.flushed:
		case <-timeout.C:
		}
		w.broadcaster.Shutdown()
	})
}

// lastEvent is never sent: it marks the end of all others.
const lastEvent = "flush"

// eventSink passes Events on until lastEvent.
type eventSink struct {
	record.EventSink
	flushed chan struct{}
}

// Create implements record.EventSink.
func (s *eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	if e.Reason == lastEvent {
		close(s.flushed)
		return e, nil
	}
	return s.EventSink.Create(e)
}
