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
)

const (
	// maxMessageBytes is what the newer API of Events takes of a message.
	maxMessageBytes = 1024
	// flushFor bounds the wait for Events on their way at the end.
	flushFor = 2 * time.Second
)

// ReasonEventRefused is the reason of the Event on a source that was sent what
// it cannot take. Who sends decides how often that is, so it is told once in
// five minutes for a source.
const ReasonEventRefused = "EventRefused"

const (
	refusedEvery = 5 * time.Minute
	// maxRefused bounds the sources of which it is known that they were told.
	maxRefused = 4096
)

// warner records Events. Its correlator counts repeats on one Event, sums up
// many alike, and holds each source and reason to 25, and one more in five
// minutes: what senders do wrong does not use up what sinks do.
type warner struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	flushed     chan struct{}
	once        sync.Once
	refused     *lru.LRUExpireCache // uids of sources that were told so lately
}

func newWarner(ctx context.Context, sink record.EventSink) *warner {
	w := &warner{flushed: make(chan struct{}), refused: lru.NewLRUExpireCache(maxRefused)}
	// It outlives ctx: what goes wrong on the way down is told too.
	w.broadcaster = record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)),
		record.WithCorrelatorOptions(record.CorrelatorOptions{SpamKeyFunc: func(e *corev1.Event) string {
			return string(e.InvolvedObject.UID) + " " + e.Reason
		}}))
	w.broadcaster.StartRecordingToSink(&eventSink{EventSink: sink, flushed: w.flushed})
	w.recorder = w.broadcaster.NewRecorder(runtime.NewScheme(), corev1.EventSource{Component: kube.Component}).WithLogger(klog.FromContext(ctx))
	return w
}

func (w *warner) warn(src *schedule.Source, reason, message string) {
	if reason == ReasonEventRefused {
		if _, told := w.refused.Get(src.UID); told {
			return
		}
		w.refused.Add(src.UID, nil, refusedEvery)
	}
	if len(message) > maxMessageBytes {
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
		timeout := time.NewTimer(flushFor)
		defer timeout.Stop()
		select {
		case <-w.flushed:
		case <-timeout.C:
		}
		w.broadcaster.Shutdown()
	})
}

// lastEvent is one that no API server sees: it comes after all others.
const lastEvent = "flush"

// eventSink passes Events on until the last.
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
